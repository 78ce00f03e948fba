"""The cost model, alone and by the number of requests; measuring finds the costs of models that take known times."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from specpilot import main as cli
from specpilot.common.errors import InputError
from specpilot.compare.cost import DRAFTED, bench_cost, fit_loop, split_sums, warnings
from specpilot.compare.engines.vllm import DRAFTED as LENGTHS
from specpilot.compare.engines.vllm import fitted
from specpilot.controllers.length import OnlineConfidence, RateOptimal, Step
from specpilot.controllers.length.cost_model import BatchCosts, CostModel
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.costs import step_times, verification_costs
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.generation import Stats
from specpilot.infer.loading.names import load_model
from specpilot.infer.models import CausalLM, language_model

from .clock import time_forwards, timed_pair
from .steps import Known

QUIET = Console(quiet=True)
PROMPTS = [[1, 2, 3], [4, 5]]


KNOWN = (0.010, 0.001), 0.002  # t_v(n) = 10 + n ms, t_draft = 2 ms


def test_throughput_is_equation_2_3() -> None:
    cost = CostModel(t_draft=0.0234, t_verify=0.112, t_verify_token=0.0)  # the paper's machine, §4.2
    stats = Stats(n_generated=100, n_target_forwards=30, n_drafted=90, n_accepted=70, n_discarded=20)
    by_rates = 1 / (0.0234 + 0.0234 * stats.discard_rate + (0.112 - 0.0234) * stats.verification_rate)
    assert cost.throughput(100, 90, 30) == pytest.approx(by_rates)
    split = CostModel(t_draft=0.0134, t_verify=0.102, t_verify_token=0.01)  # another split of the same sums
    assert split.throughput(100, 90, 30) == pytest.approx(by_rates)


def test_known_costs_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    _, *pair = timed_pair(monkeypatch, *KNOWN)
    result = bench_cost(SpeculativeDecoder(*pair), PROMPTS, QUIET, repeats=2, sampling={"max_new_tokens": 30})
    assert result["warnings"] == []
    known = {"t_draft": 0.002, "t_verify": 0.010, "t_verify_token": 0.001}
    assert result["cost"] == pytest.approx(known | {"t_draft_start": 0.0}, abs=1e-12)
    assert {name: result["forward"][name] for name in known} == pytest.approx(known)
    assert result["forward"]["t_v"] == pytest.approx({str(n): 0.010 + 0.001 * n for n in range(1, 22)})
    assert result["forward"]["r_squared"] == result["loop"]["r_squared"] == pytest.approx(1.0)
    assert result["loop"]["measured_over_fitted"] == pytest.approx({str(k): 1.0 for k in DRAFTED})
    # The target's first forward after the draft's takes longer; a text's last round may have no room for a draft.
    _, *pair = timed_pair(monkeypatch, *KNOWN, start=0.003)
    result = bench_cost(SpeculativeDecoder(*pair), PROMPTS, QUIET, repeats=2, sampling={"max_new_tokens": 30})
    assert result["cost"]["t_draft_start"] == pytest.approx(0.003, rel=0.05)
    assert CostModel(**result["cost"]).round(0) == pytest.approx(0.011)


def test_the_predictors_time_belongs_to_a_draft_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, *pair = timed_pair(monkeypatch, *KNOWN)

    class Slow(Known):
        def predict(self, step: Step) -> float:
            clock.now += 0.001
            return super().predict(step)

    predictor, cost = Slow(0.6, mean=0.5), CostModel(0.2, 1.0, 0.0)
    result = bench_cost(
        SpeculativeDecoder(*pair), PROMPTS, QUIET, repeats=1, sampling={"max_new_tokens": 60},
        judge=RateOptimal(predictor, cost),
    )  # fmt: skip
    assert result["cost"]["t_draft"] == pytest.approx(0.003)
    assert result["prediction"]["share_of_draft_step"] == pytest.approx(0.001 / 0.003)


def generation(drafted: int, forwards: int, seconds: float) -> Stats:
    return Stats(n_draft_forwards=drafted, n_target_forwards=forwards, seconds=seconds)


def test_negative_costs_are_clamped_and_reported() -> None:
    """Noise that would make one of the two costs negative leaves the other the best fit to all the time there was."""
    loop, _ = fit_loop([generation(10, 11, 10.0), generation(40, 11, 7.0)])
    assert (loop.per_token, loop.verification(1)) == (0.0, pytest.approx(0.85))
    (warning,) = warnings(loop, 0.0)
    assert "a draft step came out as taking no time; measure again" in warning
    loop, _ = fit_loop([generation(10, 11, 10.0), generation(1, 31, 1.0)])
    assert (loop.per_token, loop.verification(1)) == (0.0, pytest.approx(11 / 40))
    with pytest.raises(InputError, match="every generation ended with its first token"):
        fit_loop([generation(0, 1, 0.0), generation(0, 1, 0.0)])


@pytest.mark.parametrize("per_token", [0.0, 0.4, 1.0, 2.0, 9.0])
def test_the_sums_are_kept_whatever_a_verified_token_costs(per_token: float) -> None:
    loop = CostModel(1.0, 5.0, 0.0)
    for alone in (4.0, 5.0, 6.0):
        cost = split_sums(loop, per_token, alone)
        assert cost.round(0) == min(alone, 5.0)
        assert [cost.round(k) for k in (1, 2, 9)] == pytest.approx([loop.round(k) for k in (1, 2, 9)])
        assert cost.t_verify_token == min(per_token, 1.0)
    assert len(warnings(loop, per_token)) == (per_token > 1)


# What the quick measurement of a pair reads


def test_the_quick_measurement_takes_turns_as_decoding_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target reads one token after another of its own, several after the draft; each draft follows the target."""
    target, *drafts = (language_model(load_model(name)) for name in ("tiny", *["tiny-draft"] * 2))
    last = [target]

    def takes(model: CausalLM, tokens: int) -> float:
        last.append(model)
        if model is target:
            return 0.010 + 0.001 * tokens + 0.003 * (last[-2] is not target)
        return 0.002 + 0.1 * (last[-2] not in (model, target))

    time_forwards(monkeypatch, takes)
    found = step_times(target, [*drafts, None], [5, 6, 7, 8], SamplingParams(), repeats=2)
    assert found.cost.as_dict() == pytest.approx(CostModel(0.002, 0.010, 0.001, 0.003).as_dict())
    assert found.models == pytest.approx([0.002, 0.002, 0.011])


