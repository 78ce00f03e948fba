"""A controller of another paper, written with public extension points: decisions, training, export and decoding."""

import json
from itertools import accumulate
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from specpilot.cli import main as cli
from specpilot.controllers.acceptance.training import ROUND_TOKENS, Batch, Examples, network_logits
from specpilot.controllers.length.cost_model import BatchCosts, CostModel
from specpilot.controllers.registry import USER_MODULES
from specpilot.train.feature_maker import round_examples

from experiments.rivals.block_pilot import (
    Every,
    LengthHead,
    PlannedLength,
    Survivals,
    TrainingOptions,
    decided,
    inputs,
    outcome_rates,
    predictions,
)

from ..helpers.printed import printed_arguments
from ..helpers.steps import step
from ..helpers.traces import traced_text

NAME = "experiments.rivals.block_pilot:Config"
CHEAP, EXPENSIVE = CostModel(0.05, 1.0, 0.0, 0.05), CostModel(0.9, 1.0, 0.1)
COSTS = st.builds(CostModel, st.floats(0.01, 0.9), st.just(1.0), st.floats(0.0, 0.1), st.floats(0.0, 0.5))
ACCEPTANCES = st.lists(st.floats(0.0, 1.0), min_size=ROUND_TOKENS, max_size=ROUND_TOKENS)


class FixedSurvivals:
    """Returns predictions that the test sets."""

    def __init__(self, accept: list[float]) -> None:
        self.survivals = [*accumulate(accept, lambda a, b: a * b)]

    def __call__(self, rates: list[float], state: torch.Tensor) -> list[float]:
        return self.survivals


def planned_length(accept: list[float], every: Every, cost: CostModel = CHEAP) -> PlannedLength:
    length = PlannedLength(LengthHead(8, 4), every, 0.6, cost)
    length.survivals = FixedSurvivals(accept)  # type: ignore[assignment]
    return length


def planned(length: PlannedLength) -> int:
    """Return the number of tokens that the next round drafts."""
    length.read_target(torch.zeros(8))
    if not length.start_round():
        return 0
    index = 1
    while length.observe(step(index=index)):
        index += 1
    return index


# What is decided


@given(ACCEPTANCES, COSTS)
def test_a_plan_is_the_best_length(accept: list[float], cost: CostModel) -> None:
    """The plan has the largest gain at the text's rate, or the most tokens per second, of all lengths."""
    for every in get_args(Every):
        length = planned_length(accept, every, cost)
        tokens = [*accumulate(length.survivals([], torch.empty(0)), initial=1.0)]
        worth = [
            tokens[k] / cost.round(k) if every == "prompt" else tokens[k] - length.rate.value * cost.round(k)
            for k in range(ROUND_TOKENS + 1)
        ]
        chosen = planned(length)
        assert worth[chosen] == pytest.approx(max(worth), abs=1e-9) or cost.never_pays


def test_plans_follow_costs_and_the_number_of_requests() -> None:
    batch = BatchCosts((1, 8), (CHEAP, EXPENSIVE))
    length = planned_length([0.9] * ROUND_TOKENS, "round").with_costs(batch=batch)
    assert isinstance(length, PlannedLength)
    single_length = planned(length)
    length.shared_by(8)
    assert (single_length > 3, planned(length)) == (True, 0)
    length.start_text()
    length.shared_by(1)
    assert planned(length) == single_length
    assert planned(planned_length([0.9] * ROUND_TOKENS, "prompt", EXPENSIVE)) == 0


def test_a_plan_for_a_prompt_stays_and_one_for_a_round_does_not() -> None:
    for every, same in (("prompt", True), ("round", False)):
        length = planned_length([0.95] * ROUND_TOKENS, every)  # type: ignore[arg-type]
        first = planned(length)
        length.survivals = FixedSurvivals([0.0] * ROUND_TOKENS)  # type: ignore[assignment]
        assert (planned(length) == first) == same
        length.start_text()
        assert planned(length) == 0


def test_survivals_are_those_of_the_head() -> None:
    head, rates, state = LengthHead(8, 16), [0.7, 0.3], torch.linspace(-2, 3, 8)
    expected = torch.sigmoid(head(torch.tensor(rates), state)).cumprod(-1)
    assert Survivals(head)(rates, state) == pytest.approx(expected.tolist(), abs=1e-6)


# Training examples


