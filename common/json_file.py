"""Validated reading of files. Every problem is an InputError with the file's name and a remedy.

:func:`read_object` reads a JSON or YAML object. :func:`build` makes a dataclass from it and checks every value.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from reprlib import repr as short
from types import NoneType
from typing import Any, Literal, TypeAlias, TypeVar, cast

from .errors import InputError, did_you_mean
from .files import check_no_pointer

MAX_BYTES = 256 * 2**20  # larger files are refused
MAX_YAML = 256 * 2**10  # characters; PyYAML needs about 200 bytes and 5 µs for each
ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # an escaped half of a character; the other half may follow
SPECIFIC = ("missing", "value_error", "finite_number", "unexpected_keyword_argument")  # pydantic's names of errors
EXPECTED = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    **dict.fromkeys(("float_type", "finite_number"), "a finite number"),
    "string_type": "text",
    "path_type": "a path",
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    **dict.fromkeys(("dict_type", "dataclass_type", "dataclass_exact_type"), "an object of keys and values"),
}

# Unquoted values of YAML that are not text: PyYAML's name of the type, the form, and the possible first characters.
PLAIN_VALUES = (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("int", r"^[-+]?(?:0|[1-9][0-9]*)$", "-+0123456789"),
    ("float", r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$", "-+.0123456789"),
    ("float", r"^(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$", "-+."),
)

LINE_ENDS = {ord(character): json.dumps(character)[1:-1] for character in "\x85\u2028\u2029"}  # as in str.splitlines

T = TypeVar("T")
JsonObject: TypeAlias = dict[str, Any]  # an object of JSON or YAML with unchecked keys and values


def read_text(file: str | Path, remedy: str) -> str:
    """Return the text of a UTF-8 file, without a byte order mark.

    Args:
        file: path of the file.
        remedy: the remedy, which becomes the end of error messages.

    Raises:
        InputError: the file does not exist, cannot be read, is too large, is a git LFS pointer or is not UTF-8.
    """
    path = Path(file).expanduser()
    try:
        if path.is_dir():
            raise InputError(f"{file}: is a folder, where a file is expected; {remedy}")
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{file}: has {path.stat().st_size} bytes, more than {MAX_BYTES}; {remedy}")
        check_no_pointer(path)
        text = path.read_text(encoding="utf-8-sig")
        if "\0" in text and (conversion := _conversion(path)):
            raise InputError(f"{file}: not UTF-8 text; {conversion}")
        return text
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{file}: no such file; {remedy}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not UTF-8 text (byte {error.start}); {_conversion(path) or remedy}") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{file}: cannot be read ({reason})") from error


def _conversion(path: Path) -> str:
    """Return the command that converts a text file to UTF-8; empty if the file is not text."""
    data = path.read_bytes()
    condition = ""
    if data.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        encoding = "UTF-32"
    elif data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "UTF-16"
    elif b"\0" in data:  # UTF-16 text in Latin script has a null byte in every second place
        odd, even = (data[start::2].count(0) * 4 > len(data) for start in (1, 0))
        if odd == even:
            return ""
        encoding = "UTF-16LE" if odd else "UTF-16BE"
    else:
        condition, encoding = "if it is Latin-1 or Windows-1252, ", "WINDOWS-1252"
        try:
            data.decode(encoding)
        except UnicodeDecodeError:
            encoding = "ISO-8859-1"
    old, new = (shlex.quote(str(name)) for name in (path, path.with_name(f"{path.stem}.utf8{path.suffix}")))
    return f"{condition}convert it, and use the new file: iconv -f {encoding} -t UTF-8 {old} > {new}"


def check_characters(value: object, name: str = "") -> None:
    """Check that no text in a JSON value, keys included, contains half a character.

    No encoding can represent half a character, and libraries fail.

    Raises:
        InputError: a text contains half a character; the message has the place of the text below ``name``.
    """
    waiting, visited = [(name, value)], set[int]()  # YAML's aliases may form a circle
    while waiting:
        place, entry = waiting.pop()
        if isinstance(entry, str) and (half := re.search(r"[\ud800-\udfff]", entry)):
            raise InputError(
                f"{place or 'text'}: character {half.start() + 1} is {half[0]!a}: half of a character, or a byte "
                "that is not UTF-8; give whole characters"
            )
        if id(entry) in visited:
            continue
        visited.add(id(entry))
        if isinstance(entry, Mapping):
            waiting += [(f"{place}.{key}".lstrip("."), element) for key, element in entry.items()]
            waiting += [(f"key {key!a}", key) for key in entry]
        elif isinstance(entry, list | tuple):
            waiting += [(f"{place}.{i}".lstrip("."), element) for i, element in enumerate(entry)]


def parse_json(text: str) -> Any:
    """Parse ``text`` as JSON.

    Raises:
        InputError: the text is malformed or contains half a character.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON ({error})") from None
    if ESCAPED_HALF.search(text):
        check_characters(value)
    return value


