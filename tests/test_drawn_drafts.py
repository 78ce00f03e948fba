"""Chains drawn and verified where the models are, by an accelerator's code on a CPU; the signals of their tokens."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import pytest
import torch
from specpilot.common.errors import InputError
from specpilot.controllers.acceptance.lag_free_head import LagFreeHead
from specpilot.controllers.acceptance.ngram_index import NgramIndex
from specpilot.controllers.acceptance.specdec_head import AcceptanceHead
from specpilot.controllers.acceptance.step import FEW
from specpilot.controllers.length import (
    AcceptanceLength,
    Confidence,
    Entropy,
    Fallback,
    HeadPredictor,
    LagFreePredictor,
    RateOptimal,
    Step,
    parse_rule,
)
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.distribution import read_together
from specpilot.infer.generation import Generation
from specpilot.infer.models import CausalLM
from specpilot.infer.random_source import RandomSource
from specpilot.infer.request import Request
from transformers import PreTrainedModel

from .drafts import seeded, state_draft, trimmed
from .test_static_forward import of_fixed_shapes
from .tiny import make

STOPS = {3, 8}
PROMPTS = [[1, 2, 3], [4, 5], [6, 1, 6, 1, 6]]


def lag_free() -> LagFreePredictor:
    return LagFreePredictor(
        seeded(lambda: LagFreeHead(32, 4)), seeded(lambda: torch.nn.Embedding(64, 32)).weight, mean=0.6
    )


COST = CostModel(0.1, 1.0, 0.0)
PLANNED = {"4": "4", "heuristic": "heuristic:3", "adaptive": "adaptive-length:2"}
ASKING: dict[str, Callable[[], Any]] = {
    "confidence": lambda: Confidence(0.02),
    "entropy": lambda: Entropy(-0.5),
    "fallback": lambda: Fallback(0.05),
    "lag-free": lambda: RateOptimal(lag_free(), COST),
    "head": lambda: AcceptanceLength(HeadPredictor(seeded(lambda: AcceptanceHead(32, 1))), 0.7),
}
DRAFTS: dict[str, Callable[[PreTrainedModel], PreTrainedModel]] = {
    "whole": lambda target: make(seed=1, sharpness=3.0),
    "trimmed": lambda target: trimmed(make(seed=1, sharpness=3.0), [1, 3, 4, 8, 9, 20, 30]),
    "states": state_draft,
}
SAMPLINGS = [
    {"temperature": 1.0, "top_k": 5}, {"temperature": 0.7, "top_k": None}, {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 0.0},
]  # fmt: skip


def decoder(length: str, draft: str = "whole", way: str = "drawn", **options: Any) -> SpeculativeDecoder:
    """With models as on a CPU, as on an accelerator, or as there with fixed shapes."""
    target = make(seed=1, sharpness=4.0)
    small = DRAFTS[draft](target)
    models = [of_fixed_shapes(model) if way == "static" else CausalLM(model) for model in (target, small)]
    for model in models:
        if way != "host":
            model.lean = None
        model.reads_drawn = way != "host"
    rule = parse_rule(PLANNED[length]) if length in PLANNED else ASKING[length]()
    return SpeculativeDecoder(*models, length=rule, **options)


def rounds(outputs: list[Generation]) -> tuple[Any, list[float]]:
    """Texts and traces; the ratios."""
    traces = [[(r.drafted, r.path, r.emitted) for r in output.rounds] for output in outputs]
    ratios = [ratio for output in outputs for r in output.rounds for ratio in r.ratios]
    return ([output.tokens for output in outputs], traces), ratios


@pytest.mark.parametrize(
    ("length", "draft", "way"),
    [*((length, "whole", "static") for length in [*PLANNED, *ASKING]), ("4", "whole", "drawn"),
     *((length, draft, "static") for length in ("4", "lag-free") for draft in ("trimmed", "states"))],
)  # fmt: skip
def test_a_seed_gives_the_same_rounds(length: str, draft: str, way: str) -> None:
    """Also where a stop token was drafted and refused: nothing of what follows it was drawn or verified."""
    stops = 0
    for turn, sampling in enumerate(SAMPLINGS):
        for verifier in ("token-wise", "block"):
            found = []
            for each in ("host", way):
                one = decoder(length, draft, each, verifier=verifier)
                one.stop_tokens = frozenset(STOPS)
                found.append(one.generate(PROMPTS, max_new_tokens=24, seed=turn, **sampling))
            (same, ratios), (expected, given) = map(rounds, found)
            assert same == expected
            assert ratios == pytest.approx(given, rel=1e-3)
            stops += sum(bool(STOPS & {*r.drafted}) for output in found[0] for r in output.rounds)
    assert stops > 0 or draft == "trimmed"


@pytest.mark.parametrize("seed", range(3))
def test_planned_and_other_requests_of_several_samplings_share_a_draw(seed: int) -> None:
    found = []
    for way in ("host", "static"):
        one = decoder("4", way=way)
        kinds = [one.config, *(one.configured(length=make_rule()) for make_rule in ASKING.values())]
        samplings = [SamplingParams(**SAMPLINGS[(i + seed) % 4]) for i in range(9)]
        requests = [
            one.new_request(PROMPTS[i % 3], sampling, 16, RandomSource(i), config=kinds[i % 6])
            for i, sampling in enumerate(samplings)
        ]
        one.scheduler.run(requests)
        found.append(rounds([request.output for request in requests])[0])
    assert found[0] == found[1]


@pytest.mark.parametrize("way", ["host", "static"])
@pytest.mark.parametrize("which", ["target", "draft"])
def test_a_model_without_numbers_fails_its_request_alone(which: str, way: str) -> None:
    one = decoder("4", way=way)
    model = one.target if which == "target" else one.drafting.arms(one.config)[0].drafter.model  # type: ignore[attr-defined]
    forward = model.forward

    def failing(cache: Any, reads: Any) -> Any:
        logits, hidden = forward(cache, reads)
        ends = accumulate(read.keep for read in reads)
        for read, end in zip(reads, ends, strict=True):
            if isinstance(read.text, Request) and read.text.prompt == PROMPTS[1] and read.text.output.tokens:
                logits[end - read.keep : end] = float("nan")
        return logits, hidden

    model.forward = failing  # type: ignore[method-assign]
    requests = [one.new_request(p, SamplingParams(1.0, 5), 12, RandomSource(0)) for p in PROMPTS]
    with pytest.raises(InputError, match="NaN"):
        one.scheduler.run(requests)
    assert [type(request.error) for request in requests] == [type(None), InputError, type(None)]


@pytest.mark.parametrize("kind", ["few", "all", "greedy"])
def test_signals_are_the_same_however_they_are_read(kind: str) -> None:
    """As lists, as tensors, and of a trimmed vocabulary.

    Tokens are drawn from few, whose probabilities the host has, from all, or from a point mass.
    """
    generator, index, predictor = torch.Generator().manual_seed(1), NgramIndex([3, 1, 4, 1, 5, 9, 2, 6, 5]), lag_free()
    for place in range(1, 6):
        logits, hidden = (torch.randn(1, size, generator=generator) for size in (64, 32))
        token = int(logits.argmax())
        kept = torch.tensor(sorted({token, *range(0, 64, 3)}))
        excluded = torch.full_like(logits, -torch.inf).index_copy(1, kept, logits[:, kept])
        for own in (logits, excluded):
            q = {"few": own.topk(4).values.softmax(-1), "all": own.softmax(-1), "greedy": torch.ones(1, 1)}[kind]
            listed, match = None if kind == "all" else q[0].tolist(), partial(index.match, [token])
            step = Step(place, token, float(q.max()), q, own, hidden, match, listed=listed)
            one_by_one = step.confidence(), step.top_probability(), step.entropy()
            assert step.signals_tensor()[0].tolist() == pytest.approx(one_by_one, abs=1e-6)
            assert step.signals() == pytest.approx(one_by_one, abs=1e-6)
            longer = torch.nn.functional.pad(step.q, (0, FEW))  # than what is handled as a list
            assert predictor.predict(replace(step, q=longer, listed=None)) == pytest.approx(predictor.predict(step))
        trimmed = replace(step, kept=kept)
        assert trimmed.signals() == pytest.approx(step.signals(), abs=1e-6)
        for other in range(65):
            assert trimmed.unwarped_of(other) == pytest.approx(step.unwarped_of(other), abs=1e-6)


def test_large_tokens_are_read_exactly() -> None:
    """Beside their probabilities, in float32."""
    tokens = torch.tensor([[2**23, 2**24 - 1]])
    assert read_together(torch.tensor([[0.25, 0.75]]), tokens) == [([0.25, 0.75], tokens[0].tolist())]
