"""Rows of text from where users keep them: a local file, a folder of files, or a dataset on the hub."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..controllers.errors import InputError

SUFFIXES = (".jsonl", ".json", ".parquet", ".txt")


def read_rows(source: str, *, split: str = "train") -> list[dict[str, Any]]:
    """Read ``source`` into a list of dictionaries.

    ``source`` is a JSON Lines, Parquet or text file (a text file gives ``{"prompt": line}`` for each line that is not
    blank), a folder of such files, or the id of a dataset on the Hugging Face hub (``name`` or ``name:config``).
    A local path wins over a hub id of the same name.

    Raises:
        InputError: the source does not exist, holds nothing, or a line of it cannot be parsed.
    """
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
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
            return rows
        except pa.ArrowInvalid as error:
            raise InputError(f"{path}: not a readable Parquet file ({error})") from error
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from error
    if path.suffix in (".jsonl", ".json"):
        return list(_json_lines(path, text.split("\n")))  # splitlines would also cut at U+2028, which JSON allows
    return [{"prompt": line} for line in text.split("\n") if line.strip()]


def _json_lines(path: Path, lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}:{number}: not JSON ({error.msg}); one object a line is expected") from error
        if not isinstance(row, dict):
            raise InputError(f"{path}:{number}: a JSON object is expected, this is a {type(row).__name__}")
        yield row


def _read_hub(source: str, split: str) -> list[dict[str, Any]]:
    import datasets

    from ..infer.loading import hub_problem

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