def json_line(value: object, separators: tuple[str, str] | None = None) -> str:
    """Return ``value`` as JSON in one line, without escapes for characters outside ASCII.

    Only characters at which some programs end a line, besides the line feed, are escaped.
    """
    return json.dumps(value, ensure_ascii=False, separators=separators).translate(LINE_ENDS)


def use_plain_values(loader: Any) -> None:
    """Make ``loader``, a class of PyYAML's loaders, read unquoted values by :data:`PLAIN_VALUES`.

    These are the values of YAML 1.2's core schema without hexadecimal and octal numbers: decimal numbers, ``true`` and
    ``false``, ``null``, and text. PyYAML reads YAML 1.1 by default. It reads numbers in text such as ``4:4`` (244, in
    base 60), ``017`` and ``1_000``, a date in ``2020-01-01``, and switches in ``no`` and ``on``.
    """
    loader.yaml_implicit_resolvers = {}
    for tag, pattern, first in PLAIN_VALUES:
        loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), list(first))


def parse_yaml(text: str) -> Any:
    """Parse ``text`` as YAML.

    Raises:
        InputError: the text is malformed or too long, has a key twice, or contains half a character.
    """
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # untyped
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            pairs = node.value if isinstance(node, yaml.MappingNode) else ()  # others are refused below
            keys = Counter((key.tag, key.value) for key, _ in pairs if isinstance(key, yaml.ScalarNode))
            if repeated := [key for (_, key), count in keys.items() if count > 1]:
                raise ValueError(f"the key {repeated[0]!r} is there twice")
            return super().construct_mapping(node, deep)  # type: ignore[no-any-return]

    use_plain_values(Loader)
    if len(text) > MAX_YAML:
        raise InputError(f"{len(text)} characters of YAML, more than {MAX_YAML}")
    try:
        value = Loader(text).get_single_data()
    # Values such as !!timestamp 2020-13-45 and !!int '' raise whatever their conversion raises.
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError, LookupError, AttributeError) as error:
        raise InputError(f"not YAML ({' '.join(str(error).split())})") from None
    if ESCAPED_HALF.search(text):
        check_characters(value)
    return value


def read_object(file: str | Path, remedy: str, parse: Callable[[str], Any] = parse_json) -> JsonObject:
    """Return the object in a JSON or YAML file.

    Args:
        file: path of the file.
        remedy: end of the error message.
        parse: parser of the text; raises InputError if the text is malformed.

    Raises:
        InputError: as :func:`read_text`; or the text is malformed or not an object.
    """
    text = read_text(file, remedy)
    with naming_file(file, remedy):
        return parse_object(text, parse)


def parse_object(text: str, parse: Callable[[str], Any] = parse_json) -> JsonObject:
    """Parse ``text`` as an object of keys and values.

    Raises:
        InputError: the text is malformed or another value.
    """
    value = parse(text)
    if not isinstance(value, dict):
        raise InputError(f"an object of keys and values is expected, not {_kind_of(value)}")
    return value


def read_parquet(path: Path, remedy: str) -> list[JsonObject]:
    """Return the rows of a Parquet file.

    Raises:
        InputError: the file cannot be read, is not a Parquet file, or is a git LFS pointer.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_no_pointer(path)
    try:
        rows: list[JsonObject] = pq.ParquetFile(path).read().to_pylist()
    # OSError without a number: a damaged page. ValueError: a name that is not text. OverflowError: a date out of range.
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise InputError(f"{path}: cannot be read ({os.strerror(error.errno)})") from error
        raise InputError(f"{path}: not a readable Parquet file ({error}); {remedy}") from error
    return rows


@contextmanager
def naming_file(file: str | Path, remedy: str) -> Iterator[None]:
    """Add the name of ``file`` to the beginning of an InputError of the block, and ``remedy`` if the error has none."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{file}: {error}" + ("" if "; " in str(error) else f"; {remedy}")) from error


