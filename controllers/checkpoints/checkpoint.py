"""The controller checkpoint: a folder of ``config.json``, ``model.safetensors`` and ``README.md``; never a pickle.

All kinds of controllers in :mod:`..registry`, and those of the user, have this format. ``config.json`` has the models,
sampling parameters and data of the training, and the SHA-256 of the weights. Loading checks the format, the SHA-256 and
the shapes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from ...checkpoints import FOLDER, shipped, shipped_controllers
from ...common.errors import InputError, Misspelt, did_you_mean
from ...common.files import (
    check_free,
    check_no_pointer,
    check_no_run,
    lacking,
    replacing_folder,
    sha256,
    shorten_paths,
)
from ...common.json_file import build, naming_file, read_object
from ..registry import config_class, controller_module
from ..user_modules import CHECKPOINT
from .card import model_card
from .config import CONFIG, SCHEMA_VERSION, ControllerConfig, with_current_names
from .hub import download, upload

WEIGHTS, CARD = "model.safetensors", "README.md"
FILES = (CONFIG, WEIGHTS, CARD)
FETCH_AGAIN = "fetch or export the controller again"
_DIGEST = "weights_sha256"  # a key of config.json that is not a field of the configuration


@dataclass(frozen=True)
class Controller:
    """A loaded controller.

    Attributes:
        config: the configuration.
        head: the network with its weights, in evaluation mode, in float32, on the CPU.
    """

    config: ControllerConfig
    head: nn.Module


def save_controller(folder: str | Path, head: nn.Module, config: ControllerConfig, *, overwrite: bool = False) -> Path:
    """Write a checkpoint folder atomically. The weights are stored in float32.

    Only the last part of an absolute path, such as that of a local model, is stored, because a checkpoint may be
    published.

    Args:
        folder: the folder to create.
        head: the trained network.
        config: its configuration.
        overwrite: whether an existing controller is replaced.

    Raises:
        InputError: ``folder`` is not empty (with ``overwrite``: has other files than those of a controller), the
            head's sizes differ from the configuration's, a weight is not finite, or writing fails.
    """
    folder, config = Path(folder), shorten_paths(config)
    state = {name: value.detach().float().cpu().contiguous() for name, value in head.state_dict().items()}
    _check_shapes({name: list(value.shape) for name, value in state.items()}, config, "the controller to save")
    _check_finite(state, "the controller to save")
    check_free(folder, overwrite)
    weights = save(state)  # `save_file` creates files that only the user can read
    with replacing_folder(folder) as new:
        (new / WEIGHTS).write_bytes(weights)
        text = json.dumps({**config.to_dict(), _DIGEST: sha256(new / WEIGHTS)}, indent=2, allow_nan=False)
        (new / CONFIG).write_text(text + "\n", encoding="utf-8")
        (new / CARD).write_text(model_card(config), encoding="utf-8")
    return folder


def load_controller(name: str | Path, *, revision: str | None = None, token: str | None = None) -> Controller:
    """Load a controller of any kind.

    Args:
        name: the name of an included controller, a folder that :func:`save_controller` wrote, or ``owner/name`` on the
            Hugging Face hub, in this order. For a kind of the user's, the name begins with the class of its
            configuration: ``package.module:Config:FOLDER``.
        revision: branch, tag or commit on the hub.
        token: access token for a private repository. Default: the token stored on this machine.

    Raises:
        InputError: the controller does not exist, or its files are missing, truncated, changed or invalid.
    """
    path = locate(name, revision=revision, token=token)
    config = read_config(path)
    state = _read_weights(path / WEIGHTS, config)
    _check_finite(state, str(path))
    with torch.device("meta"):  # no memory and no random numbers for weights that are replaced below
        head = config.module()
    head.load_state_dict(state, assign=True)
    return Controller(config, head.eval().requires_grad_(False))


def locate(
    name: str | Path, *, option: str | None = None, revision: str | None = None, token: str | None = None
) -> Path:
    """Return the folder of a controller, which is downloaded if necessary.

    Args:
        name, revision, token: as for :func:`load_controller`.
        option: the option that names the controller: length, copies or router. The error then proposes controllers of
            this option only.

    Raises:
        InputError: the controller does not exist.
    """
    if isinstance(name, str) and (user_kind := CHECKPOINT.fullmatch(name)):
        controller_module(user_kind["kind"])  # registers the kind
        name = user_kind["folder"]
    local = shipped(name) if isinstance(name, str) else None
    path = Path(name).expanduser() if local is None else local
    if path.exists():
        return path
    if isinstance(name, Path) or name.startswith((".", "/", "~")) or "/" not in name:
        included = [controller for controller in shipped_controllers() if option in (None, _option(controller))]
        suggestion = did_you_mean(str(name), included) or ";"
        places = ", ".join(["a folder", *included])
        noun = "controller" if option in (None, "length") else {"copies": "copy head"}.get(option, option)
        raise Misspelt(
            f"{name}: no such {noun}{suggestion} give {places}, or an id on the Hugging Face hub (owner/name)"
        )
    return download(name, FILES, revision=revision, token=token)


def _option(included: str) -> str:
    """Return the option for the ``included`` controller: length, copies or router."""
    kind = read_object(FOLDER / included / CONFIG, FETCH_AGAIN)["kind"]
    return config_class(kind).option


def read_config(folder: Path) -> ControllerConfig:
    """Read the configuration of a controller's folder.

    Raises:
        InputError: a file is missing or damaged, or the weights do not match ``config.json``.
    """
    if not (folder / CONFIG).is_file():
        check_no_run(folder)
        raise InputError(f"{folder}: not a controller, {lacking(folder, CONFIG)}; {FETCH_AGAIN}")
    data = read_object(folder / CONFIG, FETCH_AGAIN)
    digest = data.pop(_DIGEST, None)
    with naming_file(folder / CONFIG, FETCH_AGAIN):
        config = _parse_config(data)
        if digest is None:
            raise InputError(f"key {_DIGEST!r} is missing")
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise InputError(f"{folder}: holds no {WEIGHTS}; {FETCH_AGAIN}")
    check_no_pointer(weights)
    if digest != sha256(weights):
        raise InputError(f"{weights}: truncated or changed, its SHA-256 is not the one in {CONFIG}; {FETCH_AGAIN}")
    return config


def _parse_config(data: dict[str, Any]) -> ControllerConfig:
    """Return the configuration for the keys of ``config.json``.

    Raises:
        InputError: a value is invalid.
    """
    kind, version = data.pop("kind", None), data.pop("schema_version", None)
    config = config_class(kind)
    if type(version) is not int or version != SCHEMA_VERSION:
        raise InputError(f"schema_version={version!r}: this version of specpilot reads {SCHEMA_VERSION}")
    if "metrics" in data:
        data["metrics"] = with_current_names(data["metrics"])
    return build(config, data)


def _read_weights(file: Path, config: ControllerConfig) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint, and check their names, shapes and precision.

    Raises:
        InputError: a tensor is missing or wrong, or the file is damaged.
    """
    try:
        with safe_open(file, framework="pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
            _check_shapes({name: value.get_shape() for name, value in slices.items()}, config, str(file))
            for name, value in slices.items():
                if value.get_dtype() != "F32":
                    raise InputError(f"{file}: {name} is {value.get_dtype()}, not F32; {FETCH_AGAIN}")
            return {name: opened.get_tensor(name) for name in slices}
    except SafetensorError as error:
        raise InputError(f"{file}: not a readable safetensors file ({error}); {FETCH_AGAIN}") from error


def push_controller(folder: str | Path, repo_id: str, *, private: bool = False, token: str | None = None) -> str:
    """Upload a checkpoint folder to the Hugging Face hub and return the address of the commit.

    Args:
        folder: a folder written by :func:`save_controller`; it is validated first.
        repo_id: ``owner/name``; created if it does not exist.
        private: whether a new repository is private.
        token: access token with write permission. Default: the token stored on this machine.

    Raises:
        InputError: the folder is not a valid controller, or the hub refuses the upload.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; export a controller first")
    kind = load_controller(folder).config.kind
    return upload(folder, repo_id, FILES, message=f"Upload {kind}", private=private, token=token)


def _check_shapes(shapes: Mapping[str, list[int]], config: ControllerConfig, file_name: str) -> None:
    """Check that tensors have the names and shapes of the network of ``config``.

    Raises:
        InputError: names or shapes differ; ``file_name`` is in the message.
    """
    with torch.device("meta"):
        expected = {name: list(value.shape) for name, value in config.module().state_dict().items()}
    if mismatched := sorted(shapes.keys() ^ expected.keys()):
        raise InputError(f"{file_name}: tensor {mismatched[0]!r} is missing or not expected for the sizes in {CONFIG}")
    for name, shape in shapes.items():
        if shape != expected[name]:
            raise InputError(f"{file_name}: {name} has shape {shape}, but {CONFIG} requires {expected[name]}")


def _check_finite(state: Mapping[str, Tensor], file_name: str) -> None:
    """Check that all weights are finite.

    Raises:
        InputError: a weight is not finite; ``file_name`` is in the message.
    """
    for name, value in state.items():
        if not bool(torch.isfinite(value).all()):
            raise InputError(
                f"{file_name}: {name} holds NaN or infinite weights; train again with a smaller learning rate"
            )


def controller_digest(name: str | Path) -> str:
    """Return the SHA-256 (hexadecimal) of the weights and the configuration of a trained controller.

    Args:
        name: as for :func:`~.checkpoint.load_controller`.

    Raises:
        InputError: the controller does not exist, or its weights do not match its configuration.
    """
    path = locate(name)
    read_config(path)
    return hashlib.sha256((path / WEIGHTS).read_bytes() + (path / CONFIG).read_bytes()).hexdigest()
