"""Tables of the documentation from the results of ``specpilot bench router``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specpilot.compare.interval import show
from specpilot.compare.table import Table

Result = Mapping[str, Any]
COLUMNS = ("three specialists", "with the general draft", "`tiny-t5`, two drafts")  # of `compared`, a result each


def compared(*results: Result) -> Table:
    """The main figures of several results, side by side."""
    figures: dict[str, Callable[[Result], str]] = {
        "selection accuracy where domains differ": lambda r: f"{r['selection_accuracy']:.1%}",
        "throughput against the best draft of each domain": lambda r: show(
            r["throughput_vs_best_arm_interval"], "ratio", 3
        ),
        "the same by the cost model": lambda r: f"{r['throughput_vs_best_arm_cost_model']:.3f}",
        "best single draft on the mixture, × autoregressive": lambda r: show(r["mixture"]["best_single"], "ratio", 3),
        "router": lambda r: show(r["mixture"]["router"], "ratio", 3),
        "best single draft, adaptive length": lambda r: show(r["mixture"]["best_single_and_length"], "ratio", 3),
        "router, adaptive length": lambda r: show(r["mixture"]["router_and_length"], "ratio", 3),
        "loss where no draft of a pair helps": lambda r: (
            "no such domain" if r["autoregressive_loss"] is None else f"{r['autoregressive_loss']:.1%}"
        ),
        "share of the router in the wall time": lambda r: f"{r['overhead_share']:.2%}",
    }
    return Table(
        "",
        [
            {"figure": name} | {column: cell(result) for column, result in zip(COLUMNS, results, strict=True)}
            for name, cell in figures.items()
        ],
    )


def by_domain(name: str) -> Callable[[Result], Table]:
    """A table of the paper: what chooses × domains, with an autoregressive arm where the paper's has both."""

    def table(result: Result) -> Table:
        found = result["tables"][name]
        rows = found.get("with autoregressive", found)["rows"]
        return Table("", [_chooser(chooser, cells) for chooser, cells in rows.items()])

    return table


def _chooser(name: str, cells: Mapping[str, Any]) -> dict[str, str]:
    shown = {domain: show(cell, "speedup") for domain, cell in cells.items() if domain != "average"}
    return {"chooses": name, **shown, "average": f"{cells['average']:.2f}"}


def selection(result: Result) -> Table:
    """Selection methods on the same features."""
    rows = [
        {
            "chooses": name,
            "accuracy": f"{row['accuracy']:.1%}",
            "expected reward": f"{row['reward']:.3f}",
            "regret": f"{row['regret']:.3f}",
            "× autoregressive": show(row, "speedup"),
        }
        for name, row in result["selection"].items()
    ]
    return Table("", rows)


def settings(result: Result) -> Sequence[Table]:
    """By number of training prompts, by α, and by draft length and temperature."""
    tables = result["tables"]
    prompts = {
        "× autoregressive": {f"{row['examples']}": f"{row['speedup']:.2f}" for row in tables["figure_3"]},
        "selection accuracy": {f"{row['examples']}": f"{row['selection_accuracy']:.1%}" for row in tables["figure_3"]},
    }
    alpha = {
        arm: {f"{row['alpha']:g}": f"{row['shares'][arm]:.0%}" for row in tables["figure_2"]}
        for arm in tables["figure_2"][0]["shares"]
    }
    alpha["× autoregressive"] = {f"{row['alpha']:g}": f"{row['speedup']:.2f}" for row in tables["figure_2"]}
    lengths, temperatures = tables["tables_11_12"], tables["tables_13_14"]
    names = [name for name in next(iter(lengths.values()))["rows"] if name != "autoregressive"]
    others = {
        name: {f"K = {length}": f"{found['rows'][name]['average']:.2f}" for length, found in lengths.items()}
        | {f"T = {temperature}": f"{found[name]['speedup']:.2f}" for temperature, found in temperatures.items()}
        for name in names
    }
    heads = {"training prompts": prompts, "α": alpha, "chooses": others}
    return [Table("", [{head: name} | cells for name, cells in rows.items()]) for head, rows in heads.items()]