@pytest.mark.parametrize(
    ("t", "expected"),
    [
        ({1: 8.0, 2: 18.0, 3: 24.0, 5: 36.0, 9: 60.0}, CostModel(0.5, 2.0, 6.0, 4.0)),  # other kernels from two tokens
        ({1: 20.0, 2: 21.0, 3: 22.0, 5: 24.0, 9: 28.0}, CostModel(0.5, 19.0, 1.0)),
        ({1: 20.0, 2: 20.0, 3: 20.0, 5: 20.0, 9: 34.0}, CostModel(0.5, 18.6824, 1.3176)),  # the first ones for nothing
        ({1: 20.0, 2: 30.0, 3: 28.0, 5: 20.0, 9: 16.0}, CostModel(0.5, 19.8, 0.2, 2.75)),
        ({1: 20.0, 2: 20.0, 3: 18.0, 5: 18.0, 9: 16.0}, CostModel(0.5, 19.8, 0.2)),  # noise: no token is free
        ({1: 2.0, 2: 8.0, 3: 14.0, 5: 26.0, 9: 50.0}, CostModel(0.5, 0.0, 2.0)),  # a token more costs more than one
    ],
)
def test_costs_of_a_target(t: dict[int, float], expected: CostModel) -> None:
    found = verification_costs(t, 0.5)
    assert found.as_dict() == pytest.approx(expected.as_dict(), abs=1e-4)
    assert found.round(0) == pytest.approx(t[1])


# Costs by the number of requests


CHEAP, DEAR = CostModel(0.05, 1.0, 0.0), CostModel(2.0, 1.0, 0.0)
seconds = st.floats(1e-6, 10.0)
models = st.builds(CostModel, seconds, seconds, seconds)


