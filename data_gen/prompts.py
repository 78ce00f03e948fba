"""Prompts by name: the built-in prompts, a local file or folder, or a dataset on the hub."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from ..common.errors import InputError
from .builtin import FILES, builtin_prompts
from .rows import read_rows

BUILTIN_SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class PromptRow:
    """One prompt. ``id`` is unique in its source; ``domain`` groups prompts in reports."""

    id: str
    domain: str
    prompt: str


def load_prompts(
    source: str,
    *,
    column: str = "prompt",
    split: str = "train",
    limit: int | None = None,
    skip: int = 0,
    domains: Sequence[str] | None = None,
) -> list[PromptRow]:
    """Prompts of ``source`` in its order, without duplicates.

    Args:
        source: ``builtin``, ``builtin-large`` (2,000 prompts of each of its domains), ``builtin-copy`` (prompts
            that invite copying, 200 in each of the splits ``train`` and ``test``), a JSON Lines, Parquet or text file,
            a folder of such, or a hub dataset id.
        column: the column that holds the prompt. Columns ``id`` and ``domain`` are used if present.
        split: split of the built-in prompts (train, validation, test) or of a hub dataset; local files have none.
        limit: maximum number of prompts.
        skip: number of prompts to skip first.
        domains: take only prompts of these domains.

    Raises:
        InputError: the source, the column or the split does not exist, or a prompt is empty or not text.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit={limit}: must be at least 1")
    if source in FILES:
        if split not in BUILTIN_SPLITS:
            raise InputError(f"split={split!r}: the built-in prompts have {', '.join(BUILTIN_SPLITS)}")
        prompts = [PromptRow(p.id, p.domain, p.prompt) for p in builtin_prompts(source) if p.split == split]
    else:
        rows = read_rows(source, split=split)
        prompts = []
        for number, row in enumerate(rows, 1):
            if column not in row:
                raise InputError(f"{source}: row {number} has no column {column!r}; it has {', '.join(sorted(row))}")
            text = row[column]
            if not isinstance(text, str) or not text.strip():
                raise InputError(f"{source}: row {number}: the prompt is empty or not text: {text!r}")
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            prompts.append(PromptRow(str(row.get("id", digest)), str(row.get("domain", "all")), text))
    unique = list({p.prompt: p for p in reversed(prompts)}.values())[::-1]
    if len({p.id for p in unique}) < len(unique):
        raise InputError(f"{source}: the column 'id' repeats an id; ids name the rollouts and must be unique")
    if domains is not None:
        known = {p.domain for p in unique}
        for domain in domains:
            if domain not in known:
                raise InputError(f"domains: no prompt of {domain!r} in {source}; it has {', '.join(sorted(known))}")
        unique = [p for p in unique if p.domain in domains]
    if skip >= len(unique):
        raise InputError(
            f"skip={skip}: {source} has {len(unique)} prompts, so none is left; skip fewer, or give more prompts"
        )
    return unique[skip:][:limit]


def fingerprint(prompts: list[PromptRow]) -> str:
    """SHA-256 over ids and texts, in order."""
    digest = hashlib.sha256()
    for p in prompts:
        digest.update(f"{p.id}\0{p.prompt}\0".encode())
    return digest.hexdigest()
