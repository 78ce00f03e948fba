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
    """Replace ``"auto"`` by the models that the first trained controller in ``controllers`` was made for.

    Without a trained controller, ``"auto"`` is returned unchanged. A checkpoint has the model's name in the training,
    or the last part of an absolute path. A folder of this name is searched in the working folder and beside the
    checkpoint.

    Args:
        target, draft: the options; ``"auto"`` is replaced.
        controllers: names of lengths, copy heads and routers, by option; names of rules are ignored.

    Returns:
        Target and draft.

    Raises:
        InputError: a rule or controller cannot be read, or a model that it names does not exist.
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
            target = _local_name("target", provenance.target, option, name, folder)
        if draft == AUTO and provenance.draft is not None:
            draft = _local_name("draft", provenance.draft, option, name, folder)
    return target, draft


def _local_name(part: str, model: str, option: str, controller: str, folder: Path) -> str:
    """Return a name under which ``model`` can be loaded here.

    Args:
        part: ``"target"`` or ``"draft"``, for messages.
        model: the name in the checkpoint.
        option, controller: the option with the controller's name, and this name, for messages.
        folder: the folder of the checkpoint.

    Raises:
        InputError: the model does not exist here.
    """
    if shipped(model) is not None or Path(model).expanduser().exists():
        return model
    sibling_folder = folder.parent / model
    if sibling_folder.exists():
        return str(sibling_folder)
    try:
        find_files(model)
    except InputError as error:
        raise InputError(
            f"{option}={controller!r}: was trained for the {part} {model!r}, which is not found here; give it "
            f"as --{part}"
        ) from error
    return model
