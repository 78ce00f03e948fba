"""The base class of options, and the limits of their fields.

The parameters of a command are frozen dataclasses. Their fields define its flags and ``--config`` keys, and the
docstrings its ``--help``. Each stage has its own in ``<stage>/options.py``; options of several stages are in base
classes of the lowest one. A field is documented once, in the class that introduces it; a subclass may change its
default. Limits are part of a field's type and are checked for calls from Python, too.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from .errors import InputError, did_you_mean, listed
from .json_file import build


class Limit:
    """Base class of limits, which are part of a field's type: ``Annotated[int, Range(1)]``. Pydantic calls `check`."""

    def check(self, value: Any) -> Any:
        """Return ``value``, or raise ValueError with the remedy if it is outside the limit."""
        raise NotImplementedError

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        from pydantic_core.core_schema import no_info_after_validator_function

        return no_info_after_validator_function(self.check, handler(source))


@dataclass(frozen=True)
class Range(Limit):
    """Numbers from ``low`` to ``high``; ``ends`` are the interval's brackets, such as ``[)``."""

    low: float
    high: float = math.inf
    ends: str = "[]"

    def check(self, value: Any) -> Any:
        if value < self.low or (value == self.low and self.ends[0] == "("):
            raise ValueError(f"must be {'at least' if self.ends[0] == '[' else 'above'} {self.low}")
        if value > self.high or (value == self.high and self.ends[1] == ")"):
            raise ValueError(f"must be {'at most' if self.ends[1] == ']' else 'below'} {self.high}")
        return value


@dataclass(frozen=True)
class Several(Limit):
    """A list of at least ``least`` values, without repetitions if ``distinct``; also a type that is no list."""

    least: int = 1
    distinct: bool = True

    def check(self, value: Any) -> Any:
        if isinstance(value, str) and re.fullmatch(r"\[.*\]", value) and not Path(value).exists():
            raise ValueError(f"a list of names is expected; put numbers in it in quotes, or give ./{value} for a path")
        if not isinstance(value, tuple):
            return value
        names = [one for one in value if isinstance(one, str | int | float)]  # in Python also rows
        if len(value) < self.least or (self.distinct and len({*names}) < len(names)):
            least = "one value" if self.least == 1 else f"{self.least} values"
            raise ValueError(f"give at least {least}{', and none twice' * self.distinct}")
        return value

    def check_objects(self, name: str, value: Any) -> None:
        """Raise InputError if the objects ``value`` are too few, or names among them are repeated."""
        try:
            self.check(value)
        except ValueError as error:
            raise InputError(f"{name}={list(value)}: {error}") from None


@dataclass(frozen=True)
class Pattern(Limit):
    """Text that matches ``regex``; ``remedy`` describes the form in the error message."""

    regex: str
    remedy: str

    def check(self, value: Any) -> Any:
        if not re.fullmatch(self.regex, str(value)):
            raise ValueError(self.remedy)
        return value


@dataclass(frozen=True)
class Place(Limit):
    """A folder or a file to write, which may exist; checked before anything is computed."""

    folder: bool

    def check(self, value: Any) -> Any:
        path = Path(value)
        if not self.folder and path.exists() and not path.is_file():
            raise ValueError("is a folder or a device; name a file")
        above = [path, *path.parents] if self.folder else path.parents
        there = next((place for place in above if place.exists()), None)
        if there is not None and not there.is_dir():
            raise ValueError(f"{str(there)!r} is not a folder; name another")
        return value


@dataclass(frozen=True)
class Objects:
    """Types that calls from Python may also give, which are not checked; by default any."""

    also: tuple[type, ...] = (object,)


AUTO = "auto"  # value of options that the package then chooses or measures itself
LARGEST = 2**31 - 1  # largest count
Count = Annotated[int, Range(1, LARGEST)]
Natural = Annotated[int, Range(0, LARGEST)]
Seed = Annotated[int, Range(0, 2**64 - 1)]  # also those that are derived for each of several texts
Positive = Annotated[float, Range(0, ends="()")]
NotNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
Fraction = Annotated[float, Range(0, 1, "()")]
LearningRate = Annotated[float, Range(0, 1, "(]")]
File = Annotated[Path, Place(folder=False)]
Folder = Annotated[Path, Place(folder=True)]
WebAddress = Annotated[str, Pattern(r"https?://\S+", "no address; give one such as http://localhost:8000/v1")]
Names = Annotated[tuple[str, ...], Several()]
DType = Literal["float32", "bfloat16", "float16", "float64", "auto"]
Device = Annotated[
    str, Pattern(r"auto|(?!meta)[a-z]+(:\d{1,3})?", "no device of this machine; give 'auto', 'cpu', 'cuda' or 'cuda:1'")
]