@given(low=models, high=models, rows=st.integers(1, 200))
def test_between_the_rows_that_were_measured(low: CostModel, high: CostModel, rows: int) -> None:
    costs = BatchCosts((2, 64), (low, high))
    found = costs.at(rows)
    if rows <= 2:
        assert found == low
    elif rows >= 64:
        assert found == high
    else:  # the time of a whole round lies on the line between those of 2 and 64 requests
        line = {
            name: 2 * vars(low)[name] + (rows - 2) / 62 * (64 * vars(high)[name] - 2 * vars(low)[name])
            for name in vars(low)
        }
        if high.t_draft >= high.t_verify:  # drafts do not pay with 64 requests, and so not here
            line |= {"t_draft": line["t_verify"], "t_verify_token": 0.0}
        assert {name: rows * cost for name, cost in vars(found).items()} == pytest.approx(line)


def test_files(tmp_path: Path) -> None:
    costs = BatchCosts((1, 8), (CHEAP, DEAR))
    file = tmp_path / "cost.json"
    file.write_text(json.dumps({"cost": CHEAP.as_dict(), "batch": costs.as_dict()}))
    assert BatchCosts.load(file) == costs
    file.write_text(json.dumps({"cost": CHEAP.as_dict()}))
    assert BatchCosts.load(file) is None
    negative = CHEAP.as_dict() | {"t_draft": -1}
    for wrong in (*({rows: CHEAP.as_dict()} for rows in ("one", "²", "9" * 5000)), {"1": negative}, [], {}):
        file.write_text(json.dumps({"batch": wrong}))
        with pytest.raises(InputError, match=r"cost\.json.*measure again"):
            BatchCosts.load(file)


@pytest.mark.parametrize(
    ("times", "rows", "expected"),
    [
        ([5.0, 7.0, 7.5, 8.5], 1, CostModel(0.5, 5.0, 0.0, 1.5)),
        ([10.0, 19.0, 27.0, 43.0], 1, CostModel(10.0, 10.0, 0.0)),  # 1.7 tokens in 1.9 times the time
        ([10.0, 16.0, 27.0, 43.0], 1, CostModel(10.0, 10.0, 0.0)),  # in 1.6 times: a gain of 6 %
        ([10.0, 15.0, 20.0, 43.0], 4, CostModel(2.5, 2.5, 0.0)),  # 13 %, too little for requests that share rounds
        ([10.0, 14.0, 15.0, 17.0], 4, CostModel(0.25, 2.5, 0.0, 0.75)),
    ],
)
def test_drafts_are_priced_where_some_length_pays(times: list[float], rows: int, expected: CostModel) -> None:
    assert LENGTHS == (0, 1, 2, 4)
    assert fitted(times, 0.7, rows).as_dict() == pytest.approx(expected.as_dict())
    assert fitted([10.0, 15.0, 20.0, 43.0], 0.7, 1).t_draft > 0.0


@pytest.mark.parametrize("kind", [RateOptimal, OnlineConfidence])
@pytest.mark.parametrize("dear", [DEAR, CostModel(0.7, 0.7, 0.0)])
def test_a_full_batch_drafts_nothing_and_an_empty_one_does_again(dear: CostModel, kind: type) -> None:
    """Where a token is at least as dear as a round not even one that is certain would pay: there are no probes."""
    given: dict[str, Any] = {"cost": CHEAP, "batch": BatchCosts((1, 64), (CHEAP, dear))}
    rule = RateOptimal(Known(0.99, mean=0.99), **given) if kind is RateOptimal else OnlineConfidence(**given)
    rule.start_text()
    for rows, drafts in ((1, True), (64, False), (1, True)):
        for _ in range(300):
            rule.shared_by(rows)
            assert rule.start_round() == drafts
            if drafts:
                rule.end_round(4, 4)


def test_what_a_text_earns_alone_says_nothing_about_a_full_round() -> None:
    """Alone, tokens come so fast that at 16 requests no draft would seem to pay."""
    alone, shared = CostModel(0.01, 1.0, 0.0), CostModel(0.5, 1.0, 0.0)
    rule = RateOptimal(Known(0.8, mean=0.8), alone, batch=BatchCosts((1, 16), (alone, shared)))
    assert rule.rate.value * shared.per_token > 1.0
    rule.start_text()
    rule.shared_by(16)
    assert rule.start_round()


def test_measured_costs_are_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "cost.json"
    words = ["bench", "cost", "--limit", "1", "--max-new-tokens", "8", "--repeats", "1", "--output", str(file)]
    assert cli.main(words) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result == json.loads(file.read_text())
    assert CostModel.load(file).as_dict() == result["cost"]
