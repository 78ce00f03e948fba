"""Validated reading of files: every problem is an InputError with the file's name and a remedy.

:func:`read_object` reads a JSON or YAML object, :func:`build` makes a dataclass from it and checks every value.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from reprlib import repr as short
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from .errors import InputError, did_you_mean, is_finite

MAX_BYTES = 256 * 2**20  # larger files are refused
MAX_YAML = 256 * 2**10  # characters; PyYAML takes some 200 bytes and 5 µs for each
ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # perhaps of a character whose other half follows
EXPECTED: dict[Any, str] = {
    **{bool: "true or false", int: "a whole number", float: "a finite number", str: "text", Path: "a path"},
    **{list: "a list", tuple: "a list", dict: "an object of keys and values"},
}

T = TypeVar("T")


def read_text(file: str | Path, remedy: str) -> str:
    """The text of a UTF-8 file, without a byte order mark.

    Raises:
        InputError: the file does not exist, cannot be read, is too large or is not UTF-8.
    """
    path = Path(file).expanduser()
    try:
        if path.is_dir():
            raise InputError(f"{file}: is a folder, where a file is expected; {remedy}")
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{file}: {path.stat().st_size} bytes, more than {MAX_BYTES}; {remedy}")
        return path.read_text(encoding="utf-8-sig")
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{file}: no such file; {remedy}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not UTF-8 text (byte {error.start}); {remedy}") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{file}: cannot be read ({reason})") from error


def check_characters(value: object, name: str = "") -> None:
    """Refuse half a character in any text of a JSON value, also in a key: no encoding has it, and libraries fail.

    Raises:
        InputError: naming the text's place below ``name``.
    """
    waiting, seen = [(name, value)], set[int]()  # YAML's aliases may form a circle
    while waiting:
        place, one = waiting.pop()
        if isinstance(one, str) and (half := re.search(r"[\ud800-\udfff]", one)):
            raise InputError(
                f"{place or 'text'}: character {half.start() + 1} is {half[0]!a}: half of a character, or a byte "
                "that is not UTF-8; give whole characters"
            )
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Mapping):
            waiting += [(f"{place}.{key}".lstrip("."), entry) for key, entry in one.items()]
            waiting += [(f"key {key!a}", key) for key in one]
        elif isinstance(one, list | tuple):
            waiting += [(f"{place}.{i}".lstrip("."), entry) for i, entry in enumerate(one)]


def parse_json(text: str) -> Any:
    """Parse ``text`` as JSON; raises InputError if it is malformed or holds half a character."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON ({error})") from None
    if ESCAPED_HALF.search(text):
        check_characters(found)
    return found


def parse_yaml(text: str) -> Any:
    """Parse ``text`` as YAML; raises InputError if it is malformed or too long, has a key twice or half a character."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # untyped
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            pairs = node.value if isinstance(node, yaml.MappingNode) else ()  # others are refused below
            keys = Counter((key.tag, key.value) for key, _ in pairs if isinstance(key, yaml.ScalarNode))
            if twice := [key for (_, key), count in keys.items() if count > 1]:
                raise ValueError(f"the key {twice[0]!r} is there twice")
            return super().construct_mapping(node, deep)  # type: ignore[no-any-return]

    if len(text) > MAX_YAML:
        raise InputError(f"{len(text)} characters of YAML, more than {MAX_YAML}")
    try:
        found = Loader(text).get_single_data()
    # Values such as 2020-13-45 and !!int '' raise whatever their conversion raises.
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError, LookupError, AttributeError) as error:
        raise InputError(f"not YAML ({' '.join(str(error).split())})") from None
    if ESCAPED_HALF.search(text):
        check_characters(found)
    return found


def read_object(file: str | Path, remedy: str, parse: Callable[[str], Any] = parse_json) -> dict[str, Any]:
    """The JSON object in ``file``.

    Args:
        remedy: end of the error message.
        parse: parser of the text; raises InputError if it is malformed.

    Raises:
        InputError: see :func:`read_text`; or the text is malformed or not an object.
    """
    text = read_text(file, remedy)
    with blaming(file, remedy):
        return parse_object(text, parse)


def parse_object(text: str, parse: Callable[[str], Any] = parse_json) -> dict[str, Any]:
    """Parse ``text`` as an object of keys and values; raises InputError if it is not one."""
    found = parse(text)
    if not isinstance(found, dict):
        raise InputError(f"an object of keys and values is expected, not {_kind_of(found)}")
    return found


def read_parquet(path: Path, remedy: str) -> list[dict[str, Any]]:
    """The rows of a Parquet file.

    Raises:
        InputError: the file cannot be read, or is none.
    """
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


@contextmanager
def blaming(file: str | Path, remedy: str) -> Iterator[None]:
    """Prepend the name of ``file`` to an InputError raised in the block, and append ``remedy`` if it has none."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{file}: {error}" + ("" if "; " in str(error) else f"; {remedy}")) from error


