"""Trained controllers by what is in their files: one that was trained again in its old place is another one.

Results that depend on a controller are filed under these digests, not under its path.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from ...checkpoints import shipped
from ..length import parse_rule
from .acceptance_head import WEIGHTS, read_config
from .controller_config import CONFIG


def controller_digest(name: str | Path) -> str:
    """SHA-256 (hexadecimal) of the weights and the configuration of a trained controller.

    Args:
        name: the name of a shipped controller, the path of a folder or of a feature controller's file, or a hub id.

    Raises:
        InputError: it cannot be found, or its weights are not those that its configuration names.
    """
    local = shipped(str(name))
    path = Path(name).expanduser() if local is None else local
    if path.is_file():
        files = [path]
    else:
        folder, _ = read_config(name if local is None else local)
        files = [folder / WEIGHTS, folder / CONFIG]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def length_digest(length: str | int | None) -> str | None:
    """:func:`controller_digest` of the trained controller that ``length`` names; None for a number, a rule and None."""
    if length is None or parse_rule(str(length)) is not None:
        return None
    return controller_digest(str(length))
