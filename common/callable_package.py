"""Packages that can be called: ``specpilot.compare`` and ``specpilot.train`` are packages and functions.

A function of the package ``specpilot`` cannot have the name of a subpackage, because Python replaces the attribute
``specpilot.compare`` by the subpackage when one of its modules is imported. Therefore the subpackage itself can be
called. Both uses work in any order.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inspect import Signature


def make_callable(package: str, module: str) -> None:
    """Make ``package`` callable: a call imports ``module`` and calls the function with the package's name."""

    def function() -> Any:
        return getattr(import_module(f"{package}.{module}"), package.rpartition(".")[2])

    class CallablePackage(ModuleType):
        def __call__(self, *arguments: Any, **options: Any) -> Any:
            return function()(*arguments, **options)

        @property
        def __signature__(self) -> Signature:  # for help in notebooks and `inspect.signature`
            from inspect import signature

            return signature(function())

    sys.modules[package].__class__ = CallablePackage
