"""The options of ``python -m experiments real-draft`` and ``real-decode``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class RealDraftOptions:
    """Draft of SmolLM2-135M-Instruct.

    Attributes:
        data: Folder of JSON Lines files that the prompts are taken from: mbpp, nl2bash, python_functions, gsm8k, svamp,
            aqua, math500, books and self_instruct.
        parts: Number of datasets of 300 of the target's answers in the first stage of the draft's training.
        stages: Number of stages, at most 3; the later ones train it on 11 and 12 further datasets.
    """

    data: Path
    parts: int = 12
    stages: int = 3


@dataclass(frozen=True, kw_only=True)
class RealDecodeOptions:
    """Measurement of decoding.

    Attributes:
        target: Folder of the target.
        draft: Its draft.
        gguf: The target as a GGUF file, for llama.cpp; null leaves that engine out.
        dtypes: Precisions of the target in PyTorch.
        draft_dtype: Precision of the draft there; null: the target's.
        controller: Trained acceptance predictor of the pair, in one of these precisions.
        copies: Trained copy head of the target; null copies by the text's own rates.
        router: Trained router with the draft as one of its arms; null leaves it out.
        only: Names of configurations to time, such as specpilot-router; null: all.
        prompts: JSON Lines file of prompts with a domain, which nothing was trained on: `real-draft` writes them.
        per_kind: Number of prompts of each domain.
        max_new_tokens: Number of new tokens of each.
        temperatures: Temperatures of both models; 0 is greedy, others sample with top-p 0.95.
        folder: Folder of intermediate results; an interrupted measurement in it is continued.
        output: File that is written.
    """

    output: Path
    target: str = "runs/real/SmolLM2-135M-Instruct"
    draft: str = "runs/real/draft"
    gguf: Path | None = None
    dtypes: tuple[str, ...] = ("bfloat16", "float32")
    draft_dtype: str | None = "bfloat16"
    controller: str | None = None
    copies: str | None = None
    router: str | None = None
    only: tuple[str, ...] | None = None
    prompts: Path = Path("runs/real/held-out.jsonl")
    per_kind: int = 3
    max_new_tokens: int = 64
    temperatures: tuple[float, ...] = (0.0, 1.0)
    folder: Path = Path("runs/real/decode")
