"""Packages that can be called: ``specpilot.compare`` and ``specpilot.train`` are packages and functions.

A function in the package ``specpilot`` could not have the name of a package in it, since Python replaces the attribute
``specpilot.compare`` by the package when one of its modules is imported. Therefore the package itself can be called,
and both uses work in any order.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inspect import Signature


def make_callable(package: str, module: str) -> None:
    """Let ``package`` be called as the function of its name in its ``module``, which the first call imports."""

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
