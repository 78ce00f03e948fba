"""The one reader of prompts and texts: the built-in prompts, a file, a folder of files, or a dataset on the hub.

:func:`read_rows` turns any source into rows, dictionaries of columns; what a format's rows look like is decided there.
:func:`load_prompts` takes prompts from them, and :mod:`~.documents` texts to train drafts on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.errors import InputError
from ..common.json_file import blaming, parse_object, read_parquet, read_text
from .builtin import FILES, builtin_prompts

BUILTIN_SPLITS = ("train", "validation", "test")
SUFFIXES = (".jsonl", ".json", ".parquet", ".txt")
OTHERS = (".csv", ".tsv", ".xls", ".xlsx", ".arrow", ".feather", ".gz", ".bz2", ".xz", ".zst", ".zip", ".db", ".sqlite")
REMEDY = "give a JSON Lines (.jsonl), Parquet (.parquet) or text (.txt) file"


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


def read_rows(source: str, *, split: str = "train") -> list[dict[str, Any]]:
    """Read ``source`` into a list of dictionaries.

    ``source`` is a JSON Lines, Parquet or text file (a text file gives ``{"prompt": line}`` for each line that is not
    blank), a folder of such files, or the id of a dataset on the Hugging Face hub (``name`` or ``name:config``). Text
    is UTF-8, with or without a byte order mark. A local path takes precedence over a hub id.

    Raises:
        InputError: the source does not exist, has no rows, or a line cannot be parsed.
    """
    if not source.strip():
        raise InputError(f"prompts={source!r}: empty; give a file, a folder, a hub dataset id, or 'builtin'")
    path = Path(source).expanduser()
    if path.is_file():
        rows = _read_file(path)
    elif path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix in SUFFIXES)
        if not files:
            raise InputError(f"{source}: the folder holds no {', '.join(SUFFIXES)} file")
        rows = [row for file in files for row in _read_file(file)]
    elif source.startswith((".", "/", "~")) or path.suffix in SUFFIXES:
        raise InputError(f"{source}: no such file; give an existing file, a folder, a hub dataset id, or 'builtin'")
    else:
        rows = _read_hub(source, split)
    if not rows:
        raise InputError(f"{source}: holds no rows")
    return rows


def _read_file(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return read_parquet(path, REMEDY)
    if path.suffix.lower() in OTHERS:
        raise InputError(f"{path}: {path.suffix} files are not supported; {REMEDY}")
    text = read_text(path, REMEDY)
    if "\0" in text:
        raise InputError(f"{path}: a binary file; {REMEDY}")
    if path.suffix in (".jsonl", ".json"):
        return list(_json_lines(path, text.split("\n")))  # splitlines would also cut at U+2028, which JSON allows
    return [{"prompt": line} for line in text.split("\n") if line.strip()]


def _json_lines(path: Path, lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        with blaming(f"{path}:{number}", "give one JSON object per line"):
            row = parse_object(line)
        yield row


def _read_hub(source: str, split: str) -> list[dict[str, Any]]:
    import datasets

    from ..infer.loading.model_files import hub_problem

    name, _, config = source.partition(":")
    problem = hub_problem(name, dataset=True)
    cached = Path(datasets.config.HF_DATASETS_CACHE) / name.replace("/", "___")
    if problem is not None and not cached.is_dir():
        raise InputError(
            f"{source}: no such file or folder, and no dataset on the hub ({problem}); give one of these, or 'builtin'"
        )
    try:
        dataset = datasets.load_dataset(name, config or None, split=split)
    except (OSError, ValueError, RuntimeError) as error:  # not found, no network, wrong config or split
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{source}: neither a local file or folder nor a reachable hub dataset ({reason})") from error
    return list(dataset)
