"""The tables of the documentation, from the results in docs/results.

A page has ``<!-- results: decode.json -->`` before the tables of that result and ``<!-- end -->`` after them. Between
them are the tables that the command prints, or those of the marker, where it names several results or a part of one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specpilot.common.errors import InputError
from specpilot.common.files import replacing
from specpilot.common.json_file import read_object
from specpilot.compare import ablation_tables, forward
from specpilot.compare.engines import serve, vllm
from specpilot.compare.table import Table
from specpilot.demo_report import decoder_table

from ..micro import spectr, train_scale
from ..real import tables as real_tables
from ..studies import mixing, sweep_tables, trees
from ..workloads import clock, decode, ngram
from . import router_tables, summaries

Result = Mapping[str, Any]
MARKED = re.compile(r"(<!-- results: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
PAGES = (
    "performance.md", "security.md", "cluster.md",
    *(f"results/{name}.md" for name in (
        "data-and-training", "decoding", "predictors", "real-model", "routers", "serving", "trees",
    )),
)  # fmt: skip


def _one(as_table: Callable[..., Table]) -> Callable[..., Sequence[Table]]:
    return lambda *results: [as_table(*results)]


def _main_figures(ablation: Result) -> Sequence[Table]:
    return ablation_tables.as_tables(ablation)[:1]


def _by_rule(ablation: Result) -> Sequence[Table]:
    return ablation_tables.as_tables(ablation)[1:]


TABLES: Mapping[str, Callable[..., Sequence[Table]]] = {
    "demo.json": lambda result: [decoder_table(result["decoders"], result["best"])],
    "decode.json": _one(decode.as_table),
    "sweep.json": sweep_tables.as_tables,
    "mixing.json": _one(mixing.as_table),
    "ablation.json main": _main_figures,
    "ablation.json rules": _by_rule,
    "ablation-greedy.json main": _main_figures,
    "ablation-greedy.json rules": _by_rule,
    "temperatures-0.json temperatures-0.5.json temperatures-1.json": _one(summaries.by_temperature),
    "clock.json": _one(clock.as_table),
    "smollm2.json main": lambda result: real_tables.as_tables(result)[-1:],
    "smollm2.json rules": lambda result: real_tables.as_tables(result)[:-1],
    "smollm2-held-out.json": real_tables.as_tables,
    "smollm2-held-out-bfloat16.json": real_tables.as_tables,
    "smollm2-held-out-int4.json": real_tables.as_tables,
    "smollm2-held-out-rules.json": real_tables.as_tables,
    "smollm2-trees.json": real_tables.as_tables,
    "smollm2-ablation.json": _main_figures,
    "smollm2-ablation-greedy.json": _main_figures,
    "trees.json": trees.as_tables,
    "spectr.json": _one(spectr.as_table),
    "ngram.json": _one(ngram.as_table),
    "ngram-sampled.json": _one(ngram.as_table),
    "serve.json": _one(serve.as_table),
    "serve.json external": lambda result: [serve.as_table(result["external"])],
    "vllm.json": _one(vllm.as_table),
    "router.json router-general.json router-t5.json": _one(router_tables.compared),
    "router-t5.json table 1": _one(router_tables.by_domain("table_1")),
    "router.json table 1": _one(router_tables.by_domain("table_1")),
    "router.json tables 3 and 4": _one(router_tables.by_domain("table_3_4")),
    "router.json table 5": _one(router_tables.by_domain("table_5")),
    "router.json table 6": _one(router_tables.by_domain("table_6")),
    "router.json selection": _one(router_tables.selection),
    "router.json settings": router_tables.settings,
    "faults.json": _one(summaries.faults_by_stage),
    "ray.json": _one(summaries.rates_by_workers),
    "tiny-t5.json": _one(summaries.t5_agreement),
    "forward.json": _one(forward.as_table),
    "forward-shapes.json": _one(forward.as_table),
    "profile-2.json": _one(summaries.profile_parts),
    "batch.json": _one(summaries.rates_by_batch_size),
    "batch-llama.json": _one(summaries.continuous_batching),
    "memory.json": _one(summaries.memory_by_requests),
    "train-scale.json": _one(train_scale.as_table),
}


def files_of(marker: str) -> list[str]:
    """The results that a marker names."""
    return [word for word in marker.split() if word.endswith(".json")]


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
        for table in TABLES[name](*(read_object(results / file, "make it again") for file in files_of(name))):
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
