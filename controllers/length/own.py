"""Length controllers of the user: ``package.module:Class``, or a name in the entry points ``specpilot.controllers``.

Arguments of the class follow after colons: ``my.rules:Margin:0.2``. Its module is imported when it is named, and found
where Python finds modules, or in the working folder.
"""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from ...common.errors import InputError
from ...common.files import sha256
from .base import LengthController

GROUP = "specpilot.controllers"
NAME = r"[^\W\d]\w*"
OWN = re.compile(rf"(?P<place>{NAME}(?:\.{NAME})*:{NAME})(?P<arguments>:.*)?", re.DOTALL)


def names_own(spec: str) -> bool:
    """Whether ``spec`` has the form of a user's class, or is the name of one that is installed; imports nothing."""
    return _parse(spec) is not None


def own_class(spec: str) -> type[LengthController]:
    """The class that ``spec`` names.

    Raises:
        InputError: its module cannot be imported, or holds no such length controller.
    """
    point, _ = _parse(spec) or (EntryPoint("", spec, GROUP), [])
    name, here = f"length={spec!r}", os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # last: a file there hides no installed module
    try:
        module = import_module(point.module)
    except (Exception, SystemExit) as error:  # a module may do anything
        if isinstance(error, ModuleNotFoundError) and f"{point.module}.".startswith(f"{error.name}."):
            raise InputError(
                f"{name}: there is no module {error.name!r}; install it, or start in the folder that holds it"
            ) from None
        raise InputError(f"{name}: importing {point.module!r} fails with {_line(error)}; mend that") from error
    kind = getattr(module, point.attr, None)
    if isinstance(kind, type) and issubclass(kind, LengthController):
        return kind
    where = getattr(module, "__file__", None) or "a built-in module"
    raise InputError(
        f"{name}: {point.attr!r} in {point.module!r} ({where}) is {'missing' if kind is None else 'of another kind'}; "
        "name a subclass of specpilot.controllers.length.LengthController"
    )


def load_own(spec: str) -> LengthController:
    """The controller that ``spec`` names; arguments in it are numbers, or text where they are none.

    Raises:
        InputError: as for :func:`own_class`, or the constructor fails.
    """
    kind = own_class(spec)
    _, words = _parse(spec) or (None, [])
    try:
        return kind(*map(_value, words))
    except (Exception, SystemExit) as error:
        raise InputError(
            f"length={spec!r}: {kind.__name__}({', '.join(words)}) fails with {_line(error)}; mend that, or give "
            "what it needs after colons"
        ) from error


def own_digest(spec: str) -> str:
    """The SHA-256 of the file that holds the class: with it may change what it decides."""
    return sha256(Path(str(sys.modules[own_class(spec).__module__].__file__)))


def _parse(spec: str) -> tuple[EntryPoint, list[str]] | None:
    """Where the class is, and the words after it; None if ``spec`` is no name of one."""
    if found := OWN.fullmatch(spec):
        place, arguments = found["place"], found["arguments"]
        return EntryPoint("", place, GROUP), [] if arguments is None else arguments[1:].split(":")
    name, *words = spec.split(":")
    points = entry_points(group=GROUP, name=name) if name else ()
    return next(((point, words) for point in points), None)


def _value(word: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
