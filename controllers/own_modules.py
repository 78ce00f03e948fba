"""Modules of the user, which hold controllers of the user's own.

A module is imported only when a user names it, as ``package.module:Class``. No file of a checkpoint or a run makes
Python import anything. A module is found where Python finds modules, or in the working folder.
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
CONFIG = rf"(?P<module>{MODULE}):Config"  # a trained controller of the user's, by the class of its configuration
CHECKPOINT = re.compile(rf"(?P<kind>{CONFIG}):(?P<folder>.+)", re.DOTALL)  # and a checkpoint of it


def import_own(name: str, option: str) -> ModuleType:
    """The user's module ``name``.

    Args:
        option: the option that names it, with its value, for error messages: ``length='my.rules:Margin'``.

    Raises:
        InputError: there is no such module, or importing it fails.
    """
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # last: a file there hides no installed module
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:  # a module may do anything
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise InputError(
                f"{option}: there is no module {error.name!r}; install it, or start in the folder that holds it"
            ) from None
        raise InputError(f"{option}: importing {name!r} fails with {one_line(error)}; mend that") from error


def one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
