"""A predictor's output in serving is what training computes on the same tokens: real traces of the shipped pair.

Serving reads token by token, its caches rolled back round by round, alone or in a batch; training reads whole texts.
Both are compared with transformers' own forward.
"""

from typing import Any

import numpy as np
import pytest
import torch
from specpilot.checkpoints import FOLDER
from specpilot.controllers.acceptance.feature_model import FeatureModel
from specpilot.controllers.acceptance.lag_free_head import LagFreeHead, copied_embeddings
from specpilot.controllers.checkpoints.checkpoint import load_controller
from specpilot.controllers.length import (
    AcceptancePredictor,
    FeaturePredictor,
    HeadPredictor,
    LagFreePredictor,
    LengthController,
    Step,
)
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.draft_states import after_target_text, read_positions
from specpilot.data_gen.kinds import AcceptanceRow, Text, text_of
from specpilot.data_gen.prompts import load_prompts
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.prompting import encode_prompt
from specpilot.infer.random_source import sample_seed
from specpilot.models import CausalLM

TOLERANCE = 1e-5
MAX_TOKENS = 6
SAMPLING = SamplingParams(1.0, 50)
CONTROLLER = load_controller(FOLDER / "tiny-head")


class Recording(LengthController):
    """Records a predictor's output at every token, and continues the draft."""

    def __init__(self, predictor: AcceptancePredictor) -> None:
        self.predictor = predictor
        self.texts: list[list[list[float]]] = []  # of all rows of a batch, which are copies of this one

    def start_text(self) -> None:
        self.rounds: list[list[float]] = []
        self.texts.append(self.rounds)

    def start_round(self) -> bool:
        self.rounds.append([])
        return True

    def observe(self, step: Step) -> bool:
        if step.index > self.predictor.lag:
            self.rounds[-1].append(self.predictor.predict(step))
        return step.index < MAX_TOKENS


def served(decoder: SpeculativeDecoder, predictor: AcceptancePredictor, batched: bool) -> tuple[list[Text], list[Any]]:
    """Each round's draft as a rollout after its text, and the probabilities of its first tokens as served.

    Its own tokens are the context of the later ones.
    """
    recording, sampling = Recording(predictor), {"temperature": SAMPLING.temperature, "top_k": SAMPLING.top_k}
    options: dict[str, Any] = {"length": recording, "max_new_tokens": 32, **sampling}
    rows = load_prompts("builtin", split="test", limit=5)
    prompts: list[list[int]] = [encode_prompt(decoder.tokenizer, row.prompt, chat=True) for row in rows]
    if batched:
        generations = decoder.generate(prompts, **options)
    else:
        generations = [decoder.generate(prompt, seed=sample_seed(0, i), **options) for i, prompt in enumerate(prompts)]
    texts, predictions = list[Text](), list[list[float]]()
    for generation, rounds in zip(generations, recording.texts, strict=True):
        before, waiting = [*generation.prompt_tokens], iter(rounds)
        for round in generation.rounds:
            if y := round.drafted:
                texts.append(text_of(AcceptanceRow(str(len(texts)), "", [*before], y, y, [0.5] * len(y))))
                predictions.append(next(waiting))
            before += round.emitted
    assert sum(map(len, predictions)) > 150
    return texts, predictions


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length=4)


def predictor_of(name: str, draft: CausalLM) -> AcceptancePredictor:
    if name == "features":
        return FeaturePredictor(FeatureModel(0.3, 0.7, -0.9, -0.4))
    embedding = draft.model.get_output_embeddings().weight
    if name == "head":
        return CONTROLLER.config.predictor(CONTROLLER.head, embedding, torch.device("cpu"), calibrated=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = LagFreeHead(draft.hidden_size, 16)
    head.mean.copy_(torch.linspace(-1, 1, 7))
    head.scale.copy_(torch.linspace(0.5, 2, 7))
    head.state_scale.fill_(1.7)
    return LagFreePredictor(head, embedding)


@torch.no_grad()
def trained(predictor: AcceptancePredictor, draft: CausalLM, texts: list[Text]) -> list[float]:
    """Return the predictions of training at each token of ``texts``."""
    if isinstance(predictor, LagFreePredictor):
        examples = after_target_text(draft, texts, SAMPLING, draft.vocab_size)
        assert (examples.copies >= 0).any()  # texts do repeat themselves
        embedding = draft.model.get_output_embeddings().weight
        copied = copied_embeddings(embedding, examples.copies.long())
        logits = predictor.head(examples.evidence, examples.states, embedding[examples.tokens], copied)
        return torch.sigmoid(logits).tolist()
    positions = read_positions(draft, texts, SAMPLING)
    if isinstance(predictor, HeadPredictor):
        predictions = np.array([predictor.calibration(logit) for logit in CONTROLLER.head(positions.states).tolist()])
    else:
        evidence = positions.evidence[:, :3].double().numpy()
        predictions = 1 / (1 + np.exp(-evidence @ [0.7, -0.9, -0.4] - 0.3))
    return predictions.tolist()


@pytest.mark.parametrize(
    ("name", "batched"),
    [
        ("lag-free", False),
        ("lag-free", True),
        ("head", True),
        ("features", True),
        pytest.param("head", False, marks=pytest.mark.slow),
        pytest.param("features", False, marks=pytest.mark.slow),
    ],
)
def test_a_predictor_serves_what_it_was_trained_as(decoder: SpeculativeDecoder, name: str, batched: bool) -> None:
    (draft,) = decoder.drafts
    assert isinstance(draft, CausalLM)
    predictor = predictor_of(name, draft)
    texts, served_predictions = served(decoder, predictor, batched)
    expected = iter(trained(predictor, draft, texts))
    for text, probabilities in zip(texts, served_predictions, strict=True):
        of_round = [next(expected) for _ in text.tokens]
        assert len(probabilities) >= len(of_round) - 2
        np.testing.assert_allclose(probabilities, of_round[: len(probabilities)], rtol=0, atol=TOLERANCE)
