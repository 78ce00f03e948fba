"""What a decoding benchmark runs on: a pair, prompts and a warp; light enough to be imported for ``--help``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..controllers.errors import InputError


@dataclass(frozen=True)
class Workload:
    """The work of a benchmark.

    Args:
        target: target model: a shipped tiny model, a folder, or a hub id.
        draft: draft model.
        prompts: 'builtin', a JSON Lines/Parquet/text file, or a hub dataset id.
        column: column that holds the prompt.
        split: split of the built-in bank or of a hub dataset.
        limit: how many prompts.
        chat: put prompts into the chat template.
        max_new_tokens: longest continuation.
        temperature: warp of both models; 0 is greedy.
        top_k: keep the k most probable tokens; null keeps all.
        top_p: keep the most probable tokens up to this mass.
        dtype: float32, bfloat16 or float16.
        compile: compile the decoder's models first.
        device: auto, cpu, cuda, …
    """

    target: str = "tiny"
    draft: str = "tiny-draft"
    prompts: str = "builtin"
    column: str = "prompt"
    split: str = "test"
    limit: int = 20
    chat: bool = True
    max_new_tokens: int = 128
    temperature: float = 1.0
    top_k: int | None = 50
    top_p: float = 1.0
    dtype: str = "float32"
    compile: bool = False
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("limit", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: must be at least 1")

    @property
    def sampling(self) -> dict[str, Any]:
        """Keywords of ``SpeculativeDecoder.generate``."""
        return {name: getattr(self, name) for name in ("max_new_tokens", "temperature", "top_k", "top_p")}


@dataclass(frozen=True)
class CostWorkload(Workload):
    """Less of it, which is enough to time what one token costs, and none that controllers are judged on.

    Args:
        split: split of the built-in bank or of a hub dataset.
        limit: how many prompts.
        max_new_tokens: longest continuation.
    """

    split: str = "train"
    limit: int = 4
    max_new_tokens: int = 64
