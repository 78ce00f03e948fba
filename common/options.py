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
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, get_args, get_origin, get_type_hints

from .errors import InputError, is_finite
from .json_file import build


@dataclass(frozen=True)
class Range:
    """Finite numbers from ``low`` to ``high``; ``ends`` are the interval's brackets, such as ``[)``."""

    low: float
    high: float = math.inf
    ends: str = "[]"

    def check(self, name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return
        problem = None
        if not is_finite(value):
            problem = "a finite number"
        elif value < self.low or (value == self.low and self.ends[0] == "("):
            problem = f"{'at least' if self.ends[0] == '[' else 'above'} {self.low}"
        elif value > self.high or (value == self.high and self.ends[1] == ")"):
            problem = f"{'at most' if self.ends[1] == ']' else 'below'} {self.high}"
        if problem is not None:
            raise InputError(f"{name}={value}: must be {problem}")


@dataclass(frozen=True)
class Several:
    """A list of at least ``least`` values, without repetitions if ``distinct``."""

    least: int = 1
    distinct: bool = True

    def check(self, name: str, value: Any) -> None:
        if not isinstance(value, tuple):
            return
        names = [one for one in value if isinstance(one, str | int | float)]  # in Python also rows
        if len(value) < self.least or (self.distinct and len(set(names)) < len(names)):
            least = "one value" if self.least == 1 else f"{self.least} values"
            raise InputError(f"{name}={list(value)}: give at least {least}{', and none twice' * self.distinct}")


@dataclass(frozen=True)
class Pattern:
    """Text that matches ``regex``; ``remedy`` describes the form in the error message."""

    regex: str
    remedy: str

    def check(self, name: str, value: Any) -> None:
        if isinstance(value, str | Path) and not re.fullmatch(self.regex, str(value)):
            raise InputError(f"{name}={str(value)!r}: {self.remedy}")


@dataclass(frozen=True)
class Place:
    """A folder or a file to write, which may exist; checked before anything is computed."""

    folder: bool

    def check(self, name: str, value: Any) -> None:
        if not isinstance(value, str | Path):
            return
        path = Path(value)
        if not self.folder and path.exists() and not path.is_file():
            raise InputError(f"{name}={str(path)!r}: is a folder or a device; name a file")
        above = [path, *path.parents] if self.folder else path.parents
        there = next((place for place in above if place.exists()), None)
        if there is not None and not there.is_dir():
            raise InputError(f"{name}={str(path)!r}: {str(there)!r} is not a folder; name another")


@dataclass(frozen=True)
class Choice:
    """One of ``words``, if the value is a string."""

    words: tuple[object, ...]

    def check(self, name: str, value: Any) -> None:
        if isinstance(value, str) and value not in self.words:
            raise InputError(f"{name}={value!r}: choose one of {', '.join(map(str, self.words))}")


@dataclass(frozen=True)
class Objects:
    """What calls from Python may also give, besides the values of the command line; by default anything."""

    also: tuple[type, ...] = (object,)

    def check(self, name: str, value: Any) -> None:
        """Nothing: who uses an object checks it."""


class Limit(Protocol):
    """A limit of a field's values."""

    def check(self, name: str, value: Any) -> None:
        """Raise InputError if ``value`` of the field ``name`` is outside the limit."""


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


def _limits(hint: Any) -> Iterator[Limit]:
    """The limits anywhere in a type: ``Count | None``, ``tuple[Count, ...]``."""
    if get_origin(hint) is Literal:
        yield Choice(get_args(hint))
        return
    if get_origin(hint) is Annotated:
        yield from hint.__metadata__
        hint = hint.__origin__
    for part in get_args(hint):
        yield from _limits(part)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base class: converts lists to tuples and paths, and checks every value against its field's type and its limits.

    Raises:
        InputError: a value is of another type, or outside its limits.
    """

    def __post_init__(self) -> None:
        types = get_type_hints(type(self))
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            value = getattr(self, name)
            value = tuple(value) if isinstance(value, list) else value  # from YAML or a flag
            limits = [*_limits(hint)]
            for limit in limits:
                several = isinstance(value, tuple) and not isinstance(limit, Several)
                for one in value if several else (value,):
                    if one is not None:
                        limit.check(name, one)
            if not any(isinstance(value, limit.also) for limit in limits if isinstance(limit, Objects)):
                value = build(types[name], value, name)
            object.__setattr__(self, name, value)
            if "" in (value if isinstance(value, tuple) else [value] if isinstance(value, str) else ()):
                raise InputError(f"{name}: it is empty; give a value, or leave it out")

    def refuse_ignored(self, names: tuple[str, ...], reason: str) -> None:
        """Raise InputError if one of the fields ``names`` does not have its default value."""
        for entry in fields(self):
            if entry.name in names and getattr(self, entry.name) != entry.default:
                value = getattr(self, entry.name)
                shown = repr(str(value)) if isinstance(value, str | Path) else reprlib.repr(value)
                raise InputError(f"{entry.name}={shown}: would be ignored, {reason}; leave it out")


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
