"""``python -m experiments pages``: the tables of the documentation, from the results in docs/results.

A page has ``<!-- results: demo.json -->`` before the table of that result and ``<!-- end -->`` after them. Between
them is the table that the command prints, or that of the marker, where it names several results or a part of one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specpilot.common.errors import InputError
from specpilot.common.files import replacing
from specpilot.common.json_file import read_object
from specpilot.compare import ablation_tables
from specpilot.compare.engines import serve
from specpilot.compare.interval import show
from specpilot.compare.table import Table
from specpilot.demo_report import decoder_table

from . import train_scale
from .real import decode

Result = Mapping[str, Any]
MARKED = re.compile(r"(<!-- results: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
ROUTERS = ("three specialists", "with the general draft", "`tiny-t5`, two drafts")  # of `compared`, a result each


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


TABLES: Mapping[str, Callable[..., Table]] = {
    "demo.json": lambda result: decoder_table(result["decoders"], result["best"]),
    "ablation.json main": lambda result: ablation_tables.as_tables(result)[0],
    "ablation-greedy.json main": lambda result: ablation_tables.as_tables(result)[0],
    "smollm2.json main": lambda result: decode.as_tables(result)[-1],
    "router.json router-general.json router-t5.json": routers,
    "serve.json": serve.as_table,
    "train-scale.json": train_scale.as_table,
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
        files = [word for word in name.split() if word.endswith(".json")]
        table = TABLES[name](*(read_object(results / file, "make it again") for file in files))
        title = f"{table.title[0].upper()}{table.title[1:]}:\n\n" if table.title else ""
        return f"{begin}\n{title}{table.markdown_rows()}\n\n{end}"

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
