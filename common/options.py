"""The base class of options, and the limits of their fields.

The parameters of a command are frozen dataclasses. Their fields define the flags and ``--config`` keys of the command,
and their docstrings define its ``--help``. Each stage has its options in ``<stage>/options.py``. Options of several
stages are in base classes of the lowest stage. A field is documented once, in the class that introduces it, and a
subclass may change its default. Limits are part of a field's type, and calls from Python are checked, too.
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
        """Return ``value``.

        Raises:
            ValueError: ``value`` is outside the limit; the message has the remedy.
        """
        raise NotImplementedError

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        from pydantic_core.core_schema import no_info_after_validator_function

        return no_info_after_validator_function(self.check, handler(source))


@dataclass(frozen=True)
class Range(Limit):
    """Numbers in an interval.

    Attributes:
        low, high: the ends of the interval.
        ends: the brackets of the interval, such as ``[)``.
    """

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
    """A list of values; other types pass.

    Attributes:
        least: minimum number of values.
        distinct: whether values may not be repeated.
    """

    least: int = 1
    distinct: bool = True

    def check(self, value: Any) -> Any:
        if isinstance(value, str) and re.fullmatch(r"\[.*\]", value) and not Path(value).exists():
            raise ValueError(
                f"a list of names is expected; put numbers in the list in quotes, or pass ./{value} for a path"
            )
        if not isinstance(value, tuple):
            return value
        names = [entry for entry in value if isinstance(entry, str | int | float)]  # Python calls may pass rows, too
        if len(value) < self.least or (self.distinct and len({*names}) < len(names)):
            least = "one value" if self.least == 1 else f"{self.least} values"
            raise ValueError(f"give at least {least}{', and none twice' * self.distinct}")
        return value

    def check_objects(self, name: str, value: Any) -> None:
        """Raise InputError if ``value`` has too few objects or repeated names; ``name`` is the option."""
        try:
            self.check(value)
        except ValueError as error:
            raise InputError(f"{name}={list(value)}: {error}") from None


@dataclass(frozen=True)
class Pattern(Limit):
    """Text of a form.

    Attributes:
        regex: regular expression that the text matches.
        remedy: description of the form in error messages.
    """

    regex: str
    remedy: str

    def check(self, value: Any) -> Any:
        if not re.fullmatch(self.regex, str(value)):
            raise ValueError(self.remedy)
        return value


@dataclass(frozen=True)
class Place(Limit):
    """A folder or a file to write, which may exist. The check is made before any computation.

    Attributes:
        folder: whether the place is a folder.
    """

    folder: bool

    def check(self, value: Any) -> Any:
        path = Path(value)
        if not self.folder and path.exists() and not path.is_file():
            raise ValueError("is a folder or a device; choose a file")
        above = [path, *path.parents] if self.folder else path.parents
        existing = next((parent for parent in above if parent.exists()), None)
        if existing is not None and not existing.is_dir():
            raise ValueError(f"{str(existing)!r} is not a folder; choose another place")
        return value


@dataclass(frozen=True)
class Objects:
    """Types of objects that calls from Python may pass as well; they are not checked.

    Attributes:
        also: the types; by default all.
    """

    also: tuple[type, ...] = (object,)


AUTO = "auto"  # value of options that the package chooses or measures
LARGEST = 2**31 - 1  # largest count
Count = Annotated[int, Range(1, LARGEST)]
Natural = Annotated[int, Range(0, LARGEST)]
Seed = Annotated[int, Range(0, 2**64 - 1)]  # also seeds that are derived for each of several texts
Positive = Annotated[float, Range(0, ends="()")]
NotNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
Fraction = Annotated[float, Range(0, 1, "()")]
LearningRate = Annotated[float, Range(0, 1, "(]")]
File = Annotated[Path, Place(folder=False)]
Folder = Annotated[Path, Place(folder=True)]
WebAddress = Annotated[
    str, Pattern(r"https?://\S+", "not a web address; give an address such as http://localhost:8000/v1")
]
Names = Annotated[tuple[str, ...], Several()]
DType = Literal["float32", "bfloat16", "float16", "float64", "auto"]
Device = Annotated[
    str, Pattern(r"auto|(?!meta)[a-z]+(:\d{1,3})?", "not a device; choose 'auto', 'cpu', 'cuda' or 'cuda:1'")
]


@cache
def _types_of(kind: type) -> dict[str, Any]:
    """Return the types of the fields of ``kind`` with their limits; cached, because evaluation takes a millisecond."""
    return get_type_hints(kind, include_extras=True)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base class of options. It converts values to the types of their fields, and checks types and limits.

    The first sentence of a subclass's docstring is the title of its fields in ``--help``. Default values are not
    checked.

    Raises:
        InputError: a value has a wrong type or is outside its limits.
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
                raise InputError(f"{name}: is empty; give a value, or leave it out")

    def refuse_ignored(self, names: tuple[str, ...], reason: str) -> None:
        """Raise InputError if one of the fields ``names`` does not have its default value.

        Args:
            names: names of fields.
            reason: reason why the fields have no effect, as a clause that follows "because".
        """
        for entry in fields(self):
            if entry.name in names and getattr(self, entry.name) != entry.default:
                value = getattr(self, entry.name)
                value_text = repr(str(value)) if isinstance(value, str | Path) else reprlib.repr(value)
                raise InputError(f"{entry.name}={value_text}: would be ignored, because {reason}; leave it out")


def name_option(message: str, options: Iterable[Options]) -> str:
    """Return an error's ``message`` with the name of the option whose value is at the beginning of the message.

    ``nowhere: no dataset`` becomes ``data='nowhere': no dataset``, and ``texts/a.csv:3: not CSV`` becomes
    ``prompts: texts/a.csv:3: not CSV``. Code that reads a file does not know the option that names the file.
    """
    values = [(entry.name, getattr(group, entry.name)) for group in options for entry in fields(group)]
    if any(re.match(rf"{name}(=|: |\[|, | and )", message) for name, _ in values):
        return message
    places = [
        (text, name, isinstance(value, tuple) and len(value) == 1)
        for name, value in values
        for place in (value if isinstance(value, tuple) else (value,))
        if isinstance(place, str | Path) and str(place)
        for text in (str(place), str(Path(place)), str(Path(place).expanduser()))
    ]
    for text, name, is_list in sorted(places, key=lambda place: -len(place[0])):
        if message.startswith(f"{text}: "):
            remedy = f"; [{text}] is a list with one name; for a folder of this name pass ./[{text}]" if is_list else ""
            return f"{name}={text!r}{message.removeprefix(text)}{remedy}"
        if message.startswith((f"{text}/", f"{text}:")):
            return f"{name}: {message}"
    above = Path(message.partition(": ")[0])  # a folder that cannot be created
    for text, name, _ in places:
        if above.is_absolute() and above in Path(text).parents and above != Path(above.anchor):
            return f"{name}: {message}"
    return message


def check_names(kind: type[Options], names: Iterable[str]) -> None:
    """Raise InputError if one of ``names``, keywords of a Python call, is not an option of ``kind``."""
    options = [entry.name for entry in fields(kind)]
    for name in names:
        if name not in options:
            suggestion = did_you_mean(name, options)
            raise InputError(f"{name}: no such option{suggestion or f'; choose from {listed(options, len(options))}'}")


@dataclass(frozen=True, kw_only=True)
class SeedOptions(Options):
    """Sampling.

    The option of commands that draw random numbers.

    Attributes:
        seed: Seed of every random number.
    """

    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(Options):
    """Models.

    The option of commands that load models.

    Attributes:
        device: auto (an accelerator if there is one), cpu, cuda, cuda:1, …
    """

    device: Device = "auto"


@dataclass(frozen=True, kw_only=True)
class OutputFileOptions(Options):
    """Output.

    The option of commands that print a JSON result.

    Attributes:
        output: File for the JSON that is printed to standard output.
    """

    output: File | None = None


@dataclass(frozen=True, kw_only=True)
class OverwriteOptions(Options):
    """Output.

    The option of commands that write a checkpoint.

    Attributes:
        overwrite: Replace an existing checkpoint.
    """

    overwrite: bool = False
