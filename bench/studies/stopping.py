"""``specpilot bench stopping``: how near rules of stopping come to the best policy, exactly, on a Markov model.

At each cost ratio t_draft / t_v(1), and for each kind of knowledge: our one-step rule at its own fixed point, knowing ā
of the next token by the class seen last or only on average; the best of all thresholds of SpecDec++ (Huang et al. 2024)
for that ratio, the one that is best at the paper's ratio, and the paper's own; the best fixed length; no drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.table import Table

from ...controllers.length.cost_model import CostModel
from ...simulate.markov import Choice, MarkovText, fixed, fixed_point, one_step, stationary, threshold

TRANSITION = ((0.80, 0.15, 0.05), (0.25, 0.50, 0.25), (0.15, 0.35, 0.50))  # easy, medium, hard
ACCEPTANCE = (0.95, 0.70, 0.25)
RATIOS = (0.05, 0.1, 0.21, 0.5, 0.8)
PAPER_RATIO, PAPER_THRESHOLD = 0.21, 0.7
PER_TOKEN = 0.02  # of t_v(1), for each further token that is verified
GRID = tuple(i / 100 for i in range(101))  # thresholds
KNOWN = {  # what is seen: (class of the next token, rounds exchangeable)
    "in hand": (False, False),
    "in hand, rounds exchangeable": (False, True),
    "next": (True, False),
    "next, rounds exchangeable": (True, True),
}


def costs(ratio: float) -> CostModel:
    """Seconds in units of t_v(1)."""
    return CostModel(ratio, 1 - PER_TOKEN, PER_TOKEN)


def bench_stopping(ratios: Sequence[float] = RATIOS, thresholds: Sequence[float] = GRID) -> dict[str, Any]:
    """``rows``: by what is seen and cost ratio, the optimal rate in tokens per t_v(1), and the rules' shares of it."""
    rows = []
    for seen, (foreseen, fresh) in KNOWN.items():
        text = MarkovText(np.array(TRANSITION), np.array(ACCEPTANCE), foreseen, fresh)
        elsewhere = best_threshold(text, costs(PAPER_RATIO), thresholds)
        rows += [{"seen": seen, "ratio": ratio} | shares(text, costs(ratio), thresholds, elsewhere) for ratio in ratios]
    return {
        "transition": TRANSITION, "acceptance": ACCEPTANCE, "per_token": PER_TOKEN, "paper_ratio": PAPER_RATIO,
        "rows": rows,
    }  # fmt: skip


def shares(text: MarkovText, cost: CostModel, thresholds: Sequence[float], elsewhere: float) -> dict[str, float]:
    """One row; ``elsewhere`` is a threshold tuned for other costs."""
    optimal = text.optimal_rate(cost)

    def share(draft_on: Choice) -> float:
        return text.rate(draft_on, cost) / optimal

    mean = float(stationary(text.transition) @ text.acceptance)
    h = best_threshold(text, cost, thresholds)
    lengths = {k: share(fixed(k)) for k in range(text.longest + 1)}
    length = max(lengths, key=lambda k: lengths[k])
    return {
        "optimal": optimal,
        "one_step": share(at_its_price(text, cost)),
        "one_step_mean": share(at_its_price(text, cost, mean)),
        "best_threshold": share(threshold(h)),
        "threshold": h,
        "threshold_tuned_elsewhere": share(threshold(elsewhere)),
        "paper_threshold": share(threshold(PAPER_THRESHOLD)),
        "best_fixed": lengths[length],
        "fixed": length,
        "autoregressive": lengths[0],
    }


def at_its_price(text: MarkovText, cost: CostModel, mean: float | None = None) -> Choice:
    """Our rule at the price at which it earns what it asks."""
    highest = (text.longest + 1) / cost.round(0)
    price = fixed_point(lambda rate: text.rate(one_step(rate, text, cost, mean), cost), highest)
    return one_step(price, text, cost, mean)


def best_threshold(text: MarkovText, cost: CostModel, thresholds: Sequence[float]) -> float:
    return max(thresholds, key=lambda h: text.rate(threshold(h), cost))


def as_table(result: dict[str, Any]) -> Table:
    rules = (
        "one_step",
        "one_step_mean",
        "best_threshold",
        "threshold_tuned_elsewhere",
        "paper_threshold",
        "best_fixed",
    )
    table = Table("class seen", "t_d / t_v", "optimal", *(rule.replace("_", " ") for rule in rules), "autoregressive")
    for row in result["rows"]:
        cells = [f"{100 * row[rule]:.1f} %" for rule in (*rules, "autoregressive")]
        table.add_row(row["seen"], str(row["ratio"]), f"{row['optimal']:.3f}", *cells)
    return table