@cache
def _types_of(kind: type) -> dict[str, Any]:
    """The types of the fields of ``kind`` with their limits. To evaluate them takes a millisecond."""
    return get_type_hints(kind, include_extras=True)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base class: converts lists to tuples and paths, and checks every value against its field's type and its limits.

    Default values are not checked.

    Raises:
        InputError: a value is of another type, or outside its limits.
    """

    def __post_init__(self) -> None:
        hints = _types_of(type(self))  # type: ignore[arg-type]
        for name, default in ((entry.name, entry.default) for entry in fields(self)):
            value, hint = getattr(self, name), hints[name]
            if value is default:
                continue
            value = tuple(value) if isinstance(value, list) else value  # from YAML or a flag
            limits = getattr(hint, "__metadata__", ())
            if any(isinstance(value, limit.also) for limit in limits if isinstance(limit, Objects)):
                for limit in limits:
                    if isinstance(limit, Several):
                        limit.check_objects(name, value)
            else:
                value = build(hint, value, name)
            object.__setattr__(self, name, value)
            if "" in (value if isinstance(value, tuple) else [value] if isinstance(value, str) else ()):
                raise InputError(f"{name}: it is empty; give a value, or leave it out")

    def refuse_ignored(self, names: tuple[str, ...], reason: str) -> None:
        """Raise InputError if one of the fields ``names`` does not have its default value."""
        for entry in fields(self):
            if entry.name in names and getattr(self, entry.name) != entry.default:
                value = getattr(self, entry.name)
                shown = repr(str(value)) if isinstance(value, str | Path) else reprlib.repr(value)
                raise InputError(f"{entry.name}={shown}: would be ignored, because {reason}; leave it out")


def name_option(message: str, options: Iterable[Options]) -> str:
    """An error's ``message`` with the name of the option whose value it begins with: a name, or a path or one below it.

    ``nowhere: no dataset`` becomes ``data='nowhere': no dataset``, and ``texts/a.csv:3: not CSV`` becomes
    ``prompts: texts/a.csv:3: not CSV``: code that reads a file does not know which option names it.
    """
    values = [(entry.name, getattr(one, entry.name)) for one in options for entry in fields(one)]
    if any(re.match(rf"{name}(=|: |\[|, | and )", message) for name, _ in values):
        return message
    places = [
        (text, name, isinstance(value, tuple) and len(value) == 1)
        for name, value in values
        for one in (value if isinstance(value, tuple) else (value,))
        if isinstance(one, str | Path) and str(one)
        for text in (str(one), str(Path(one)), str(Path(one).expanduser()))
    ]
    for text, name, is_list in sorted(places, key=lambda place: -len(place[0])):
        if message.startswith(f"{text}: "):
            remedy = f"; [{text}] is a list of one, for a folder of this name give ./[{text}]" if is_list else ""
            return f"{name}={text!r}{message.removeprefix(text)}{remedy}"
        if message.startswith((f"{text}/", f"{text}:")):
            return f"{name}: {message}"
    above = Path(message.partition(": ")[0])  # a folder that cannot be made
    for text, name, _ in places:
        if above.is_absolute() and above in Path(text).parents and above != Path(above.anchor):
            return f"{name}: {message}"
    return message


def check_names(kind: type[Options], names: Iterable[str]) -> None:
    """Raise InputError if one of ``names``, keywords of a Python call, is not an option of ``kind``."""
    options = [entry.name for entry in fields(kind)]
    for name in names:
        if name not in options:
            meant = did_you_mean(name, options)
            raise InputError(f"{name}: no such option{meant or f'; choose from {listed(options, len(options))}'}")


@dataclass(frozen=True, kw_only=True)
class SeedOptions(Options):
    """Sampling.

    Attributes:
        seed: Seed of every random number.
    """

    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(Options):
    """Models.

    Attributes:
        device: auto (an accelerator if there is one), cpu, cuda, cuda:1, …
    """

    device: Device = "auto"


@dataclass(frozen=True, kw_only=True)
class OutputFileOptions(Options):
    """Output.

    Attributes:
        output: File for the JSON that is printed to standard output.
    """

    output: File | None = None


@dataclass(frozen=True, kw_only=True)
class OverwriteOptions(Options):
    """Output.

    Attributes:
        overwrite: Replace an existing checkpoint.
    """

    overwrite: bool = False
