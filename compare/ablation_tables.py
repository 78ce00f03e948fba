"""The tables of ``specpilot bench ablation``: speed-ups over autoregressive decoding by eq. 2.3, at several costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..controllers.length.cost_model import CostModel
from .interval import interval, show
from .replay import DomainCounts, Setting, columns, groups_of, rates_of
from .table import Table

THRESHOLD, RATE_OPTIMAL = ", best threshold", ", rate-optimal"
INFORMED = "informed bound"
CONFIDENCES = ("confidence", "cumulative confidence")
ADAPTIVE, BANDIT, ONLINE = "adaptive length", "bandit", "online confidence"
UNTRAINED = ("fixed", *CONFIDENCES, ADAPTIVE, BANDIT, ONLINE + THRESHOLD, ONLINE + RATE_OPTIMAL)
MEASURED = ("best_fixed", "best_confidence", "best_untrained")  # baselines

Counted = Mapping[Setting, DomainCounts]


def speedup(generated: Any, drafted: Any, forwards: Any, *, cost: CostModel) -> Any:
    """Throughput by eq. 2.3 relative to autoregressive decoding."""
    return cost.throughput(generated, drafted, forwards) * cost.round(0)


def counters(counts: DomainCounts, domains: Sequence[str]) -> tuple[Any, Any, Any]:
    """(prompts,) each: generated and drafted tokens and target forwards, without the token of the prefill."""
    generated, drafted, _, forwards = columns(counts, domains)
    return generated - 1, drafted, forwards - 1


@dataclass(frozen=True)
class View:
    """The counters of all settings on some domains, under one cost model.

    Attributes:
        which: index of the cost model, which is the parameter of rate-optimal stopping.
    """

    counted: Counted
    domains: Sequence[str]
    cost: CostModel
    which: int

    def value(self, setting: Setting) -> float:
        """Speed-up of a setting."""
        return float(speedup(*(x.sum() for x in counters(self.counted[setting], self.domains)), cost=self.cost))

    def best(self, *rules: str) -> Setting:
        """The best setting of the rules; rate-optimal stopping is considered only for this cost model."""
        settings = [s for s in self.counted if s[0] in rules and (not _optimal(s[0]) or s[1] == self.which)]
        return max(settings, key=self.value)

    def row(self, rule: str) -> dict[str, Any]:
        """A rule's speed-up with its interval, its rates and its best parameter."""
        setting = self.best(rule)
        generated, drafted, accepted, forwards = columns(self.counted[setting], self.domains)
        values = counters(self.counted[setting], self.domains)
        row = interval(partial(speedup, cost=self.cost), *values).as_dict("speedup")
        row |= rates_of(generated - 1, drafted, accepted, forwards - 1)
        return row if _optimal(rule) else row | {"parameter": setting[1]}

    def compare(self, setting: Setting, baseline: Setting) -> dict[str, float]:
        """Ratio of two settings' throughputs with its interval."""

        def ratio(*sums: Any) -> Any:
            return speedup(*sums[:3], cost=self.cost) / speedup(*sums[3:], cost=self.cost)

        pair = (counters(self.counted[one], self.domains) for one in (setting, baseline))
        return interval(ratio, *(x for values in pair for x in values)).as_dict("ratio")


def _optimal(rule: str) -> bool:
    return rule.endswith(RATE_OPTIMAL)


def summarise(counted: Counted, costs: Mapping[str, CostModel], in_domain: Sequence[str], ours: str) -> dict[str, Any]:
    """The result: ``ratios`` holds the main figures, ``table`` every rule with its interval."""
    groups = groups_of(list(next(iter(counted.values()))), in_domain)
    names = list(dict.fromkeys(name for name, _ in counted))
    result: dict[str, Any] = {"groups": groups, "ours": ours + RATE_OPTIMAL, "ratios": {}, "table": {}}
    for which, (label, cost) in enumerate(costs.items()):
        views = {group: View(counted, domains, cost, which) for group, domains in groups.items()}
        result["table"][label] = {group: {name: view.row(name) for name in names} for group, view in views.items()}
        result["ratios"][label] = {group: _main(view, views["in_domain"], ours) for group, view in views.items()}
    return result


def _main(view: View, in_domain: View, ours: str) -> dict[str, Any]:
    settings = {
        "best_fixed": view.best("fixed"),
        "best_confidence": view.best(*CONFIDENCES),
        "best_untrained": view.best(*UNTRAINED),
        "informed_bound": view.best(INFORMED),
        "ours": view.best(ours + RATE_OPTIMAL),
        # The threshold is tuned on the training domains, as it would be in practice.
        "confidence_tuned_in_domain": in_domain.best(*CONFIDENCES),
    }
    found: dict[str, Any] = {name: view.value(setting) for name, setting in settings.items()}
    gap = found["informed_bound"] - found["best_fixed"]
    found["share_of_the_way"] = (found["ours"] - found["best_fixed"]) / gap if gap > 0 else 0.0
    for against in MEASURED:
        found[f"ours_over_{against}"] = view.compare(settings["ours"], settings[against])
    found["ours_over_its_best_threshold"] = found["ours"] / view.value(view.best(ours + THRESHOLD))
    return found


def as_tables(result: Mapping[str, Any]) -> list[Table]:
    """The main figures, and a table for each cost; figures of single domains are in the JSON only."""
    tables = [_main_table(result["ratios"])]
    for label, by_group in result["table"].items():
        groups = [group for group in ("in_domain", "left_out") if group in by_group]
        rows = [
            {"rule": name, **{group.replace("_", "-"): _cell(by_group[group][name]) for group in groups}}
            for name in by_group[groups[0]]
        ]
        shares = {
            group.replace("_", "-"): f"{result['ratios'][label][group]['share_of_the_way']:.0%}" for group in groups
        }
        rows.append({"rule": "share of the gap between fixed and informed", **shares})
        tables.append(Table(f"speed-up over autoregressive by eq. 2.3, t_draft / t_verify: {label}", rows))
    return tables


def _cell(row: Mapping[str, Any]) -> str:
    parameter = f", at {row['parameter']:g}" if isinstance(row.get("parameter"), int | float) else ""
    return show(row, "speedup", 3) + parameter


def _main_table(ratios: Mapping[str, Any]) -> Table:
    rows = [
        {
            "costs": label,
            "prompts": group.replace("_", "-"),
            "best fixed length": f"{row['best_fixed']:.3f}",
            "best confidence": f"{row['best_confidence']:.3f}",
            "best without training": f"{row['best_untrained']:.3f}",
            "informed bound": f"{row['informed_bound']:.3f}",
            "ours": f"[bold]{row['ours']:.3f}[/bold]",
            "share of the gap": f"{row['share_of_the_way']:.0%}",
            **{
                f"over {against.replace('_', ' ')}": show(row[f"ours_over_{against}"], "ratio", 3)
                for against in MEASURED
            },
            "over its best threshold": f"{row['ours_over_its_best_threshold']:.3f}",
        }
        for label, by_group in ratios.items()
        for group, row in by_group.items()
        if group in ("in_domain", "left_out")
    ]
    return Table("speed-up over autoregressive by eq. 2.3", rows)
