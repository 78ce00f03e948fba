"""The tables of the documentation, from the results in docs/results.

A page has ``<!-- results: decode.json -->`` before the tables of that result and ``<!-- end -->`` after them. Between
them are the tables that the command prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specpilot.bench.micro import forward, spectr, train_scale
from specpilot.bench.studies import ablation_tables, mixing, sweep_tables, trees
from specpilot.bench.table import Table
from specpilot.bench.workloads import clock, decode, ngram, serve, vllm
from specpilot.controllers.errors import InputError
from specpilot.controllers.json_file import read_object
from specpilot.data_gen.dataset import replacing
from specpilot.demo_report import decoder_table

Result = Mapping[str, Any]
MARKED = re.compile(r"(<!-- results: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
PAGES = ("results.md", "performance.md")


def _one(as_table: Callable[[Any], Table]) -> Callable[[Any], Sequence[Table]]:
    return lambda result: [as_table(result)]


TABLES: Mapping[str, Callable[[Any], Sequence[Table]]] = {
    "demo.json": lambda result: [decoder_table(result["decoders"], result["best"])],
    "decode.json": _one(decode.as_table),
    "sweep.json": sweep_tables.as_tables,
    "mixing.json": _one(mixing.as_table),
    "ablation.json": ablation_tables.as_tables,
    "ablation-greedy.json": ablation_tables.as_tables,
    "clock.json": _one(clock.as_table),
    "trees.json": trees.as_tables,
    "spectr.json": _one(spectr.as_table),
    "ngram.json": _one(ngram.as_table),
    "ngram-sampled.json": _one(ngram.as_table),
    "serve.json": _one(serve.as_table),
    "vllm.json": _one(vllm.as_table),
    "forward.json": _one(forward.as_table),
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
        for table in TABLES[name](read_object(results / name, "make it again")):
            parts += [f"{table.title[0].upper()}{table.title[1:]}:"] if table.title else []
            parts.append(table.markdown_rows())
        return f"{begin}\n" + "\n\n".join(parts) + f"\n\n{end}"

    return MARKED.sub(tables, page)


def fill_pages(docs: Path) -> list[Path]:
    """Fill the tables of the pages in ``docs``; return those that changed."""
    changed = []
    for page in (docs / name for name in PAGES):
        before = page.read_text(encoding="utf-8")
        after = filled(before, docs / "results")
        if after != before:
            with replacing(page) as temporary:
                temporary.write_text(after, encoding="utf-8")
            changed.append(page)
    return changed
