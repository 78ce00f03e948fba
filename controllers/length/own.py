"""Length controllers of the user, named ``package.module:Class``.

Arguments of the class follow after colons: ``my.rules:Margin:0.2``. :mod:`..own_modules` imports its module.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

from ...common.errors import InputError
from ...common.files import sha256
from ..own_modules import CHECKPOINT, MODULE, NAME, import_own, one_line
from .base import LengthController

OWN = re.compile(rf"(?P<module>{MODULE}):(?P<name>{NAME})(?::(?P<arguments>.*))?", re.DOTALL)


class ClassName(NamedTuple):
    """A class of the user, as it is named on the command line.

    Attributes:
        module: the module that defines the class.
        name: the class's name in the module.
        arguments: words behind the name, which colons separate.
    """

    module: str
    name: str
    arguments: list[str]


def names_own(spec: str) -> bool:
    """Whether ``spec`` has the form ``package.module:Class``; imports nothing.

    ``package.module:Config:FOLDER`` is the checkpoint of a trained controller, see :mod:`..registry`.
    """
    return OWN.fullmatch(spec) is not None and CHECKPOINT.fullmatch(spec) is None


def own_class(spec: str) -> type[LengthController]:
    """The class that ``spec`` names.

    Raises:
        InputError: its module cannot be imported, or holds no such length controller.
    """
    place = _parse(spec)
    option = f"length={spec!r}"
    module = import_own(place.module, option)
    kind = getattr(module, place.name, None)
    if isinstance(kind, type) and issubclass(kind, LengthController):
        return kind
    where = getattr(module, "__file__", None) or "a built-in module"
    problem = "missing" if kind is None else "of another kind"
    raise InputError(
        f"{option}: {place.name!r} in {place.module!r} ({where}) is {problem}; "
        "name a subclass of specpilot.controllers.length.LengthController"
    )


def load_own(spec: str) -> LengthController:
    """The controller that ``spec`` names; arguments in it are numbers, or text where they are none.

    Raises:
        InputError: as for :func:`own_class`, or the constructor fails.
    """
    kind, words = own_class(spec), _parse(spec).arguments
    try:
        return kind(*map(_value, words))
    except (Exception, SystemExit) as error:
        raise InputError(
            f"length={spec!r}: {kind.__name__}({', '.join(words)}) fails with {one_line(error)}; mend that, or give "
            "what it needs after colons"
        ) from error


def own_digest(spec: str) -> str:
    """The SHA-256 of the file that holds the class: with it may change what it decides."""
    return sha256(Path(str(sys.modules[own_class(spec).__module__].__file__)))


def _parse(spec: str) -> ClassName:
    """The parts of ``spec``, which has the form of a user's class."""
    parts = OWN.fullmatch(spec)
    assert parts is not None, "names_own is asked before"
    arguments = parts["arguments"]
    return ClassName(parts["module"], parts["name"], [] if arguments is None else arguments.split(":"))


def _value(word: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
