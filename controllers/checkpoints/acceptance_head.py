"""The controller checkpoint: a folder of ``config.json``, ``model.safetensors`` and ``README.md``; never a pickle.

``config.json`` names the model pair, the sampling and the data the controller was trained with, and the SHA-256 of the
weights; all of it is checked when the folder is loaded.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from ..acceptance.acceptance_head import AcceptanceHead
from ..errors import InputError
from .controller_config import CONFIG, ControllerConfig
from .model_card import model_card
from .provenance import Provenance

__all__ = ["Controller", "ControllerConfig", "load_controller", "push_controller", "save_controller"]

WEIGHTS, CARD = "model.safetensors", "README.md"
_DIGEST = "weights_sha256"  # the one key of config.json that is no field of ControllerConfig: it is the file's


@dataclass(frozen=True)
class Controller:
    """A loaded controller: its configuration and its acceptance head, in evaluation mode, float32, on the CPU."""

    config: ControllerConfig
    head: AcceptanceHead

    @property
    def provenance(self) -> Provenance:
        """What it was trained for."""
        config = self.config
        return Provenance(config.target, config.draft, config.fingerprint, config.sampling)


def save_controller(
    folder: str | Path, head: AcceptanceHead, config: ControllerConfig, *, overwrite: bool = False
) -> Path:
    """Write a checkpoint folder; it appears whole or not at all.

    Raises:
        InputError: ``folder`` holds something already (with ``overwrite``: something that is no controller), the head's
            sizes are not the configuration's, a weight is not finite, or the disk cannot be written.
    """
    folder = Path(folder)
    if (head.hidden_size, head.depth) != (config.hidden_size, config.depth):
        raise InputError(
            f"the head is {head.hidden_size} wide and {head.depth} deep, "
            f"its config says {config.hidden_size} and {config.depth}"
        )
    return write_checkpoint(folder, head, config.as_dict(), model_card(config), overwrite=overwrite)


def write_checkpoint(
    folder: Path, module: nn.Module, config: Mapping[str, Any], card: str, *, overwrite: bool = False
) -> Path:
    """Write the folder of any controller: its weights in float32, ``config`` with their digest, and its model card.

    Raises:
        InputError: as :func:`save_controller`.
    """
    state = {name: value.detach().float().cpu().contiguous() for name, value in module.state_dict().items()}
    _require_finite(state, "the controller to save")
    _require_free(folder, overwrite)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as workspace:
            new = Path(workspace, "new")
            new.mkdir()
            (new / WEIGHTS).write_bytes(save(state))  # `save_file` makes files that nobody else may read
            text = json.dumps({**config, _DIGEST: _sha256(new / WEIGHTS)}, indent=2, allow_nan=False)
            (new / CONFIG).write_text(text + "\n", encoding="utf-8")
            (new / CARD).write_text(card, encoding="utf-8")
            if folder.exists():
                folder.rename(Path(workspace, "old"))
            new.rename(folder)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be written ({error.strerror}); choose another place or free space"
        ) from error
    return folder


def _require_free(folder: Path, overwrite: bool) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not folder.is_dir():
        raise InputError(f"{folder}: is a file; give a folder")
    if not overwrite:
        raise InputError(f"{folder}: exists and is not empty; choose another folder or pass --overwrite")
    others = sorted(path.name for path in folder.iterdir() if path.name not in (CONFIG, WEIGHTS, CARD))
    if others:  # whatever it is, it is more than a controller
        raise InputError(f"{folder}: holds {others[0]!r}, which is no part of a controller; choose another folder")


def load_controller(path_or_hub_id: str | Path, *, revision: str | None = None, token: str | None = None) -> Controller:
    """Load a controller from a local folder, or from the Hugging Face hub by its id.

    Args:
        path_or_hub_id: a folder that ``save_controller`` wrote, or ``owner/name`` on the hub; a folder wins.
        revision: branch, tag or commit on the hub.
        token: access token for a private repository; by default the one stored on this machine.

    Raises:
        InputError: it cannot be found, or its files are missing, truncated, changed or not understood.
    """
    folder, data = read_config(path_or_hub_id, revision=revision, token=token)
    try:
        config = ControllerConfig.from_dict(data)
    except InputError as error:
        raise InputError(f"{folder}: {error}") from error
    with torch.device("meta"):  # no memory and no random numbers for weights that are replaced at once
        head = AcceptanceHead(config.hidden_size, config.depth)
    head.load_state_dict(read_weights(folder, head), assign=True)
    return Controller(config, head.eval().requires_grad_(False))


def read_config(
    path_or_hub_id: str | Path, *, revision: str | None = None, token: str | None = None
) -> tuple[Path, dict[str, Any]]:
    """The folder of any controller, fetched if need be, and what its ``config.json`` says but the weights' digest.

    Raises:
        InputError: there is none, a file is missing, or the weights are not those that ``config.json`` names.
    """
    folder = Path(path_or_hub_id).expanduser()
    if not folder.is_dir():
        folder = _download(str(path_or_hub_id), revision, token)
    try:
        data = json.loads(_existing(folder / CONFIG).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{folder / CONFIG}: not JSON; fetch or export the controller again") from error
    if not isinstance(data, dict):
        raise InputError(f"{folder / CONFIG}: a JSON object is expected")
    if not isinstance(data.get("type"), str):
        raise InputError(f"{folder}: type={data.get('type')!r}: not a controller this version knows")
    digest = data.pop(_DIGEST, None)
    weights = _existing(folder / WEIGHTS)
    if digest is None:
        raise InputError(f"{folder}: {CONFIG}: key {_DIGEST!r} is missing; export the controller again")
    if digest != _sha256(weights):
        raise InputError(f"{weights}: truncated or changed, its SHA-256 is not the one in {CONFIG}; fetch it again")
    return folder, data


def _existing(file: Path) -> Path:
    if not file.is_file():
        raise InputError(f"{file}: no such file, so {file.parent} is no controller; export or fetch it again")
    return file


def read_weights(folder: Path, module: nn.Module) -> dict[str, Tensor]:
    """The tensors of a checkpoint.

    Raises:
        InputError: their names, shapes or precision are not those of ``module``, or one is not finite.
    """
    file = folder / WEIGHTS
    expected = {name: list(value.shape) for name, value in module.state_dict().items()}
    try:
        with safe_open(file, framework="pt") as opened:
            found = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
            if odd := sorted(found.keys() ^ expected.keys()):
                raise InputError(f"{file}: tensor {odd[0]!r} is missing or not expected for the sizes in {CONFIG}")
            for name, value in found.items():
                if value.get_shape() != expected[name] or value.get_dtype() != "F32":
                    raise InputError(
                        f"{file}: {name} is {value.get_dtype()} {value.get_shape()}, {CONFIG} says F32 {expected[name]}"
                    )
            state = {name: opened.get_tensor(name) for name in found}
    except SafetensorError as error:
        raise InputError(f"{file}: not a readable safetensors file ({error}); fetch it again") from error
    _require_finite(state, str(file))
    return state


def _require_finite(state: Mapping[str, Tensor], where: str) -> None:
    for name, value in state.items():
        if not bool(torch.isfinite(value).all()):
            raise InputError(f"{where}: {name} holds NaN or infinite weights; train again with a smaller learning rate")


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _download(name: str, revision: str | None, token: str | None) -> Path:
    from huggingface_hub import snapshot_download

    if Path(name).exists() or name.startswith((".", "/", "~")):
        raise InputError(f"{name}: no controller folder; give a folder or an id on the Hugging Face hub (owner/name)")
    try:
        return Path(snapshot_download(name, revision=revision, token=token, allow_patterns=[CONFIG, WEIGHTS, CARD]))
    except Exception as error:  # the hub library's own errors and those of whichever HTTP client it brings
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{name}: neither a folder nor a reachable controller on the hub ({reason})") from error


def push_controller(
    folder: str | Path, repo_id: str, *, private: bool = False, token: str | None = None, revision: str | None = None
) -> str:
    """Upload a checkpoint folder to the Hugging Face hub and return the address of the commit.

    Args:
        folder: what ``save_controller`` wrote; it is checked first.
        repo_id: ``owner/name``; made if it does not exist.
        private: make a new repository private.
        token: access token with write permission; by default the one stored on this machine.
        revision: branch to write to, main by default.

    Raises:
        InputError: the folder is no valid controller, or the hub refuses it.
    """
    from huggingface_hub import HfApi

    if not Path(folder).is_dir():
        raise InputError(f"{folder}: no such folder; export a controller first")
    load_controller(folder)
    api = HfApi(token=token)
    try:
        api.create_repo(repo_id, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            revision=revision,
            allow_patterns=[CONFIG, WEIGHTS, CARD],
            commit_message="Upload acceptance head",
        )
    except Exception as error:  # the hub library's own errors and those of whichever HTTP client it brings
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{repo_id}: the hub refused the upload ({reason})") from error
    return str(commit.commit_url)
