"""Import of the user's modules, which define the user's controllers.

A module is imported only if a user names it, as ``package.module:Class``. No file of a checkpoint or a run makes Python
import a module. Modules are searched in Python's usual places and in the working folder.
"""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from types import ModuleType

from ..common.errors import InputError

NAME = r"[^\W\d]\w*"
MODULE = rf"{NAME}(?:\.{NAME})*"
CONFIG = rf"(?P<module>{MODULE}):Config"  # the kind of a trained controller of the user
CHECKPOINT = re.compile(rf"(?P<kind>{CONFIG}):(?P<folder>.+)", re.DOTALL)  # a checkpoint of this kind


def import_user_module(name: str, option: str) -> ModuleType:
    """Import and return the user's module ``name``.

    Args:
        name: the name of the module.
        option: the option that names the module, with its value, for messages: ``length='my.rules:Margin'``.

    Raises:
        InputError: there is no such module, or the import fails.
    """
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)  # at the end, so that a file there hides no installed module
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:  # a module may raise any error
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise InputError(
                f"{option}: there is no module {error.name!r}; install it, or start in the folder that holds it"
            ) from None
        raise InputError(f"{option}: importing {name!r} fails with {error_line(error)}; correct the module") from error


def error_line(error: BaseException) -> str:
    """Return the type and the message of ``error`` in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
