"""The registry of trained controllers: a dictionary from a name to the module that implements the kind.

``controllers/acceptance/__init__.py`` describes the contents of the module of an acceptance predictor. To add a
predictor, add a line to ``PREDICTORS``. A predictor of the user needs no line: its name is ``package.module:Config``.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..common.errors import InputError, Misspelt, did_you_mean
from .user_modules import CONFIG, import_user_module

if TYPE_CHECKING:
    from .checkpoints.config import ControllerConfig

# Name for ``train acceptance --predictor`` → module.
PREDICTORS = {
    "lag-free": ".acceptance.lag_free_head",
    "specdec": ".acceptance.specdec_head",
    "features": ".acceptance.feature_model",
}
# Also the controllers with a training command of their own.
CONTROLLERS = PREDICTORS | {"copies": ".acceptance.copy_head", "router": ".router.policy"}

CONTENTS = ("Config", "TrainingOptions", "new_network", "inputs", "loss", "predictions", "metrics", "to_checkpoint")
USER_MODULES: dict[str, Any] = {}  # name of a user's predictor that was used in this process → its module


def controller_module(name: str) -> Any:
    """Return the module of the trained controller ``name``, one of ``CONTROLLERS`` or ``package.module:Config``.

    Raises:
        InputError: there is no such controller, or its module lacks a part of a predictor.
    """
    if name in CONTROLLERS:
        return import_module(CONTROLLERS[name], __package__)
    check_predictor(name)
    if name not in USER_MODULES:
        module = import_user_module(name.partition(":")[0], f"predictor={name!r}")
        if missing := [part for part in CONTENTS if not hasattr(module, part)]:
            raise InputError(
                f"predictor={name!r}: {module.__file__} has no {missing[0]!r}; a predictor's module has "
                f"{', '.join(CONTENTS)}"
            )
        USER_MODULES[name] = module
    return USER_MODULES[name]


def check_predictor(name: str) -> None:
    """Check that ``name`` is one of ``PREDICTORS`` or has the form ``package.module:Config``.

    Raises:
        Misspelt: ``name`` is neither of these.
    """
    if name not in PREDICTORS and not re.fullmatch(CONFIG, name):
        raise Misspelt(
            f"predictor={name!r}: no such predictor{did_you_mean(name, PREDICTORS) or ';'} choose one of "
            f"{', '.join(PREDICTORS)}, or one of your own, as package.module:Config"
        )


def config_class(kind: object) -> type[ControllerConfig]:
    """Return the configuration class of the kind of controller that a checkpoint's ``config.json`` names.

    A user's kind is known if this process has imported its module.

    Raises:
        InputError: the kind is unknown.
    """
    modules = [*map(controller_module, CONTROLLERS), *USER_MODULES.values()]
    supported: dict[str, type[ControllerConfig]] = {module.Config.kind: module.Config for module in modules}
    if not isinstance(kind, str) or kind not in supported:
        raise InputError(
            f"kind={kind!r}: unknown kind of controller; this version supports {', '.join(supported)}, and one of your "
            "own where it is named, as package.module:Config:FOLDER"
        )
    return supported[kind]
