"""Digests of trained controllers' files.

Stored results refer to a controller by this digest instead of its path, since it may be retrained in the same folder.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from .checkpoint import WEIGHTS, locate, read_config
from .config import CONFIG


def controller_digest(name: str | Path) -> str:
    """SHA-256 (hexadecimal) of the weights and the configuration of a trained controller.

    Args:
        name: as for :func:`~.checkpoint.load_controller`.

    Raises:
        InputError: it cannot be found, or its weights do not match its configuration.
    """
    path = locate(name)
    if path.is_dir():
        read_config(path)
    files = [path / WEIGHTS, path / CONFIG] if path.is_dir() else [path]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
