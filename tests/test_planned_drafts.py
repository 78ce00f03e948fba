"""Length heads: what they decide, what they are trained on, and the same inputs in training and in serving."""

from itertools import accumulate
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from specpilot.controllers.acceptance.length_head import HORIZON, Every, LengthHead, Survivals
from specpilot.controllers.length.cost_model import BatchCosts, CostModel
from specpilot.controllers.length.planned import PlannedLength
from specpilot.train.feature_maker import round_examples
from specpilot.train.length_head_module import LengthHeadModule, reached
from specpilot.train.options import LengthHeadTrainingOptions

from .test_rate_optimal import step
from .test_replay import traced

CHEAP, DEAR = CostModel(0.05, 1.0, 0.0, 0.05), CostModel(0.9, 1.0, 0.1)
COSTS = st.builds(CostModel, st.floats(0.01, 0.9), st.just(1.0), st.floats(0.0, 0.1), st.floats(0.0, 0.5))
ACCEPTANCES = st.lists(st.floats(0.0, 1.0), min_size=HORIZON, max_size=HORIZON)


class Foretold:
    """Predicts what it is given."""

    def __init__(self, accept: list[float]) -> None:
        self.given = [*accumulate(accept, lambda a, b: a * b)]

    def __call__(self, rates: list[float], state: torch.Tensor) -> list[float]:
        return self.given


def told(accept: list[float], every: Every, cost: CostModel = CHEAP) -> PlannedLength:
    length = PlannedLength(LengthHead(8, 4), every, 0.6, cost)
    length.survivals = Foretold(accept)  # type: ignore[assignment]
    return length


def planned(length: PlannedLength) -> int:
    """Tokens that the next round drafts."""
    length.see(torch.zeros(8))
    if not length.start_round():
        return 0
    index = 1
    while length.observe(step(index=index)):
        index += 1
    return index


# What is decided


@given(ACCEPTANCES, COSTS)
def test_a_plan_is_the_best_length(accept: list[float], cost: CostModel) -> None:
    """Of the largest gain at the text's rate, or of the most tokens a second; as by trying all."""
    for every in get_args(Every):
        length = told(accept, every, cost)
        tokens = [*accumulate(length.survivals([], torch.empty(0)), initial=1.0)]
        worth = [
            tokens[k] / cost.round(k) if every == "prompt" else tokens[k] - length.rate.value * cost.round(k)
            for k in range(HORIZON + 1)
        ]
        chosen = planned(length)
        assert worth[chosen] == pytest.approx(max(worth), abs=1e-9) or cost.never_pays


def test_plans_follow_costs_and_the_number_of_requests() -> None:
    batch = BatchCosts((1, 8), (CHEAP, DEAR))
    length = told([0.9] * HORIZON, "round").repriced(batch=batch)
    assert isinstance(length, PlannedLength)
    alone = planned(length)
    length.shared_by(8)
    assert (alone > 3, planned(length)) == (True, 0)
    length.start_text()
    length.shared_by(1)
    assert planned(length) == alone
    assert planned(told([0.9] * HORIZON, "prompt", DEAR)) == 0


def test_a_plan_for_a_prompt_stays_and_one_for_a_round_does_not() -> None:
    for every, same in (("prompt", True), ("round", False)):
        length = told([0.95] * HORIZON, every)  # type: ignore[arg-type]
        first = planned(length)
        length.survivals = Foretold([0.0] * HORIZON)  # type: ignore[assignment]
        assert (planned(length) == first) == same
        length.start_text()
        assert planned(length) == 0


def test_survivals_are_those_of_the_head() -> None:
    head, rates, state = LengthHead(8, 16), [0.7, 0.3], torch.linspace(-2, 3, 8)
    expected = torch.sigmoid(head(torch.tensor(rates), state)).cumprod(-1)
    assert Survivals(head)(rates, state) == pytest.approx(expected.tolist(), abs=1e-6)


# Training examples


def test_what_became_of_drafts() -> None:
    *_, text, found = traced()
    examples = round_examples(found)
    kept, decided = examples["kept"], reached(examples["kept"])
    assert kept.shape == (len(text) - 1, HORIZON)
    for row in range(len(text) - 1):
        accepted = 0
        while row + 1 + accepted < len(text) and accepted < HORIZON and found.kept[row + 1 + accepted]:
            accepted += 1
        assert (kept[row] == 1).sum() == accepted
        ends = row + 1 + accepted == len(text) or accepted == HORIZON
        assert decided[row].sum() == accepted + (not ends)
    logits, batch = torch.randn(kept.shape), SimpleNamespace(accept=kept)
    asked, labels = LengthHeadModule.labelled(None, logits, batch)  # type: ignore[arg-type]
    assert torch.equal(asked, logits[decided])
    assert torch.equal(labels.bool(), (kept == 1)[decided])
    assert torch.equal(examples["states"], found.target_states[:-1])
    last = examples["places"] == 1
    assert last.tolist() == [True] + [False] * (len(text) - 2)


def test_outcomes_are_counted_alike_in_training_and_in_serving() -> None:
    *_, found = traced()
    rates, length = round_examples(found)["rates"], told([0.9] * HORIZON, "round")
    for row, kept in enumerate(found.kept[1:-1]):
        assert rates[row].tolist() == pytest.approx(length.outcomes.rates)
        length.end_round(1, int(kept))
    longer, single = (told([0.9] * HORIZON, "round") for _ in range(2))
    longer.end_round(4, 2)  # the fourth token was not decided on
    for accepted in (1, 1, 0):
        single.end_round(1, accepted)
    assert longer.outcomes.rates == single.outcomes.rates


@pytest.mark.parametrize(("every", "known"), [("round", [0, 1, 2, 3, 4]), ("prompt", [0, 0, 0, 3, 3])])
def test_a_plan_knows_what_came_before_it(every: Any, known: list[int]) -> None:
    """For a prompt: what is known before its text's first round."""
    rates, states = torch.rand(5, 2), torch.randn(5, 16)
    examples = {"places": torch.tensor([1, 2, 3, 1, 2]), "rates": rates, "states": states}
    settings = LengthHeadTrainingOptions(data="rounds", every=every)
    found = LengthHeadModule.inputs(settings, examples, torch.empty(0))
    assert [torch.equal(*pair) for pair in zip(found, (rates[known], states[known]), strict=True)] == [True] * 2
