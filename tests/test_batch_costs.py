"""Costs by the number of requests: the table, a controller that goes by it, and the measurement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specpilot import SpeculativeDecoder
from specpilot import main as cli
from specpilot.common.errors import InputError
from specpilot.controllers.length import RateOptimal
from specpilot.controllers.length.cost_model import BatchCosts, CostModel
from specpilot.controllers.length.priced import PricedController
from specpilot.infer.batch_costs import DRAFTED, batch_costs, fitted
from specpilot.serve.options import ServeOptions
from specpilot.serve.server import Server, drafting_by_load

from .steps import Known

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


@given(slope=st.floats(0, 0.2), fixed=st.floats(0.5, 1), first=st.floats(0, 0.05))
def test_the_line_through_the_times_with_drafts_is_found_again(slope: float, fixed: float, first: float) -> None:
    times = [fixed - first, *(fixed + slope * k for k in DRAFTED[1:])]
    found = fitted(times, 0.9, 1)
    assert [found.round(k) for k in DRAFTED] == pytest.approx(times, abs=1e-9)


def test_where_no_length_pays_a_token_is_as_dear_as_a_round() -> None:
    paying = fitted([5.0, 7.0, 7.5, 8.5], 0.7, 1)
    assert paying.as_dict() == pytest.approx(CostModel(0.5, 5.0, 0.0, 1.5).as_dict())
    assert DRAFTED == (0, 1, 2, 4)
    assert fitted([10.0, 19.0, 27.0, 43.0], 0.7, 1) == CostModel(10.0, 10.0, 0.0)  # 1.7 tokens in 1.9 times the time
    assert fitted([10.0, 16.0, 27.0, 43.0], 0.7, 1) == CostModel(10.0, 10.0, 0.0)  # 1.7 in 1.6 times: a gain of 6 %
    assert fitted([10.0, 15.0, 20.0, 43.0], 0.7, 1).t_draft > 0.0


def test_requests_that_share_rounds_draft_only_for_a_larger_gain_and_pay_their_share() -> None:
    times = [10.0, 15.0, 20.0, 43.0]  # 1.7 tokens in 1.5 times the time: a gain of 13 %
    assert fitted(times, 0.7, 4) == CostModel(2.5, 2.5, 0.0)
    paying = fitted([10.0, 14.0, 15.0, 17.0], 0.7, 4)
    assert paying.as_dict() == pytest.approx(CostModel(0.25, 2.5, 0.0, 0.75).as_dict())


def test_a_full_batch_drafts_nothing_and_an_empty_one_does_again() -> None:
    rule = RateOptimal(Known([0.8] * 20, mean=0.8), CHEAP, batch=BatchCosts((1, 64), (CHEAP, DEAR)))
    rule.start_text()
    for rows, drafts in ((1, True), (64, False), (1, True)):
        for _ in range(40):  # no probes either: not even a token that is certain would pay
            rule.shared_by(rows)
            assert rule.start_round() == drafts
            if drafts:
                rule.end_round(4, 4)


def test_what_a_text_earns_alone_says_nothing_about_a_full_round() -> None:
    """Alone, tokens come so fast that at 16 requests no draft would seem to pay."""
    alone, shared = CostModel(0.01, 1.0, 0.0), CostModel(0.5, 1.0, 0.0)
    rule = RateOptimal(Known([0.8] * 20, mean=0.8), alone, batch=BatchCosts((1, 16), (alone, shared)))
    assert rule.rate.value * shared.per_token > 1.0
    rule.start_text()
    rule.shared_by(16)
    assert rule.start_round()


def test_requests_of_a_list_share_rounds() -> None:
    rule = RateOptimal(Known([0.8] * 20, mean=0.8), CHEAP, batch=BatchCosts((1, 2), (CHEAP, DEAR)))
    decoder = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length=rule)
    alone = decoder.generate("What is 12?", max_new_tokens=12)
    assert alone.stats.n_drafted > 0
    together = decoder.generate(["What is 12?"] * 2, max_new_tokens=12, seed=[0, 0])
    assert all(one.stats.n_drafted == 0 for one in together)


def test_rounds_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "cost.json"
    words = ["bench", "cost", "--limit", "1", "--max-new-tokens", "8", "--repeats", "1", "--batch", "[1,3]"]
    assert cli.main([*words, "--output", str(file)]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result == json.loads(file.read_text())
    assert CostModel.load(file).as_dict() == result["cost"]
    costs = BatchCosts.load(file)
    assert costs is not None
    assert costs.rows == (1, 3)
    for name in ("tiny-lag-free", "online-confidence"):
        decoder = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length=name, cost=str(file), max_running=4)
        drafting_by_load(decoder, str(file))
        assert isinstance(decoder.length, PricedController)
        assert decoder.length.batch == costs
        server = Server(decoder, ServeOptions(length=name))
        server.reload()
        assert isinstance(decoder.length, PricedController)
        assert decoder.length.batch == costs
        drafting_by_load(decoder, "auto")  # costs that adapt do without them
        assert decoder.length.batch == costs
        assert decoder.scheduler.running == []
    with pytest.raises(InputError, match="at most 4 requests"):
        batch_costs(decoder, (8,))
