"""Soft labels: the target's distributions of next tokens, for distillation.

A drafted token is accepted with probability Σ_v min(p, q), so a draft should learn the target's distribution instead of
samples (Hinton et al. 2015; for drafts: Zhou et al. 2024, "DistillSpec"). The most probable tokens are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import track
from safetensors.torch import load_file, save_file
from specpilot.common.files import replacing
from specpilot.infer.models import CausalLM, Read
from torch import Tensor

from .corpus import Packed

TOP = 50  # top-k of the shipped models
BATCH = 8


@dataclass(frozen=True)
class SoftLabels:
    """Windows of text with the target's distributions.

    Attributes:
        text: N windows of T tokens.
        probabilities: (N, T, TOP) next-token probabilities, renormalised over the most probable tokens.
        tokens: (N, T, TOP) ids of the most probable tokens.
    """

    text: Packed
    probabilities: Tensor
    tokens: Tensor

    @staticmethod
    def join(parts: list[SoftLabels]) -> SoftLabels:
        """All windows of ``parts``."""
        return SoftLabels(
            Packed(
                torch.cat([part.text.tokens for part in parts]), torch.cat([part.text.is_response for part in parts])
            ),
            torch.cat([part.probabilities for part in parts]),
            torch.cat([part.tokens for part in parts]),
        )


@torch.inference_mode()
def compute_soft_labels(target: CausalLM, text: Packed, path: Path) -> SoftLabels:
    """Compute the target's distributions for ``text`` and store them in ``path``; an existing file is read."""
    if not path.exists():
        probabilities, tokens = [], []
        for start in track(range(0, len(text.tokens), BATCH), f"target: {path.stem}"):
            chunk = text.tokens[start : start + BATCH].tolist()
            cache = target.new_cache()
            reads = [Read(row, target.begin(cache, row, tokens, 0), len(tokens)) for row, tokens in enumerate(chunk)]
            logits, _ = target.forward(cache, reads)
            values, ids = logits.view(len(chunk), -1, logits.shape[-1]).topk(TOP)
            probabilities.append(values.float().softmax(-1).bfloat16())
            tokens.append(ids.short())  # vocabularies up to 32,767
        with replacing(path) as temporary:
            save_file({"probabilities": torch.cat(probabilities), "tokens": torch.cat(tokens)}, temporary)
    kept = load_file(path)
    return SoftLabels(text, kept["probabilities"], kept["tokens"])
