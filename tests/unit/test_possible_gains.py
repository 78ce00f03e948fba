"""The share of the possible gain, on counters whose speed-ups are computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from specpilot.compare.gains import PricedCounts, possible_gains
from specpilot.compare.recorded import Counts
from specpilot.compare.report import document_of
from specpilot.compare.results import PossibleGain
from specpilot.controllers.length import MAX_DRAFT
from specpilot.controllers.length.cost_model import CostModel

from tests.helpers.reports import comparison_report

COST = CostModel(0.25, 1.0, 0.0)  # a draft step takes a quarter of a target forward


def counts(drafted: int, forwards: int) -> Counts:
    """Return the counters of a text of 25 tokens, whose first token and forward belong to the prefill.

    The rounds have drafts of nearly the same length.
    """
    rounds = [0] * (MAX_DRAFT + 1)
    short, longer = divmod(drafted, forwards - 1)
    rounds[short], rounds[short + 1] = forwards - 1 - longer, longer
    return Counts(25, 24 - (forwards - 1), rounds)


# seconds: rule 12 + 24·0.25 = 18, trained 12 + 16·0.25 = 16, informed 10 + 8·0.25 = 12, no drafts 24
RULE, TRAINED, INFORMED = counts(24, 13), counts(16, 13), counts(8, 11)


def test_share_of_the_possible_gain() -> None:
    rules, trained = {"fixed": ([RULE] * 6, COST)}, {"mine": ([TRAINED] * 6, COST)}
    gains = possible_gains(["math"] * 6, rules, trained, ([INFORMED] * 6, COST))
    (gain,) = gains.values()
    assert (gain.prompts, gain.rule, gain.trained) == (6, "fixed", "mine")
    assert (gain.rule_speed, gain.trained_speed, gain.informed) == pytest.approx((24 / 18, 24 / 16, 24 / 12))
    assert gain.share == pytest.approx((24 / 16 - 24 / 18) / (24 / 12 - 24 / 18))
    assert (gain.low, gain.high) == pytest.approx((gain.share, gain.share))  # all prompts are alike


def test_gains_are_those_of_each_domain() -> None:
    """The best rule and the best trained decoder are chosen for each domain."""
    domains = ["math", "code", "math", "code"]
    rules = {"short": ([RULE, TRAINED] * 2, COST), "long": ([TRAINED, RULE] * 2, COST)}
    gains = possible_gains(domains, rules, {"mine": ([RULE, INFORMED] * 2, COST)}, ([INFORMED] * 4, COST))
    assert [*gains] == ["all", "code", "math"]
    assert {name: (gain.rule, gain.prompts) for name, gain in gains.items() if name != "all"} == {
        "code": ("short", 2), "math": ("long", 2),
    }  # fmt: skip
    assert gains["code"].share == pytest.approx(1.0)  # the trained decoder is as fast as the bound
    assert gains["math"].share == pytest.approx((24 / 18 - 24 / 16) / (24 / 12 - 24 / 16))  # slower than the rule
    assert gains["math"].low is None  # too few prompts for an interval


def test_costs_of_a_predictor_count() -> None:
    expensive = replace(COST, t_draft=0.5)
    gains = possible_gains(["math"], {"fixed": ([RULE], COST)}, {"mine": ([TRAINED], expensive)}, ([INFORMED], COST))
    assert gains["math"].trained_speed == pytest.approx(24 / (12 + 16 * 0.5))


@pytest.mark.parametrize(("rules", "trained"), [({}, {"mine": ([TRAINED], COST)}), ({"fixed": ([RULE], COST)}, {})])
def test_no_gain_without_both_kinds_of_decoders(
    rules: dict[str, PricedCounts], trained: dict[str, PricedCounts]
) -> None:
    assert possible_gains(["math"], rules, trained, ([INFORMED], COST)) == {}


def test_steps_of_the_verification_count() -> None:
    """Two tokens are verified in the time of one, and three take two seconds more."""
    cost = replace(COST, t_verify_token=0.5, verify_shape=((1, 1.0), (2, 1.0), (3, 5.0)))
    gains = possible_gains(
        ["math"], {"fixed": ([RULE], cost)}, {"mine": ([TRAINED], cost)}, ([INFORMED], cost)
    )  # fmt: skip
    seconds = [12 * 1.5 + 24 * 0.25 + 12 * 2.0, 12 * 1.5 + 16 * 0.25 + 4 * 2.0, 10 * 1.5 + 8 * 0.25]
    speeds = [24 * 1.5 / each for each in seconds]
    gain = gains["math"]
    assert [gain.rule_speed, gain.trained_speed, gain.informed] == pytest.approx(speeds)
    assert gain.share == pytest.approx((speeds[1] - speeds[0]) / (speeds[2] - speeds[0]))


def test_no_share_where_the_bound_is_not_above_the_rule() -> None:
    gains = possible_gains(["math"], {"fixed": ([INFORMED], COST)}, {"mine": ([TRAINED], COST)}, ([INFORMED], COST))
    assert gains["math"].share is None


def test_the_report_shows_the_shares() -> None:
    gain = PossibleGain(
        prompts=6, rule="fixed 3", rule_speed=1.3, trained="mine", trained_speed=1.4, informed=1.6,
        share=1 / 3, low=0.1, high=0.5,
    )  # fmt: skip
    report = comparison_report({"mine": (1.4, True), "fixed 3": (1.3, False)}, gains={"all": gain})
    text = document_of(report).markdown()
    assert "Share of the possible gain" in text
    assert "| all domains | 6 | fixed 3 1.30 | mine 1.40 | 1.60 | 33% (10% to 50%) |" in text
    assert "possible gain" not in document_of(replace(report, gains={})).markdown()
