"""Short tables of the documentation from results that are printed in another form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specpilot.compare.table import Table

from ..workloads.batch import CONTINUOUS, FIXED, LEAVING

Result = Mapping[str, Any]
COLUMNS = ("SIGKILL", "SIGTERM", "SIGINT")
RATE_OPTIMAL = ", rate-optimal"
READINGS = 8  # rows of the table of memory


def t5_agreement(result: Result) -> Table:
    """How the drafts of ``tiny-t5`` agree with it, by task."""
    rows = [
        {
            "draft": row["draft"],
            "task": row["task"],
            "prompts from": row["origin"],
            "prompts": str(row["prompts"]),
            "mean a": f"{row['overlap']:.3f}",
            "share of positions with a < 0.3": f"{row['hard']:.3f}",
        }
        for row in result["agreement"]
    ]
    return Table("", rows)


def faults_by_stage(result: Result) -> Table:
    """How often each stage met the faults of ``specpilot bench faults``, and how many cases held."""
    stages: dict[str, list[dict[str, Any]]] = {}
    for row in result["table"]:
        stages.setdefault(row["stage"], []).append(row)
    return Table("", [_stage(stage, cases) for stage, cases in stages.items()])


def _stage(stage: str, cases: list[dict[str, Any]]) -> dict[str, str]:
    counts = dict.fromkeys((*COLUMNS, "other faults", "mixed requests"), 0)
    for case in cases:
        fault = "mixed requests" if case["fault"].endswith("mixed requests") else case["fault"]
        counts[fault if fault in counts else "other faults"] += case["attempts"]
    shown = {name: f"{count:,}" if count else "" for name, count in counts.items()}
    return {"stage": stage, **shown, "cases held": f"{sum(case['held'] for case in cases)} of {len(cases)}"}


def by_temperature(*results: Result) -> Table:
    """Speed-ups of predictors by the temperatures they were trained at and that of decoding."""
    rows = []
    for result in results:
        for cost, groups in result["ratios"].items():
            for group in ("in_domain", "left_out"):
                table = result["table"][cost][group]
                trained = {
                    name.removesuffix(RATE_OPTIMAL): f"{row['speedup']:.3f}"
                    for name, row in table.items()
                    if name.startswith("trained") and name.endswith(RATE_OPTIMAL)
                }
                rows.append(
                    {
                        "temperature": f"{result['settings']['temperature']:g}",
                        "t_draft / t_verify": cost,
                        "prompts": group.replace("_", "-"),
                        **trained,
                        "best without training": f"{groups[group]['best_untrained']:.3f}",
                    }
                )
    return Table("", sorted(rows, key=lambda row: (-float(row["t_draft / t_verify"]), float(row["temperature"]))))


def profile_parts(result: Result) -> Table:
    """What the decoder's parts take, the longest first."""
    rows = [
        {
            "part": label,
            "share of wall time": f"{part['share']:.1%}",
            "calls": f"{part['calls']:,}",
            "µs per call": f"{part['microseconds']:.0f}",
        }
        for label, part in result["parts"].items()
        if part["share"] >= 0.001
    ]
    return Table("", [*rows, {"part": "everything else", "share of wall time": f"{result['rest_share']:.1%}"}])


def rates_by_batch_size(result: Result) -> Table:
    """Tokens per second by draft length and number of prompts that are decoded together."""
    return Table(
        "tokens per second",
        [
            {"draft length": name.removeprefix("fixed-")} | {size: f"{rate:.0f}" for size, rate in rates.items()}
            for name, rates in result["tokens_per_second"].items()
        ],
    )


def continuous_batching(result: Result) -> Table:
    """Continuous batching beside fixed batches; ratios are those of the passes."""
    rows = [
        {
            "draft length": "0" if name == "autoregressive" else name.removeprefix("fixed-"),
            "continuous": f"{rates[CONTINUOUS]:.0f}",
            "fixed batches that rows leave": f"{rates[LEAVING]:.0f}",
            "continuous over it": f"{rates['ratio_leaving']:.2f}",
            "fixed batches": f"{rates[FIXED]:.0f}",
            "continuous over them": f"{rates['ratio']:.2f}",
        }
        for name, rates in result["continuous"]["tokens_per_second"].items()
    ]
    return Table("tokens per second", rows)


def memory_by_requests(result: Result) -> Table:
    """The first reading, some between, and the last."""
    readings = result["readings"]
    places = sorted({round(i * (len(readings) - 1) / (READINGS - 1)) for i in range(READINGS)})
    rows = [
        {
            "requests": f"{reading['requests']:,}",
            "resident MiB": f"{reading['resident_mib']:.0f}",
            "live tensors": str(reading["tensors"]),
        }
        for reading in (readings[place] for place in places)
    ]
    return Table("", rows)


def rates_by_workers(result: Result) -> Table:
    """Rows a second by number of workers."""
    rates = result["rows_per_second"].items()
    return Table("", [{"workers": count, "rows per second": f"{rate:.1f}"} for count, rate in rates])
