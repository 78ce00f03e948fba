"""The tables of a measurement of a real pair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specpilot.compare.interval import show
from specpilot.compare.table import Table

from .decode import ALL, LLAMA

RATIOS = {
    "ours_over_autoregressive": "over autoregressive",
    "ours_over_best_rule": "over the best rule",
    "worst_over_autoregressive": "over autoregressive on the worst kind",
}
WHERE_MEASURED = {
    "chains_over_autoregressive": "its chains over autoregressive",
    "chains_over_best_rule": "its chains over the best rule",
    "router_over_autoregressive": "the router over autoregressive",
}


def as_tables(result: Mapping[str, Any]) -> list[Table]:
    """Tokens per second of every configuration, and what the trained predictor gains, by engine and temperature."""
    tables, gains = [], []
    for engine, by_temperature in result["tokens_per_second"].items():
        for temperature, by_kind in by_temperature.items():
            place = f"{engine if engine == LLAMA else f'PyTorch, {engine}'}, temperature {float(temperature):g}"
            rows = [
                {"tokens/s": name, **{kind: f"{rates[name]:.1f}" for kind, rates in by_kind.items()}}
                for name in by_kind[ALL]
            ]
            tables.append(Table(place, rows))
            ratios = result["ratios"][engine][temperature]
            if ratios:
                shown = RATIOS | {key: label for key, label in WHERE_MEASURED.items() if key in ratios}
                gains.append({"ours": place} | {label: _shown(ratios.get(key)) for key, label in shown.items()})
    return [*tables, Table("", gains)] if gains else tables


def _shown(ratio: Mapping[str, Any] | None) -> str:
    if ratio is None:
        return ""
    of = ratio.get("rule") or ratio.get("kind")
    return show(ratio, "ratio") + (f", {of}" if of else "")
