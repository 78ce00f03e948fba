"""The options of ``python -m recipes real-draft`` and ``real-decode``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class RealDraftOptions:
    """Draft of SmolLM2-135M-Instruct.

    Attributes:
        data: Folder of JSON Lines files that the prompts are taken from: mbpp, nl2bash, python_functions, gsm8k, svamp,
            aqua, math500, books and self_instruct.
        parts: Number of datasets of 300 of the target's answers.
    """

    data: Path
    parts: int = 3


@dataclass(frozen=True, kw_only=True)
class RealDecodeOptions:
    """Measurement of decoding.

    Attributes:
        target: Folder of the target.
        draft: Its draft.
        prompts: JSON Lines file of prompts with a domain, of `python -m recipes real-draft`.
        skip: Prompts at the beginning of the file that are left out, since the draft was trained on them.
        per_kind: Number of prompts of each domain.
        max_new_tokens: Number of new tokens of each.
        temperature: Temperature of both models; 0 is greedy.
    """

    target: str = "runs/real/SmolLM2-135M-Instruct"
    draft: str = "runs/real/draft"
    prompts: Path = Path("runs/real/prompts.jsonl")
    skip: int = 900
    per_kind: int = 2
    max_new_tokens: int = 64
    temperature: float = 1.0
