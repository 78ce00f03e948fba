"""What is computed where, without a GPU: tensors of the meta device stand for an accelerator's.

They cannot be read by the host or mixed with the CPU's, so that each read and each mixture is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from specpilot.controllers.acceptance.feature_model import FeatureModel
from specpilot.controllers.acceptance.lag_free_head import LagFreeHead
from specpilot.controllers.acceptance.ngram_index import NgramIndex
from specpilot.controllers.length import (
    AcceptanceLength,
    FeaturePredictor,
    LagFreePredictor,
    LengthController,
    RateOptimal,
    Step,
)
from specpilot.controllers.length.cost_model import CostModel
from specpilot.train.fitting import lightning_devices
from torch.overrides import TorchFunctionMode

HIDDEN, VOCAB = 8, 10
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 5]


class Reads(TorchFunctionMode):
    """Counts ``tolist`` of meta tensors, which gives a half for each element; other reads by the host raise."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.tolist and args[0].is_meta:
            self.count += 1
            return torch.full(args[0].shape, 0.5).tolist()
        return func(*args, **(kwargs or {}))


def predictor(device: str) -> LagFreePredictor:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head, embedding = LagFreeHead(HIDDEN, 4), torch.randn(VOCAB, HIDDEN)
        head.mean.copy_(torch.randn(7))
    return LagFreePredictor(head.to(device), embedding.to(device))


def steps(device: str, *, kind: str) -> list[Step]:
    """A round's tokens, drawn from few tokens, from all, or from a point mass."""
    generator = torch.Generator().manual_seed(1)
    index, found = NgramIndex([*TEXT]), []
    for place in range(1, 6):
        logits = torch.randn(1, VOCAB, generator=generator)
        token = int(logits.argmax())
        q = {"few": logits.topk(4).values.softmax(-1), "all": logits.softmax(-1), "greedy": torch.ones(1, 1)}[kind]
        hidden = torch.randn(1, HIDDEN, generator=generator)
        found.append(
            Step(
                place, token, float(q.max()), q.to(device), logits.to(device), hidden.to(device),
                partial(index.match, [token]),
            )
        )  # fmt: skip
    return found


KINDS = ("few", "all", "greedy")


def test_meta_tensors_catch_what_they_stand_for() -> None:
    meta = torch.ones(2, device="meta")
    with Reads() as reads:
        assert meta.tolist() == [0.5, 0.5]
        for read in (lambda: float(meta.sum()), lambda: bool(meta.any()), meta[0].item, meta.cpu):
            with pytest.raises((RuntimeError, NotImplementedError)):
                read()
        with pytest.raises(RuntimeError):
            _ = meta + torch.ones(2)
    assert reads.count == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [lambda s: RateOptimal(s, CostModel(0.1, 1.0, 0.0)), lambda s: AcceptanceLength(s, 1)])
def test_the_lag_free_head_is_read_once_a_token(
    make: Callable[[LagFreePredictor], LengthController], kind: str
) -> None:
    controller = make(predictor("meta"))
    for again in range(2):  # what a token's embedding comes to is remembered
        assert controller.start_round()
        for count, step in enumerate(steps("meta", kind=kind), 1):
            with Reads() as reads:
                controller.observe(step)
            assert reads.count == 1, (again, count)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prediction_is_the_same_on_the_host_and_on_the_device(kind: str) -> None:
    host, device = predictor("cpu"), predictor("cpu")
    device.on_host = False
    for step in steps("cpu", kind=kind):
        assert device.predict(step) == pytest.approx(host.predict(step), abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_signals_are_the_same_on_the_host_and_on_the_device(kind: str) -> None:
    from specpilot.controllers.acceptance.draft_signals import signals_tensor

    for step in steps("cpu", kind=kind):
        chosen = None if step.probability == 1.0 else torch.tensor(step.probability)
        assert signals_tensor(step.token, chosen, step.q, step.logits).tolist() == pytest.approx(
            step.signals(), abs=1e-6
        )


def test_a_feature_controller_is_read_once_a_token() -> None:
    features = FeaturePredictor(FeatureModel(0.0, 1.0, 1.0, 0.1))
    for kind in KINDS:
        with Reads() as reads:
            features.predict(steps("meta", kind=kind)[0])
        assert reads.count == 1


def test_a_trace_is_predicted_where_the_head_is() -> None:
    """Its states are on the CPU, wherever the models are."""
    cpu = steps("cpu", kind="few")
    signals, ngram_match = [step.signals() for step in cpu], [step.match() for step in cpu]
    hidden, tokens = torch.cat([step.hidden for step in cpu]), [step.token for step in cpu]
    probabilities = predictor("meta").probabilities(signals, ngram_match, hidden, tokens)
    assert (probabilities.device.type, probabilities.shape) == ("meta", (5, 2))
    predictions = predictor("cpu").predict_all(signals, ngram_match, hidden, tokens)
    assert [one.accept for one in predictions] == pytest.approx(
        [predictor("cpu").predict(step).accept for step in cpu], abs=1e-6
    )


@pytest.mark.parametrize(
    ("device", "count", "strategy", "expected"),
    [
        ("cuda", 1, "auto", ("gpu", [0], "auto")), ("cuda:0", 1, "auto", ("gpu", [0], "auto")),
        ("cuda:2", 1, "auto", ("gpu", [2], "auto")), ("cuda:2", 3, "auto", ("gpu", [2, 3, 4], "ddp_spawn")),
        ("cpu", 1, "auto", ("cpu", 1, "auto")), ("cpu", 1, "ddp", ("cpu", 1, "ddp_spawn")),
        ("cpu", 2, "ddp", ("cpu", 2, "ddp_spawn")), ("mps", 1, "auto", ("mps", 1, "auto")),
    ],
)  # fmt: skip
def test_lightning_trains_on_the_devices_that_were_asked_for(
    device: str, count: int, strategy: str, expected: tuple[str, Any, str]
) -> None:
    found = lightning_devices(torch.device(device), count, strategy)
    assert (found["accelerator"], found["devices"], found["strategy"]) == expected
