"""The target's continuations of training prompts, on which drafts are trained."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from rich.progress import track
from specpilot.common.files import replacing
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.rollout import roll_out
from specpilot.infer.models import CausalLM

CHUNK = 512
BATCH = 64


def sample_outputs(
    model: CausalLM,
    prompts: dict[str, list[int]],
    folder: Path,
    *,
    budget: int,
    seed: int,
    stop_tokens: frozenset[int],
) -> dict[str, list[int]]:
    """Continuations by id, sampled at temperature 1 and top-k 50; finished chunks in ``folder`` are reused."""
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
                model, [prompts[id] for id in chunk], uniforms, SamplingParams(1.0, 50), stop_tokens, batch_size=BATCH
            )
            made = {id: row.tokens for id, row in zip(chunk, rows, strict=True)}
            with replacing(path) as temporary:
                temporary.write_text(json.dumps(made), encoding="utf-8")
        outputs |= json.loads(path.read_text(encoding="utf-8"))
    return outputs
