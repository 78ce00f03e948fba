"""``specpilot bench stopping``: stopping rules against the optimal policy, computed exactly on a Markov model.

For each cost ratio t_draft / t_v(1) and each kind of observation, the rules are: our one-step rule at its own fixed
point, with the next token's acceptance estimated from the last observed class or as an overall mean; SpecDec++'s
threshold (Huang et al. 2024), the best for that ratio, the best for the paper's ratio, and the paper's own; the best
fixed length; no drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from specpilot.compare.table import Table
from specpilot.controllers.length.cost_model import CostModel

from .markov import MarkovText, Policy, fixed, fixed_point, one_step, stationary, threshold

TRANSITION = ((0.80, 0.15, 0.05), (0.25, 0.50, 0.25), (0.15, 0.35, 0.50))  # easy, medium, hard
ACCEPTANCE = (0.95, 0.70, 0.25)
RATIOS = (0.05, 0.1, 0.21, 0.5, 0.8)
PAPER_RATIO, PAPER_THRESHOLD = 0.21, 0.7
PER_TOKEN = 0.02  # cost of each further verified token, in units of t_v(1)
GRID = tuple(i / 100 for i in range(101))  # thresholds
OBSERVED = {  # name in the results → (whether the class of the next token is known, whether rounds are independent)
    "in hand": (False, False),
    "in hand, rounds exchangeable": (False, True),
    "next": (True, False),
    "next, rounds exchangeable": (True, True),
}


def costs(ratio: float) -> CostModel:
    """The cost model of a ratio, in units of t_v(1)."""
    return CostModel(ratio, 1 - PER_TOKEN, PER_TOKEN)


def bench_stopping(ratios: Sequence[float] = RATIOS, thresholds: Sequence[float] = GRID) -> dict[str, Any]:
    """``rows``: by observation and cost ratio the optimal rate in tokens per t_v(1), and each rule's share of it."""
    rows = []
    for name, (next_known, independent) in OBSERVED.items():
        text = MarkovText(np.array(TRANSITION), np.array(ACCEPTANCE), next_known, independent)
        elsewhere = best_threshold(text, costs(PAPER_RATIO), thresholds)
        rows += [{"seen": name, "ratio": ratio} | shares(text, costs(ratio), thresholds, elsewhere) for ratio in ratios]
    return {
        "transition": TRANSITION, "acceptance": ACCEPTANCE, "per_token": PER_TOKEN, "paper_ratio": PAPER_RATIO,
        "rows": rows,
    }  # fmt: skip


def shares(text: MarkovText, cost: CostModel, thresholds: Sequence[float], elsewhere: float) -> dict[str, float]:
    """One row; ``elsewhere`` is a threshold tuned for other costs."""
    optimal = text.optimal_rate(cost)

    def share(policy: Policy) -> float:
        return text.rate(policy, cost) / optimal

    mean = float(stationary(text.transition) @ text.acceptance)
    h = best_threshold(text, cost, thresholds)
    lengths = {k: share(fixed(k)) for k in range(text.longest + 1)}
    length = max(lengths, key=lambda k: lengths[k])
    return {
        "optimal": optimal,
        "one_step": share(one_step_fixed_point(text, cost)),
        "one_step_mean": share(one_step_fixed_point(text, cost, mean)),
        "best_threshold": share(threshold(h)),
        "threshold": h,
        "threshold_tuned_elsewhere": share(threshold(elsewhere)),
        "paper_threshold": share(threshold(PAPER_THRESHOLD)),
        "best_fixed": lengths[length],
        "fixed": length,
        "autoregressive": lengths[0],
    }


def one_step_fixed_point(text: MarkovText, cost: CostModel, mean: float | None = None) -> Policy:
    """Our rule at the rate that it achieves."""
    highest = (text.longest + 1) / cost.round(0)
    rate = fixed_point(lambda assumed: text.rate(one_step(assumed, text, cost, mean), cost), highest)
    return one_step(rate, text, cost, mean)


def best_threshold(text: MarkovText, cost: CostModel, thresholds: Sequence[float]) -> float:
    """SpecDec++'s threshold h with the highest rate."""
    return max(thresholds, key=lambda h: text.rate(threshold(h), cost))


def as_table(result: dict[str, Any]) -> Table:
    """A row for each observation and cost ratio: the optimal rate, and each rule's share of it."""
    rules = ("one_step", "one_step_mean", "best_threshold", "threshold_tuned_elsewhere", "paper_threshold",
             "best_fixed", "autoregressive")  # fmt: skip
    rows = [
        {"class observed": row["seen"], "t_d / t_v": str(row["ratio"]), "optimal": f"{row['optimal']:.3f}"}
        | {rule.replace("_", " "): f"{row[rule]:.1%}" for rule in rules}
        for row in result["rows"]
    ]
    return Table("", rows)
