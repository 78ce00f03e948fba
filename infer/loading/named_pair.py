"""The models that a trained controller was made for, by the names in its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...checkpoints import shipped
from ...common.errors import InputError, naming
from ...common.options import AUTO
from ...controllers.checkpoints.checkpoint import locate, read_config
from ...controllers.length import names_rule, parse_rule
from ...models.loading.model_files import find_files


def named_pair(target: Any, draft: Any, controllers: Mapping[str, str]) -> tuple[Any, Any]:
    """Target and draft, where ``"auto"`` is that of the first trained controller that names one.

    Without one it stays ``"auto"``. The checkpoint holds the name that was given in training, or the last part of an
    absolute path: a folder of that name is here, or beside the checkpoint.

    Args:
        controllers: lengths, copy heads and routers by the option that names them; rules are left out.

    Raises:
        InputError: a rule or controller cannot be read, or a model that it names is not found.
    """
    for option, name in controllers.items():
        if AUTO not in (target, draft):
            break
        if option == "length" and (names_rule(name) or parse_rule(name) is not None):
            continue
        with naming(option, name):
            folder = locate(name, option=option)
            provenance = read_config(folder).provenance
        if target == AUTO:
            target = _found("target", provenance.target, option, name, folder)
        if draft == AUTO and provenance.draft is not None:
            draft = _found("draft", provenance.draft, option, name, folder)
    return target, draft


def _found(part: str, model: str, option: str, controller: str, folder: Path) -> str:
    """The name by which ``model``, the ``part`` of a controller's pair, is found from here."""
    if shipped(model) is not None or Path(model).expanduser().exists():
        return model
    beside = folder.parent / model
    if beside.exists():
        return str(beside)
    try:
        find_files(model)
    except InputError as error:
        raise InputError(
            f"{option}={controller!r}: was trained for the {part} {model!r}, which is not found here; give it "
            f"as --{part}"
        ) from error
    return model
