"""``python -m experiments pages``: the tables of the documentation, from the results in docs/results.

A page has ``<!-- results: demo.json -->`` before the tables of that result and ``<!-- end -->`` after them. Between
them are the tables that the command prints, or those of the marker, where it names several results or a part of one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specpilot.common.errors import InputError
from specpilot.common.files import replacing
from specpilot.common.json_file import read_object
from specpilot.compare import ablation_tables
from specpilot.compare.engines import serve, vllm
from specpilot.compare.interval import show
from specpilot.compare.table import Table
from specpilot.demo_report import decoder_table

from . import forward, profile, ray_kills, train_scale
from .real import tables as real_tables
from .studies import mixing, sweep_tables

Result = Mapping[str, Any]
MARKED = re.compile(r"(<!-- results: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
ROUTERS = ("three specialists", "with the general draft", "`tiny-t5`, two drafts")  # of `compared`, a result each
ABLATIONS = ("ablation", "ablation-greedy", "smollm2-ablation", "smollm2-ablation-greedy")
MEASURED = ("-held-out", "-held-out-bfloat16", "-held-out-int4", "-held-out-rules", "-trees")


@dataclass(frozen=True, kw_only=True)
class PagesOptions:
    """Documentation.

    Attributes:
        docs: Folder of the pages, with the results in its folder results.
    """

    docs: Path = Path("docs")


def routers(*results: Result) -> Table:
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
            {"figure": name} | {column: cell(result) for column, result in zip(ROUTERS, results, strict=True)}
            for name, cell in figures.items()
        ],
    )


def router_by_domain(name: str) -> Callable[[Result], Table]:
    """A table of the paper: what chooses × domains, with an autoregressive arm where the paper's has both."""

    def table(result: Result) -> Table:
        found = result["tables"][name]
        rows = found.get("with autoregressive", found)["rows"]
        return Table("", [_chooser(chooser, cells) for chooser, cells in rows.items()])

    return table


def _chooser(name: str, cells: Mapping[str, Any]) -> dict[str, str]:
    shown = {domain: show(cell, "speedup") for domain, cell in cells.items() if domain != "average"}
    return {"chooses": name, **shown, "average": f"{cells['average']:.2f}"}


def router_selection(result: Result) -> Table:
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


def router_settings(result: Result) -> Sequence[Table]:
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


def _one(as_table: Callable[..., Table]) -> Callable[..., Sequence[Table]]:
    return lambda *results: [as_table(*results)]


TABLES: Mapping[str, Callable[..., Sequence[Table]]] = {
    "demo.json": lambda result: [decoder_table(result["decoders"], result["best"])],
    "sweep.json": sweep_tables.as_tables,
    "mixing.json": _one(mixing.as_table),
    **{f"{name}.json main": lambda result: ablation_tables.as_tables(result)[:1] for name in ABLATIONS},
    **{f"{name}.json rules": lambda result: ablation_tables.as_tables(result)[1:] for name in ABLATIONS},
    **{f"smollm2{name}.json": real_tables.as_tables for name in MEASURED},
    "smollm2.json main": lambda result: real_tables.as_tables(result)[-1:],
    "smollm2.json rules": lambda result: real_tables.as_tables(result)[:-1],
    "serve.json": _one(serve.as_table),
    "serve.json external": lambda result: [serve.as_table(result["external"])],
    "vllm.json": _one(vllm.as_table),
    "router.json router-general.json router-t5.json": _one(routers),
    "router-t5.json table 1": _one(router_by_domain("table_1")),
    "router.json table 1": _one(router_by_domain("table_1")),
    "router.json tables 3 and 4": _one(router_by_domain("table_3_4")),
    "router.json table 5": _one(router_by_domain("table_5")),
    "router.json table 6": _one(router_by_domain("table_6")),
    "router.json selection": _one(router_selection),
    "router.json settings": router_settings,
    "ray.json": _one(ray_kills.rates_by_workers),
    "tiny-t5.json": _one(t5_agreement),
    "forward.json": _one(forward.as_table),
    "forward-shapes.json": _one(forward.as_table),
    "profile-2.json": _one(profile.as_table),
    "train-scale.json": _one(train_scale.as_table),
}


def filled(page: str, results: Path) -> str:
    """``page`` with every marked table as the results in the folder ``results`` have it.

    Raises:
        InputError: a marker names a result that has no tables.
    """

    def tables(match: re.Match[str]) -> str:
        begin, name, end = match.groups()
        if name not in TABLES:
            raise InputError(f"<!-- results: {name} -->: no tables; those with tables are {', '.join(TABLES)}")
        parts = []
        files = [word for word in name.split() if word.endswith(".json")]
        for table in TABLES[name](*(read_object(results / file, "make it again") for file in files)):
            parts += [f"{table.title[0].upper()}{table.title[1:]}:"] if table.title else []
            parts.append(table.markdown_rows())
        return f"{begin}\n" + "\n\n".join(parts) + f"\n\n{end}"

    return MARKED.sub(tables, page)


def fill_pages(docs: Path) -> list[Path]:
    """Fill the tables of the pages in ``docs``; return those that changed."""
    changed = []
    for page in sorted(docs.rglob("*.md")):
        before = page.read_text(encoding="utf-8")
        after = filled(before, docs / "results")
        if after != before:
            with replacing(page) as temporary:
                temporary.write_text(after, encoding="utf-8")
            changed.append(page)
    return changed


def main(options: PagesOptions) -> None:
    """Write the results of docs/results into the tables of the documentation."""
    for page in fill_pages(options.docs):
        print(page)
