"""Training data of drafts from the target: its continuations of prompts, and its distributions (soft labels).

A drafted token is accepted with probability Σ_v min(p, q), so a draft should learn the target's distribution instead of
samples (Hinton et al. 2015; for drafts: Zhou et al. 2024, "DistillSpec"). The most probable tokens are stored.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import track
from safetensors.torch import load_file, save_file
from specpilot.common.files import replacing
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.rollout import roll_out
from specpilot.models import CausalLM, Read
from torch import Tensor

from .corpus import Packed

TOP = 50  # top-k of the shipped models
BATCH = 8
CHUNK, SAMPLED_TOGETHER = 512, 64  # of continuations: stored, and decoded at once


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
        """Return all windows of ``parts``."""
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
    stored = load_file(path)
    return SoftLabels(text, stored["probabilities"], stored["tokens"])


def sample_outputs(
    model: CausalLM,
    prompts: dict[str, list[int]],
    folder: Path,
    *,
    budget: int,
    seed: int,
    stop_tokens: frozenset[int],
) -> dict[str, list[int]]:
    """Return continuations by id, sampled at temperature 1 and top-k 50; finished chunks in ``folder`` are reused."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = sorted(prompts, key=lambda id: hashlib.sha256(id.encode()).digest())
    outputs: dict[str, list[int]] = {}
    for start in track(range(0, len(ids), CHUNK), "target's outputs"):
        path = folder / f"{start // CHUNK:04d}.json"
        if not path.exists():
            chunk = sorted(ids[start : start + CHUNK], key=lambda id: len(prompts[id]))
            generator = torch.Generator().manual_seed((seed << 32) + start)
            uniforms = list(torch.rand(len(chunk), budget, generator=generator))
            rows = roll_out(
                model,
                [prompts[id] for id in chunk],
                uniforms,
                SamplingParams(1.0, 50),
                stop_tokens,
                batch_size=SAMPLED_TOGETHER,
            )
            sampled_tokens = {id: row.tokens for id, row in zip(chunk, rows, strict=True)}
            with replacing(path) as temporary:
                temporary.write_text(json.dumps(sampled_tokens), encoding="utf-8")
        outputs |= json.loads(path.read_text(encoding="utf-8"))
    return outputs
