"""The model card of a tiny model: facts, data with licences, and how far a draft agrees with the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from specpilot.compare.table import Row, Table
from specpilot.data_gen.acceptance import make_acceptance_data
from specpilot.data_gen.kinds import AcceptanceRow, read_dataset
from specpilot.data_gen.options import AcceptanceDataOptions
from torch import Tensor

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


def agreement_row(rows: Sequence[Tensor]) -> Row:
    """Return a row of a table: the mean of the acceptance probabilities in ``rows``, and the share of them below 0.3.

    Args:
        rows: (T,) those of each prompt.
    """
    a = torch.cat([*rows])
    return {
        "prompts": str(len(rows)),
        "mean a": f"{float(a.mean()):.3f}",
        "share of positions with a < 0.3": f"{float((a < 0.3).float().mean()):.3f}",
    }


def measure_agreement(
    target: Path, draft: Path, held_out: Path, domains: dict[str, str], folder: Path, seed: int
) -> list[Row]:
    """Return the acceptance of a draft at all positions of the target's rollouts, with a row for each domain.

    The sampling has temperature 1 and top-k 50. The acceptance is a = min(1, p(y)/q(y)) for y drawn from the draft.

    Args:
        target, draft: folders of the models.
        held_out: JSON Lines file of the prompts.
        domains: domain of each prompt by the prompt's id.
        folder: folder of the acceptance dataset, which is made or completed.
        seed: seed of the dataset.
    """
    settings = AcceptanceDataOptions(
        target=str(target), draft=str(draft), prompts=str(held_out), max_new_tokens=96, seed=seed
    )
    make_acceptance_data(settings, folder)
    by_domain: dict[str, list[Tensor]] = {}
    for row in read_dataset(folder, AcceptanceRow):
        by_domain.setdefault(domains[row.prompt_id], []).append(torch.tensor(row.p))
    return [{"domain": domain, **agreement_row(rows)} for domain, rows in sorted(by_domain.items())]
