"""What the target thinks of every next token: soft labels that teach a draft more than the token that happened to come.

A draft is accepted with probability Σ_v min(p, q), so it should learn the target's distribution, not one sample of it
(Hinton et al. 2015; for drafts: Zhou et al. 2024, "DistillSpec"). The target reads each window once; its most probable
tokens are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import track
from safetensors.torch import load_file, save_file
from specpilot.data_gen.dataset import replacing
from specpilot.infer.models import CausalLM, Read
from torch import Tensor

from .corpus import Packed

TOP = 50  # what the shipped models are sampled from
BATCH = 8


@dataclass(frozen=True)
class SoftLabels:
    """Windows of text with the target's opinion of them.

    Attributes:
        text: N windows of T tokens.
        probabilities: (N, T, TOP) what the target expects after each token, renormalised over its most probable tokens.
        tokens: (N, T, TOP) those tokens' ids.
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
def teach(target: CausalLM, text: Packed, path: Path) -> SoftLabels:
    """Let the target read ``text``; kept in ``path`` and read back from there."""
    if not path.exists():
        probabilities, tokens = [], []
        for start in track(range(0, len(text.tokens), BATCH), f"the target reads {path.stem}"):
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
