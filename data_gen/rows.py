"""Reads prompts and texts from files, folders, datasets on the hub, and objects in Python.

:func:`read_rows` converts any source to rows, which are dictionaries of columns. :mod:`~.columns` interprets the
columns. CSV and TSV files have the suffix ``.csv`` or ``.tsv``. JSON and Parquet are also recognised by the contents of
a file. The library ``datasets`` reads folders of ``save_to_disk`` and the hub. Text formats are read here, so that
``"NA"`` and ``"007"`` stay text and an error names the line.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from ..common.errors import InputError, listed
from ..common.files import check_no_pointer, split_revision
from ..common.json_file import MAX_BYTES, naming_file, parse_object, read_parquet, read_text

Record: TypeAlias = dict[str, Any]
# A path or a hub id; in Python also a datasets.Dataset, a DatasetDict, or any iterable of rows, texts and
# conversations.
RowSource: TypeAlias = str | Path | Iterable[Any]

# Suffix → kind. In a folder, only files of the first kind that is present are read.
KINDS = {
    ".parquet": "Parquet", ".jsonl": "JSON", ".json": "JSON", ".ndjson": "JSON", ".jsonlines": "JSON",
    ".csv": "CSV", ".tsv": "CSV", ".txt": "text",
}  # fmt: skip
ABOUT = ("dataset_info.json", "dataset_infos.json", "state.json")  # JSON files in a folder that do not contain rows
PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zX", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")  # gzip, bzip2, xz, zstd, zip
QUOTES = 'quote fields that have quotation marks, and double these: "say ""hi"" to him"'
REMEDY = "give a JSON Lines (.jsonl), CSV (.csv), Parquet (.parquet) or text (.txt) file"


def read_rows(source: RowSource, *, split: str = "train") -> list[Record]:
    """Read ``source`` into a list of dictionaries.

    ``source`` is a file of JSON lines or a JSON array, CSV, Parquet or text (``{"text": line}`` for each line
    that is not blank); a folder of files of one kind; a folder by ``save_to_disk``; the id of a dataset on the Hugging
    Face hub (``name`` or ``name:config``); or in Python a ``datasets.Dataset``, a ``DatasetDict``, or an iterable of
    rows, texts or lists of messages. Text is UTF-8, with or without a byte order mark. A local path takes precedence
    over a hub id.

    Args:
        source: the source.
        split: split of a hub dataset or a ``DatasetDict``.

    Raises:
        InputError: the source does not exist, has no rows or no such split, or a line cannot be parsed.
    """
    rows = list(_by_name(str(source), split) if isinstance(source, str | Path) else _in_memory(source, split))
    if not rows:
        raise InputError(f"{name_of(source)}: holds no rows")
    return rows


def name_of(source: RowSource) -> str:
    """Return the name of ``source`` in messages and manifests."""
    return str(source) if isinstance(source, str | Path) else f"<{type(source).__name__}>"


def _by_name(source: str, split: str) -> Iterable[Record]:
    """Return the rows of a file, a folder or a hub dataset.

    Raises:
        InputError: the source does not exist or cannot be read.
    """
    if not source.strip():
        raise InputError(f"prompts={source!r}: is empty; give a file, a folder, a hub dataset id, or 'builtin'")
    path = Path(source).expanduser()
    if path.is_file():
        return _read_file(path)
    if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
        import datasets

        for file in path.rglob("*.arrow"):
            check_no_pointer(file)
        try:
            saved = datasets.load_from_disk(str(path))
        except Exception as error:  # the folder may hold anything
            raise InputError(f"{source}: cannot be read as a folder of save_to_disk ({_line(error)})") from error
        return _in_memory(saved, split, source)
    if path.is_dir():
        return _read_folder(path)
    if source.startswith((".", "/", "~")) or path.suffix in KINDS:
        raise InputError(f"{source}: no such file; give an existing file, a folder, a hub dataset id, or 'builtin'")
    return _read_hub(source, split)


def _in_memory(source: Any, split: str, name: str | None = None) -> Iterator[Record]:
    """Yield the rows of a ``datasets.Dataset``, of a split of a ``DatasetDict``, or of an iterable."""
    name = name or name_of(source)
    if isinstance(source, Mapping):
        if split not in source:
            splits = ", ".join(map(str, source))
            raise InputError(f"{name}: no split {split!r}; it has {splits}: choose one with split (--split)")
        source = source[split]
    if hasattr(source, "iloc") and hasattr(source, "columns"):  # a DataFrame, whose iteration yields names of columns
        if not source.columns.is_unique:
            raise InputError(f"{name}: two columns have the same name; rename one of them")
        source = json.loads(source.to_json(orient="records"))
    if not isinstance(source, Iterable):
        raise InputError(f"{name}: no rows; give a path, a datasets.Dataset, or a list of rows, texts or conversations")
    for number, row in enumerate(source, 1):
        if isinstance(row, Mapping):
            yield dict(row)
        elif isinstance(row, str):
            yield {"text": row}
        elif isinstance(row, list | tuple):
            yield {"messages": list(row)}
        else:
            raise InputError(f"{name}: row {number} is of type {type(row).__name__}; give a dict of columns, or text")


def _read_folder(folder: Path) -> list[Record]:
    """Return the rows of the files of one kind. A line on standard error names the other files.

    Raises:
        InputError: the folder has no file of a supported kind, or a file is damaged.
    """
    paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    if not any(
        path.suffix.lower() in KINDS for path in paths
    ):  # as in a repository of the hub: data/train-00000.parquet
        paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    kinds = {path: KINDS.get(path.suffix.lower()) for path in paths if path.name not in ABOUT}
    kind = next((kind for kind in KINDS.values() if kind in kinds.values()), None)
    if kind is None:
        raise InputError(f"{folder}: the folder holds no {', '.join(KINDS)} file")
    files = [path for path in kinds if kinds[path] == kind]
    if ignored := [str(path.relative_to(folder)) for path in paths if path not in files]:
        print(
            f"{folder}: {kind} files are read ({len(files)}), other files are ignored: {listed(ignored)}",
            file=sys.stderr,
        )
    return [row for file in files for row in _read_file(file)]


def _read_file(path: Path) -> list[Record]:
    """Return the rows of a file.

    Raises:
        InputError: the file cannot be read or parsed.
    """
    start = b""
    with suppress(OSError), path.open("rb") as file:  # the reader of the file reports the error
        start = file.read(4)
    if start.startswith(PACKED):
        raise InputError(f"{path}: is a compressed file; unpack it")
    kind = "Parquet" if start == b"PAR1" else KINDS.get(path.suffix.lower())
    if kind == "Parquet":
        return read_parquet(path, REMEDY)
    text = read_text(path, REMEDY)
    if "\0" in text:
        raise InputError(f"{path}: is a binary file; {REMEDY}")
    if kind == "CSV":
        return _read_table(path, text)
    rows = _json_rows(path, text, required=kind == "JSON")
    return [{"text": line} for line in text.split("\n") if line.strip()] if rows is None else rows


def _json_rows(path: Path, text: str, *, required: bool) -> list[Record] | None:
    """Return the objects of an array, of JSON lines, or a single object.

    Args:
        required: whether the text must be JSON; otherwise the result is None for text that is not JSON.
    """
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        rows = value if isinstance(value, list) else [value]
        if rows and all(isinstance(row, dict) for row in rows):
            return rows
    rows = []
    for number, line in enumerate(text.split("\n"), 1):  # splitlines also splits at U+2028, which JSON allows in text
        if line.strip():
            try:
                with naming_file(f"{path}:{number}", "give one JSON object per line, or an array of them"):
                    rows.append(parse_object(line))
            except InputError:
                if required or rows:
                    raise
                return None
    return rows


def _read_table(path: Path, text: str) -> list[Record]:
    """Return the rows of a CSV file; every value is text. The header determines the separator.

    If a file has tabs and all lines have the columns of the header, each line is a row. A field that begins with a
    quotation mark then does not continue in the next line.
    """
    header = text.partition("\n")[0]
    separator = next((mark for mark in "\t,;" if mark in header), "\t" if path.suffix.lower() == ".tsv" else ",")
    if separator == "\t":
        lines = [line.split("\t") for line in re.split(r"\r\n|\r|\n", text) if line]
        if all(len(line) == len(lines[0]) for line in lines):
            names, *values = [[_unquoted(field) for field in line] for line in lines]
            return [dict(zip(names, row, strict=True)) for row in values]
    csv.field_size_limit(MAX_BYTES)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows: list[Record] = []
    try:
        for row in reader:
            if None in row:
                raise InputError(f"{path}:{reader.line_num}: more values than the header has names; quote separators")
            rows.append(row)
    except csv.Error as error:
        raise InputError(  # line_num is the last line without an error
            f"{path}:{reader.line_num + 1}: not CSV ({error}): the row that begins here has a quotation mark "
            f"outside a quoted field; {QUOTES}"
        ) from None
    return rows


def _unquoted(field: str) -> str:
    """Return a quoted field without quotation marks, in which inner ones are doubled; other fields unchanged."""
    return field[1:-1].replace('""', '"') if re.fullmatch(r'"(?:[^"]|"")*"', field) else field


def _read_hub(source: str, split: str) -> list[Record]:
    """Return the rows of a dataset on the hub.

    Raises:
        InputError: the hub has no such dataset, configuration or split, or cannot be reached.
    """
    import datasets

    from ..models.loading.model_files import query_hub

    hub_id, revision = split_revision(source)
    name, _, config = hub_id.partition(":")
    answer = query_hub(name, dataset=True, revision=revision)
    cached = Path(datasets.config.HF_DATASETS_CACHE) / name.replace("/", "___")
    if isinstance(answer, str) and not cached.is_dir():
        raise InputError(
            f"{source}: no such file or folder, and no dataset on the hub ({answer}); give one of these, or 'builtin'"
        )
    try:
        dataset = datasets.load_dataset(name, config or None, split=split, revision=revision)
    except (OSError, ValueError, RuntimeError) as error:  # not found, no network, wrong config or split
        raise InputError(
            f"{source}: neither a local file or folder nor a reachable hub dataset ({_line(error)})"
        ) from error
    return list(dataset)


def _line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
