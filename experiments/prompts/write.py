"""Writes the built-in prompts that ship with the package, byte for byte the files of ``data_gen/builtin``."""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from specpilot.data_gen.builtin import BuiltinPrompt

from . import builtin, builtin_large
from .copying import TAGS, copying


def as_lines(prompts: Sequence[BuiltinPrompt]) -> bytes:
    """``prompts`` as JSON Lines in order."""
    return "".join(json.dumps(asdict(prompt), ensure_ascii=False) + "\n" for prompt in prompts).encode()


def write(folder: Path) -> list[str]:
    """Write the files; returns the name and SHA-256 of each, as lines of ``specpilot.data_gen.builtin.FILES``."""
    found = []
    texts = builtin()
    copied = [prompt for split in TAGS for prompt in copying(texts, split)]
    sets = {"builtin": texts, "builtin-large": builtin_large(), "builtin-copy": copied}
    for name, prompts in sets.items():
        lines = as_lines(prompts)
        (folder / f"{name}.jsonl.xz").write_bytes(lzma.compress(lines, preset=9))
        found.append(f'"{name}": "{hashlib.sha256(lines).hexdigest()}",')
    return found
