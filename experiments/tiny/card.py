"""The model card of a tiny model: facts, data with licences, and tables of what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors.torch import load_file
from specpilot.compare.table import Row, Table

from .corpus import Document, count_sources

HELD_OUT = "One row in twenty of each source, chosen by a hash of its id, was held out."


def write_card(
    folder: Path,
    name: str,
    pipeline: str,
    about: str,
    facts: Sequence[str],
    read: list[Document],
    tables: Mapping[str, tuple[str, Sequence[Row]]],
) -> None:
    """Write ``README.md`` into the model's folder.

    Args:
        pipeline: its pipeline tag on the hub.
        about: first paragraph.
        facts: items of a list.
        read: the documents it was trained on.
        tables: by heading, what a table holds, and its rows.
    """
    count = sum(tensor.numel() for file in folder.glob("*.safetensors") for tensor in load_file(file).values())
    sources = [
        {"source": source, "licence": licence, "rows": str(rows)} for source, licence, rows in count_sources(read)
    ]
    lines = [
        *("---", "license: apache-2.0", "library_name: transformers", f"pipeline_tag: {pipeline}", "---", ""),
        *(f"# {name}", "", about, "", f"* parameters: {count:,}, stored in bfloat16", *(f"* {fact}" for fact in facts)),
    ]
    for heading, (text, rows) in {"Training text": (HELD_OUT, sources), **tables}.items():
        if rows:
            lines += ["", f"## {heading}", "", text, "", Table("", rows).markdown_rows()]
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
