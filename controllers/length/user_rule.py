"""Length controllers of the user, named ``package.module:Class``.

Arguments of the class follow after colons: ``my.rules:Margin:0.2``. :mod:`..user_modules` imports the module.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

from ...common.errors import InputError
from ...common.files import sha256
from ..user_modules import CHECKPOINT, MODULE, NAME, error_line, import_user_module
from .base import LengthController

USER_CLASS = re.compile(rf"(?P<module>{MODULE}):(?P<name>{NAME})(?::(?P<arguments>.*))?", re.DOTALL)


class ClassName(NamedTuple):
    """A class of the user, as named on the command line.

    Attributes:
        module: the module that defines the class.
        name: the class's name in the module.
        arguments: the arguments after the name, separated by colons.
    """

    module: str
    name: str
    arguments: list[str]


def names_user_class(spec: str) -> bool:
    """Return true if ``spec`` has the form ``package.module:Class``; nothing is imported.

    ``package.module:Config:FOLDER`` is the checkpoint of a trained controller, see :mod:`..registry`.
    """
    return USER_CLASS.fullmatch(spec) is not None and CHECKPOINT.fullmatch(spec) is None


def find_user_class(spec: str) -> type[LengthController]:
    """Import and return the class that ``spec`` names.

    Raises:
        InputError: the module cannot be imported, or has no such length controller.
    """
    class_name = _parse(spec)
    option = f"length={spec!r}"
    module = import_user_module(class_name.module, option)
    kind = getattr(module, class_name.name, None)
    if isinstance(kind, type) and issubclass(kind, LengthController):
        return kind
    place_text = getattr(module, "__file__", None) or "a built-in module"
    problem = "missing" if kind is None else "of another kind"
    raise InputError(
        f"{option}: {class_name.name!r} in {class_name.module!r} ({place_text}) is {problem}; "
        "name a subclass of specpilot.controllers.length.LengthController"
    )


def load_user_rule(spec: str) -> LengthController:
    """Return the controller that ``spec`` names; arguments are passed as numbers, or as text if they are not numbers.

    Raises:
        InputError: the class does not exist or is not a length controller (:func:`find_user_class`), or its constructor
            fails.
    """
    kind, words = find_user_class(spec), _parse(spec).arguments
    try:
        return kind(*map(_value, words))
    except (Exception, SystemExit) as error:
        raise InputError(
            f"length={spec!r}: {kind.__name__}({', '.join(words)}) fails with {error_line(error)}; correct the "
            "class, or add its arguments after colons"
        ) from error


def user_class_digest(spec: str) -> str:
    """Return the SHA-256 of the file that defines the class; another file may decide otherwise."""
    return sha256(Path(str(sys.modules[find_user_class(spec).__module__].__file__)))


def _parse(spec: str) -> ClassName:
    """Return the parts of ``spec``, for which :func:`names_user_class` is true."""
    parts = USER_CLASS.fullmatch(spec)
    assert parts is not None, "names_user_class is called first"
    arguments = parts["arguments"]
    return ClassName(parts["module"], parts["name"], [] if arguments is None else arguments.split(":"))


def _value(word: str) -> int | float | str:
    """Return an argument as a number, or as text if it is not a number."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
