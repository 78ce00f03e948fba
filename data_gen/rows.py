"""Reads rows of text from a local file, a folder of files, or a dataset on the hub."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..common.errors import InputError
from ..common.json_file import blaming, parse_object, read_text

SUFFIXES = (".jsonl", ".json", ".parquet", ".txt")
OTHERS = (".csv", ".tsv", ".xls", ".xlsx", ".arrow", ".feather", ".gz", ".bz2", ".xz", ".zst", ".zip", ".db", ".sqlite")
REMEDY = "give a JSON Lines (.jsonl), Parquet (.parquet) or text (.txt) file"


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


def read_parquet(path: Path, remedy: str) -> list[dict[str, Any]]:
    """The rows of a Parquet file; raises InputError if it cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows: list[dict[str, Any]] = pq.ParquetFile(path).read().to_pylist()
    # OSError without a number: a damaged page; ValueError: a name that is no text; OverflowError: a date out of range.
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise InputError(f"{path}: cannot be read ({os.strerror(error.errno)})") from error
        raise InputError(f"{path}: not a readable Parquet file ({error}); {remedy}") from error
    return rows


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