def build(kind: type[T], value: object, name: str = "", *, ignore_unknown: bool = False, finite: bool = True) -> T:
    """Convert a JSON value, path or tuple to ``kind``: a dataclass of numbers, text, lists, dictionaries and unions.

    Pydantic converts and checks the value as JSON, in its strict mode: text is not a number, and a number is not a
    switch.

    Args:
        kind: the type of the result.
        value: the value.
        name: name of ``value`` in error messages.
        ignore_unknown: ignore unknown keys of dataclasses instead of refusing them.
        finite: refuse NaN and infinite numbers.

    Raises:
        InputError: a value has a wrong type or is not finite, or a key is unknown or missing.
    """
    from pydantic import ValidationError

    adapter = _adapter(cast(Hashable, kind), ignore_unknown, finite)
    try:
        try:
            text = json.dumps([value], default=_path_text)
        except (TypeError, ValueError, RecursionError):  # not a JSON value; most kinds refuse it
            return cast(T, adapter.validate_python((value,))[0])
        return cast(T, adapter.validate_json(text)[0])
    except ValidationError as error:
        raise _input_error(kind, value, name, error.errors()) from None


@cache
def _adapter(kind: Any, ignore_unknown: bool, finite: bool) -> Any:
    """Return pydantic's adapter that converts a value in a tuple to ``kind``."""
    from pydantic import ConfigDict, TypeAdapter

    extra: Literal["ignore", "forbid"] = "ignore" if ignore_unknown else "forbid"
    config = ConfigDict(strict=True, allow_inf_nan=not finite, extra=extra, arbitrary_types_allowed=True)
    return TypeAdapter(tuple[kind], config=config)  # in a tuple, since a dataclass alone takes no configuration


def _path_text(value: object) -> str:
    """Return a path as text for JSON.

    Raises:
        TypeError: ``value`` is not a path.
    """
    if isinstance(value, Path):  # "./NAME" is a folder even if an included model or the hub has the name
        return os.path.join(os.curdir, value)
    raise TypeError


def _input_error(kind: Any, value: Any, name: str, errors: Sequence[Any]) -> InputError:
    """Return the most specific of pydantic's ``errors`` in one line."""
    if errors[0]["type"] == "json_invalid":
        check_characters(value, name)
        return InputError(f"{name or 'value'}: {errors[0]['msg']}; give simpler values")
    for error in errors:
        cause = error.get("ctx", {}).get("error")
        if isinstance(cause, InputError):  # a dataclass checks its values itself
            return cause
    ranked = [(_rank(error["type"]), *_place(error["loc"][1:], value, name), error) for error in errors]
    rank, depth, place, error = max(ranked, key=lambda entry: entry[:2])
    key = error["loc"][-1]
    if error["type"] == "unexpected_keyword_argument":
        above = _place(error["loc"][1:-1], value, name)[1]
        names = sorted(entry.name for entry in fields(kind) if entry.init) if is_dataclass(kind) and depth == 1 else []
        keys = f"{did_you_mean(str(key), names)}; the keys are {', '.join(names)}" if names else "; leave it out"
        return InputError(f"{above}{': ' * bool(above)}unknown key {key!r}{keys}")
    if error["type"] == "missing":
        return InputError(f"{place}{': ' * bool(place)}key {key!r} is missing")
    if error["type"] == "value_error":  # a limit of an option
        return InputError(f"{place}={_shown(error['input'])}: {error['ctx']['error']}")
    same = [other for *key, other in ranked if key == [rank, depth, place]]
    expected = " or ".join(dict.fromkeys(_expectation(other) for other in same))
    quoted = ", in quotes" if "text" in expected and type(error["input"]) in (int, float) else ""
    label = f"{place}={' '.join(short(error['input']).split())}: " if place else ""
    actual = "" if place else f", not {_kind_of(error['input'])}"
    return InputError(f"{label}{expected} is expected{quoted}{actual}")


def _rank(kind: str) -> int:
    """Return the rank of a kind of error: higher is more specific. Members of a union that do not fit are -1."""
    return SPECIFIC.index(kind) if kind in SPECIFIC else -1


def _place(keys: Sequence[Any], value: Any, name: str) -> tuple[int, str]:
    """Return the number of levels and the name of the place at ``keys``. Some keys name a member of a union."""
    depth = 0
    for key in keys:
        if isinstance(value, Mapping) and key in value:
            depth, name, value = depth + 1, f"{name}.{key}".lstrip("."), value[key]
        elif isinstance(value, list | tuple) and isinstance(key, int):
            depth, name, value = depth + 1, f"{name}[{key}]", value[key]
    return depth, name


def _expectation(error: Mapping[str, Any]) -> str:
    """Return the expected value of an error in words."""
    if error["type"] == "literal_error":
        return str(error["ctx"]["expected"])
    return EXPECTED.get(error["type"], str(error["msg"]))


def _shown(value: object) -> str:
    """Return a value as it is shown in error messages."""
    return repr(str(value)) if isinstance(value, str | Path) else repr(value)


def _kind_of(value: object) -> str:
    """Return the kind of a JSON value in words."""
    return {list: "a list", str: "text", bool: "true or false", NoneType: "nothing"}.get(type(value), "a number")
