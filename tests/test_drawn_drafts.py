"""Chains that are drawn and verified where the models are, by the code of an accelerator on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

import pytest
import torch
from specpilot.common.errors import InputError
from specpilot.controllers.acceptance.lag_free_head import LagFreeHead
from specpilot.controllers.acceptance.specdec_head import AcceptanceHead
from specpilot.controllers.length import (
    AcceptanceLength,
    Confidence,
    Entropy,
    Fallback,
    HeadPredictor,
    LagFreePredictor,
    RateOptimal,
    parse_rule,
)
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.generation import Generation
from specpilot.infer.models import CausalLM
from specpilot.infer.random_source import RandomSource
from specpilot.infer.request import Request
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from .drafts import state_draft, trimmed
from .test_static_forward import of_fixed_shapes
from .tiny import make

READS = {
    getattr(torch.Tensor, name)
    for name in ("tolist", "item", "cpu", "nonzero", "__float__", "__int__", "__bool__", "__index__", "masked_select")
}
STOPS = {3, 8}
PROMPTS = [[1, 2, 3], [4, 5], [6, 1, 6, 1, 6]]


class Reads(TorchFunctionMode):
    """Counts what makes a host wait for an accelerator."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        masks = func is torch.Tensor.__getitem__ and _has_mask(args[1])
        self.count += func in READS or func is torch.nonzero or masks
        return func(*args, **(kwargs or {}))


def _has_mask(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, torch.Tensor) and (part.dtype == torch.bool or part.ndim == 0) for part in parts)


def lag_free() -> LagFreePredictor:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LagFreePredictor(LagFreeHead(32, 4), torch.randn(64, 32), mean=0.6)


def acceptance_head() -> HeadPredictor:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return HeadPredictor(AcceptanceHead(32, 1))


COST = CostModel(0.1, 1.0, 0.0)
PLANNED = {"4": "4", "heuristic": "heuristic:3", "adaptive": "adaptive-length:2"}
ASKING: dict[str, Callable[[], Any]] = {
    "confidence": lambda: Confidence(0.02),
    "entropy": lambda: Entropy(-0.5),
    "fallback": lambda: Fallback(0.05),
    "lag-free": lambda: RateOptimal(lag_free(), COST),
    "head": lambda: AcceptanceLength(acceptance_head(), 0.7),
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


def rounds(outputs: list[Generation]) -> Any:
    """Text and trace; the ratios up to rounding."""
    traces = [[(r.drafted, r.path, r.emitted) for r in output.rounds] for output in outputs]
    ratios = [ratio for output in outputs for r in output.rounds for ratio in r.ratios]
    return [output.tokens for output in outputs], traces, pytest.approx(ratios, rel=1e-3)


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
            assert rounds(found[0])[:2] == rounds(found[1])[:2]
            assert rounds(found[0])[2] == rounds(found[1])[2].expected
            stops += sum(bool(STOPS & {*r.drafted}) for output in found[0] for r in output.rounds)
    assert stops > 0 or draft == "trimmed"


@pytest.mark.parametrize("sampling", SAMPLINGS[:2])
@pytest.mark.parametrize("verifier", ["token-wise", "block"])
@pytest.mark.parametrize("length", [*PLANNED, *ASKING])
def test_reads_by_the_host(
    length: str, verifier: str, sampling: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None while a planned length is drafted, else one a token of the longest draft; one for all verifications."""
    one = decoder(length, way="static", verifier=verifier)
    one.generate(PROMPTS, max_new_tokens=6, seed=0)  # what models check once
    engine = one.scheduler.engine
    drafting: list[int] = []
    propose = engine._propose

    def counted(*arguments: Any) -> Any:
        with Reads() as reads:
            drafts = propose(*arguments)
        longest = max(len(draft.tokens) for draft in drafts.values())
        assert reads.count <= (0 if length in PLANNED else longest)
        drafting.append(reads.count)
        return drafts

    read = engine._verify

    def verified(drafts: Any, p: Any) -> Any:
        with Reads() as reads:
            verdicts = read(drafts, p)
        if all(draft.tokens for draft in drafts.values()):
            assert reads.count == 1
        return verdicts

    monkeypatch.setattr(engine, "_propose", counted)
    monkeypatch.setattr(engine, "_verify", verified)
    step = engine.step

    def whole(requests: Any) -> None:
        with Reads() as reads:
            joining = any(not request.text for request in requests)
            step(requests)
        drawn = all(request.output.rounds and request.output.rounds[-1].drafted for request in requests)
        if not joining and drawn:
            assert reads.count <= drafting[-1] + 1

    monkeypatch.setattr(engine, "step", whole)
    one.generate(PROMPTS, max_new_tokens=16, seed=0, **sampling)
    assert len(drafting) > 3
    assert length in PLANNED or max(drafting) > 1


@pytest.mark.parametrize("which", ["target", "draft"])
def test_a_model_without_numbers_fails_its_request_alone(which: str) -> None:
    one = decoder("4", way="static")
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