def test_outcomes_of_drafts() -> None:
    *_, text, trace = traced_text()
    examples = round_examples(trace)
    outcomes, is_decided = examples.kept, decided(examples.kept)
    assert outcomes.shape == (len(text) - 1, ROUND_TOKENS)
    for row in range(len(text) - 1):
        accepted = 0
        while row + 1 + accepted < len(text) and accepted < ROUND_TOKENS and trace.kept[row + 1 + accepted]:
            accepted += 1
        assert (outcomes[row] == 1).sum() == accepted
        ends = row + 1 + accepted == len(text) or accepted == ROUND_TOKENS
        assert is_decided[row].sum() == accepted + (not ends)
    head, options = LengthHead(8, 4), TrainingOptions(data="rounds")
    batch = Batch((torch.rand(len(outcomes), 2), torch.randn(len(outcomes), 8)), outcomes, 0, len(outcomes))
    labels, predicted = predictions(head, batch, options)
    assert torch.equal(predicted["head"], network_logits(head, batch)[is_decided])
    assert torch.equal(labels.bool(), (outcomes == 1)[is_decided])
    assert torch.equal(examples.states, trace.target_states[:-1])
    last = examples.places == 1
    assert last.tolist() == [True] + [False] * (len(text) - 2)


def test_outcomes_are_counted_alike_in_training_and_in_serving() -> None:
    *_, trace = traced_text()
    examples, length = round_examples(trace), planned_length([0.9] * ROUND_TOKENS, "round")
    rates = outcome_rates(examples.places, examples.kept)
    for row, accepted in enumerate(trace.kept[1:-1]):
        assert rates[row].tolist() == pytest.approx(length.outcomes.rates)
        length.end_round(1, int(accepted))
    longer, single = (planned_length([0.9] * ROUND_TOKENS, "round") for _ in range(2))
    longer.end_round(4, 2)  # the fourth token was not decided on
    for accepted in (1, 1, 0):
        single.end_round(1, accepted)
    assert longer.outcomes.rates == single.outcomes.rates


@pytest.mark.parametrize(("every", "known_lengths"), [("round", [0, 1, 2, 3, 4]), ("prompt", [0, 0, 0, 3, 3])])
def test_a_plan_knows_what_came_before_it(every: Any, known_lengths: list[int]) -> None:
    """A plan for a prompt only uses data from before the first round of its text."""
    places, outcomes = torch.tensor([1, 2, 3, 1, 2]), torch.tensor([1, 0, 1, 0, 1]).unsqueeze(1)
    examples = Examples(torch.rand(5), torch.randn(5, 16), places=places, kept=outcomes)
    planned_inputs = inputs(examples, TrainingOptions(data="rounds", every=every))
    rates = outcome_rates(places, outcomes)
    assert len(set(map(tuple, rates.tolist()))) == 4  # of each text's first round the same
    assert [
        torch.equal(*pair)
        for pair in zip(planned_inputs, (rates[known_lengths], examples.states[known_lengths]), strict=True)
    ] == [True] * 2


# The commands


def test_from_data_to_decoding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A controller is trained, exported and used by its name. Modules that are not named are not imported."""
    data, run, controller = (str(tmp_path / name) for name in ("data", "run", "controller"))
    assert cli.main(["data", "acceptance", "--limit", "12", "--max-new-tokens", "8", "--output", data]) == 0
    words = ["--data", data, "--epochs", "1", "--traced", "2", "--validation-fraction", "0.3", "--width", "4"]
    assert cli.main(["train", "acceptance", "--predictor", NAME, *words, "--output", run]) == 0
    capsys.readouterr()
    assert cli.main(["export", run, controller, "--predictor", NAME]) == 0
    USER_MODULES.clear()  # as in a new process
    printed = printed_arguments(capsys.readouterr().out)
    assert printed[-4:-1] == [f"{NAME}:{controller}", "--cost", "auto"]
    assert cli.main([*printed, "--max-new-tokens", "4"]) == 0
    words = ["generate", "What is 2 plus 3?", "--max-new-tokens", "8", "--seed", "1", "--json"]
    capsys.readouterr()
    for length in (f"{NAME}:{controller}", controller):  # named once, it is known
        assert cli.main([*words, "--length", length, "--cost", "0.05"]) == 0
        assert json.loads(capsys.readouterr().out)["stats"]["n_drafted"] > 0
    assert cli.main([*words, "--length", f"{NAME}:{controller}"]) == 2
    assert "give costs" in capsys.readouterr().err
    USER_MODULES.clear()
    assert cli.main([*words, "--length", controller, "--cost", "0.05"]) == 2
    assert "length-head" in capsys.readouterr().err
    assert cli.main(["export", run, str(tmp_path / "other")]) == 2
    assert f"--predictor {NAME}" in capsys.readouterr().err
