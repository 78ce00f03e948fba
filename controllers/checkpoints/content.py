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
    read_config(path)
    return hashlib.sha256((path / WEIGHTS).read_bytes() + (path / CONFIG).read_bytes()).hexdigest()
