"""The registry of trained controllers: a dictionary from a name to the module with everything about that kind.

The module of an acceptance predictor has the contents that ``controllers/acceptance/__init__.py`` describes. To add a
predictor, add a line to ``PREDICTORS``. A predictor of the user's own needs no line: its name is
``package.module:Config``.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..common.errors import InputError, Misspelt, did_you_mean
from .own_modules import CONFIG, import_own

if TYPE_CHECKING:
    from .checkpoints.config import ControllerConfig

# Name for ``train acceptance --predictor`` → module.
PREDICTORS = {
    "lag-free": ".acceptance.lag_free_head",
    "specdec": ".acceptance.specdec_head",
    "features": ".acceptance.feature_model",
}
# Also those that are trained by a command of their own.
CONTROLLERS = PREDICTORS | {"copies": ".acceptance.copy_head", "router": ".router.policy"}

CONTENTS = ("Config", "TrainingOptions", "new_network", "inputs", "loss", "predictions", "metrics", "to_checkpoint")
OWN: dict[str, Any] = {}  # name of a predictor of the user's that was named in this process → its module


def controller_module(name: str) -> Any:
    """The module of the trained controller ``name``: one of ``CONTROLLERS``, or a user's ``package.module:Config``.

    Raises:
        InputError: there is no such controller, or its module lacks a part of a predictor.
    """
    if name in CONTROLLERS:
        return import_module(CONTROLLERS[name], __package__)
    check_predictor(name)
    if name not in OWN:
        module = import_own(name.partition(":")[0], f"predictor={name!r}")
        if missing := [part for part in CONTENTS if not hasattr(module, part)]:
            raise InputError(
                f"predictor={name!r}: {module.__file__} has no {missing[0]!r}; a predictor's module has "
                f"{', '.join(CONTENTS)}"
            )
        OWN[name] = module
    return OWN[name]


def check_predictor(name: str) -> None:
    """Raise InputError unless ``name`` is one of ``PREDICTORS`` or has the form ``package.module:Config``."""
    if name not in PREDICTORS and not re.fullmatch(CONFIG, name):
        raise Misspelt(
            f"predictor={name!r}: no such predictor{did_you_mean(name, PREDICTORS) or ';'} choose one of "
            f"{', '.join(PREDICTORS)}, or one of your own, as package.module:Config"
        )


def config_class(kind: object) -> type[ControllerConfig]:
    """The configuration class of the kind of controller that a checkpoint's ``config.json`` names.

    A user's kind is known if its module was named in this process.

    Raises:
        InputError: the kind is not known.
    """
    modules = [*map(controller_module, CONTROLLERS), *OWN.values()]
    supported: dict[str, type[ControllerConfig]] = {module.Config.kind: module.Config for module in modules}
    if not isinstance(kind, str) or kind not in supported:
        raise InputError(
            f"kind={kind!r}: unknown kind of controller; this version supports {', '.join(supported)}, and one of your "
            "own where it is named, as package.module:Config:FOLDER"
        )
    return supported[kind]
