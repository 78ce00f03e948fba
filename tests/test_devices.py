"""What is computed where, without a GPU: tensors of the meta device stand for an accelerator's.

They cannot be read by the host or mixed with the CPU's, so that each read and each mixture is an error.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from specpilot.controllers.acceptance.feature_model import FeatureModel
from specpilot.controllers.acceptance.lag_free_head import LagFreeHead
from specpilot.controllers.acceptance.ngram_index import NgramIndex
from specpilot.controllers.acceptance.step import FEW
from specpilot.controllers.length import (
    FeaturePredictor,
    LagFreePredictor,
    RateOptimal,
    Step,
)
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.distribution import TokenDistribution, read_together
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


def on_meta() -> LagFreePredictor:
    """Tables are the host's wherever the head is; they cannot be made of meta tensors."""
    found = predictor("cpu")
    assert found.tables.size == VOCAB
    found.state_weight = found.state_weight.to("meta")
    return found


def steps(device: str, *, kind: str) -> list[Step]:
    """A round's tokens, drawn from few tokens, whose probabilities the host has, from all, or from a point mass."""
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
                partial(index.match, [token]), listed=None if kind == "all" else q[0].tolist(),
            )
        )  # fmt: skip
    return found


KINDS = ("few", "all", "greedy")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reads_state", [True, False])
def test_a_controller_reads_once_a_token(reads_state: bool, kind: str) -> None:
    features = FeaturePredictor(FeatureModel(0.0, 1.0, 1.0, 0.1))
    controller = RateOptimal(on_meta() if reads_state else features, CostModel(0.1, 1.0, 0.0))
    assert controller.start_round()
    for step in steps("meta", kind=kind):
        with Reads() as reads:
            controller.observe(step)
        assert reads.count == (reads_state or kind != "few")


@pytest.mark.parametrize("kind", KINDS)
def test_signals_and_predictions_are_the_same_from_lists_and_from_tensors(kind: str) -> None:
    found = predictor("cpu")
    for step in steps("cpu", kind=kind):
        one_by_one = step.confidence(), step.top_probability(), step.entropy()
        assert step.signals_tensor()[0].tolist() == pytest.approx(one_by_one, abs=1e-6)
        assert step.signals() == pytest.approx(one_by_one, abs=1e-6)
        longer = torch.nn.functional.pad(step.q, (0, FEW))  # than what is handled as a list
        assert found.predict(replace(step, q=longer, listed=None)) == pytest.approx(found.predict(step), abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_signals_of_a_trimmed_vocabulary(kind: str) -> None:
    """The softmax over the kept tokens is that over all, the others being excluded."""
    for step in steps("cpu", kind=kind):
        kept = torch.tensor(sorted({step.token, *range(0, VOCAB, 3)}))
        excluded = torch.full_like(step.logits, -torch.inf)
        excluded[:, kept] = step.logits[:, kept]
        whole, trimmed = replace(step, logits=excluded), replace(step, logits=excluded, kept=kept)
        assert trimmed.signals() == pytest.approx(whole.signals(), abs=1e-6)
        assert trimmed.unwarped_entropy == pytest.approx(whole.unwarped_entropy, abs=1e-6)
        for token in range(VOCAB + 1):
            assert trimmed.unwarped_of(token) == pytest.approx(whole.unwarped_of(token), abs=1e-6)


def test_a_distribution_is_read_once() -> None:
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(0))
    host = TokenDistribution.from_logits(SamplingParams(top_k=4), logits)
    with Reads() as reads:
        listed = TokenDistribution.from_logits(SamplingParams(top_k=4), logits.to("meta")).lists
    assert reads.count == 1
    assert listed is not None
    assert [len(row) for row, _ in listed] == [4, 4]
    assert host.tokens is not None
    assert read_together(host.probabilities, host.tokens + 2**23) == [
        (row, [token + 2**23 for token in tokens]) for row, tokens in host.lists or []
    ]


def test_a_trace_is_predicted_where_the_head_is() -> None:
    """Its states are on the CPU, wherever the models are."""
    cpu = steps("cpu", kind="few")
    signals, ngram_match = [step.signals() for step in cpu], [step.match() for step in cpu]
    hidden, tokens = torch.cat([step.hidden for step in cpu]), [step.token for step in cpu]
    probabilities = predictor("meta").probabilities(signals, ngram_match, hidden, tokens)
    assert (probabilities.device.type, probabilities.shape) == ("meta", (5,))


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
    found = lightning_devices(torch.device(device), count, 1, strategy)
    assert (found["accelerator"], found["devices"], found["strategy"]) == expected
    assert lightning_devices(torch.device(device), count, 2, strategy) == found | {
        "num_nodes": 2, "strategy": "ddp_spawn"
    }  # fmt: skip
