"""The validation split."""

from __future__ import annotations

import hashlib


def is_validation(prompt_id: str, fraction: float) -> bool:
    """Whether a prompt is held out, decided by the hash of its id, so that adding data does not change the split."""
    return int.from_bytes(hashlib.sha256(prompt_id.encode()).digest()[:8]) < fraction * 2**64