def build(kind: type[T], value: object, name: str = "", *, ignore_unknown: bool = False) -> T:
    """Convert a JSON value, path or tuple to ``kind``: a dataclass of numbers, text, lists, dictionaries and unions.

    Args:
        ignore_unknown: leave out unknown keys of dataclasses instead of refusing them.

    Raises:
        InputError: a value has another type or is not finite, or a key is unknown or missing.
    """
    return cast(T, _build(kind, value, name, ignore_unknown))


def _build(  # noqa: PLR0911 - a line for each form a type has
    kind: Any, value: Any, name: str, ignore_unknown: bool
) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if is_dataclass(kind):
        return _build_dataclass(kind, value, name, ignore_unknown)
    if origin in (Union, UnionType):
        return _build_union(arguments, value, name, ignore_unknown)
    if origin is Literal and value in arguments:
        return value
    if origin in (list, tuple) and isinstance(value, list | tuple):
        return origin(_build(arguments[0], element, f"{name}[{i}]", ignore_unknown) for i, element in enumerate(value))
    if origin is dict and isinstance(value, Mapping):
        return {key: _build(arguments[1], element, f"{name}.{key}", ignore_unknown) for key, element in value.items()}
    if kind is float and _is_finite_number(value):
        return value
    if kind in (bool, int, str) and type(value) is kind:
        return value
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    if kind is str and isinstance(value, Path):  # a folder, whatever ships or is on the hub
        return os.path.join(os.curdir, value)
    expected = f"one of {', '.join(map(str, arguments))}" if origin is Literal else EXPECTED[origin or kind]
    quoted = ", in quotes" if kind is str and isinstance(value, int | float) else ""
    raise InputError(f"{name}={' '.join(short(value).split())}: {expected} is expected{quoted}")


def _build_union(options: Sequence[Any], value: Any, name: str, ignore_unknown: bool) -> Any:
    if value is None and NoneType in options:
        return None
    known = [option for option in options if option is not NoneType]
    for option in known:
        with suppress(InputError):
            return _build(option, value, name, ignore_unknown)
    shown = known[-1] if isinstance(value, list | tuple | Mapping) else known[0]
    return _build(shown, value, name, ignore_unknown)


def _build_dataclass(kind: Any, value: Any, name: str, ignore_unknown: bool) -> Any:
    where = f"{name}: " if name else ""
    if not isinstance(value, Mapping):
        raise InputError(f"{where}an object of keys and values is expected, not {_kind_of(value)}")
    entries = {entry.name: entry for entry in fields(kind) if entry.init}
    unknown = sorted(set(value) - set(entries), key=str)
    if unknown and not ignore_unknown:
        meant = did_you_mean(unknown[0], entries)
        raise InputError(f"{where}unknown key {unknown[0]!r}{meant}; the keys are {', '.join(sorted(entries))}")
    for key, entry in entries.items():
        if key not in value and entry.default is MISSING and entry.default_factory is MISSING:
            raise InputError(f"{where}key {key!r} is missing")
    types, prefix = get_type_hints(kind), f"{name}." if name else ""
    return kind(
        **{key: _build(types[key], value[key], f"{prefix}{key}", ignore_unknown) for key in value if key in entries}
    )


def _is_finite_number(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and is_finite(value)


def _kind_of(value: object) -> str:
    return {list: "a list", str: "text", bool: "true or false", NoneType: "nothing"}.get(type(value), "a number")
