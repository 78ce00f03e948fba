"""What a source says while serving is what training computes on the same tokens: real traces of the shipped pair.

Serving reads token by token, its caches rolled back round by round, alone or in a batch; training reads whole texts.
Both are compared with transformers' own forward.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from specpilot.checkpoints import FOLDER
from specpilot.controllers.acceptance.acceptance_head import AcceptanceHead
from specpilot.controllers.acceptance.feature_model import FeatureModel
from specpilot.controllers.checkpoints.checkpoint import load_controller
from specpilot.controllers.length import AcceptancePredictor, FeaturePredictor, LengthController, Step
from specpilot.controllers.length.trained import acceptance_predictor
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.dataset import Row
from specpilot.data_gen.draft_states import after_mixed_text
from specpilot.data_gen.prompts import load_prompts
from specpilot.data_gen.texts import Text, text_of_row
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.generation import Generation
from specpilot.infer.models.hidden import forward_with_hidden
from specpilot.infer.prompting import encode_prompt
from specpilot.infer.random_source import sample_seed
from specpilot.train.calibration import apply, logistic_chances
from specpilot.train.positions import read_positions

TOLERANCE = 1e-5
MAX_TOKENS = 6
SAMPLING = SamplingParams(1.0, 50)
CONTROLLER = load_controller(FOLDER / "tiny-head")


class Watched(LengthController):
    """Asks a source at every token, and drafts on whatever it says."""

    def __init__(self, source: AcceptancePredictor) -> None:
        self.source = source
        self.texts: list[list[list[float]]] = []  # of all rows of a batch, which are copies of this one

    def start_text(self) -> None:
        self.said: list[list[float]] = []
        self.texts.append(self.said)

    def start_round(self) -> bool:
        self.said.append([])
        return True

    def observe(self, step: Step) -> bool:
        if step.index > self.source.lag:
            self.said[-1].append(self.source.predict(step).accept)
        return step.index < MAX_TOKENS


class Served(NamedTuple):
    """One round: what came before it, what was drafted, and the chances of its first tokens as served."""

    text: list[int]
    drafted: list[int]
    chances: list[float]


def serve(decoder: SpeculativeDecoder, source: AcceptancePredictor, batched: bool) -> list[Served]:
    watched = Watched(source)
    rows = load_prompts("builtin", split="test", limit=5)
    prompts: list[list[int]] = [encode_prompt(decoder.tokenizer, row.prompt, chat=True) for row in rows]
    sampling = {"length": watched, "max_new_tokens": 32, "temperature": SAMPLING.temperature, "top_k": SAMPLING.top_k}
    generations: list[Generation] = (
        decoder.generate(prompts, **sampling)  # type: ignore[call-overload]
        if batched
        else [decoder.generate(prompt, seed=sample_seed(0, i), **sampling) for i, prompt in enumerate(prompts)]  # type: ignore[call-overload]
    )
    served = []
    for generation, said in zip(generations, watched.texts, strict=True):
        text = [*generation.prompt_tokens]
        waiting = iter(said)
        for round in generation.rounds:
            if round.drafted:
                served.append(Served([*text], round.drafted, next(waiting)))
            text += round.emitted
    assert sum(len(one.chances) for one in served) > 150
    return served


def as_texts(served: list[Served]) -> list[Text]:
    """Each draft as a rollout after its text; its own tokens are the context of the later ones."""
    rows = [
        Row(str(i), "", one.text, one.drafted, one.drafted, [0.5] * len(one.drafted)) for i, one in enumerate(served)
    ]
    return [text_of_row(row) for row in rows]


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained("tiny", "tiny-draft")


@pytest.mark.parametrize("batched", [False, True])
def test_a_head_serves_what_it_was_trained_as(decoder: SpeculativeDecoder, batched: bool) -> None:
    source = acceptance_predictor(CONTROLLER, torch.device("cpu"), torch.empty(0), undone=True)
    served = serve(decoder, source, batched)
    (draft,) = decoder.drafts
    head: AcceptanceHead = CONTROLLER.head
    texts = as_texts(served)
    everywhere = [np.ones(len(text.x), dtype=np.bool_) for text in texts]
    hidden = after_mixed_text(draft, texts, everywhere)["states"]
    expected = apply(source.calibration, head(hidden).double().numpy())
    for one in served:
        count, chances = len(one.drafted), one.chances
        np.testing.assert_allclose(chances, expected[: len(chances)], rtol=0, atol=TOLERANCE)
        assert len(chances) >= count - 2
        _, states = forward_with_hidden(draft.model, input_ids=torch.tensor([one.text + one.drafted]))
        theirs = apply(source.calibration, head(states[0, -count:]).detach().double().numpy())
        np.testing.assert_allclose(theirs, expected[:count], rtol=0, atol=TOLERANCE)
        expected = expected[count:]

    positions = read_positions(draft, as_texts(served), SAMPLING)
    calibrated = iter(apply(source.calibration, head(positions.hidden).double().numpy()))
    for one in served:
        of_round = [next(calibrated) for _ in one.drafted]
        np.testing.assert_allclose(one.chances, of_round[: len(one.chances)], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("batched", [False, True])
def test_a_feature_model_serves_what_it_was_fitted_to(decoder: SpeculativeDecoder, batched: bool) -> None:
    model = FeatureModel(0.3, 0.7, -0.9, -0.4)
    served = serve(decoder, FeaturePredictor(model), batched)
    (draft,) = decoder.drafts
    positions = read_positions(draft, as_texts(served), SAMPLING)
    expected = iter(logistic_chances(positions.features, np.array([0.7, -0.9, -0.4]), 0.3).tolist())
    for one in served:
        of_round = [next(expected) for _ in one.drafted]
        np.testing.assert_allclose(one.chances, of_round[: len(one.chances)], rtol=0, atol=TOLERANCE)
