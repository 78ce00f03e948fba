"""``specpilot bench forward``: milliseconds of one cached forward of target and draft, by how many tokens it reads."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch

from ..infer.cached_model import CachedModel
from ..infer.models import load_causal_lm

READ = (1, 2, 3, 4, 5, 7, 9, 13)
CONTEXT = 128  # tokens in the cache before


def bench_forward(target: str, draft: str, repeats: int) -> dict[str, Any]:
    """Medians over ``repeats`` forwards, the library's path and the general one in turn, and t_draft / t_target(1)."""
    models = {name: CachedModel(load_causal_lm(source)) for name, source in (("target", target), ("draft", draft))}
    result: dict[str, Any] = {}
    for name, model in models.items():
        paths = {"transformers": None} | ({} if model.lean is None else {"lean": model.lean})
        times: dict[str, dict[int, list[float]]] = {path: {n: [] for n in READ} for path in paths}
        for _ in range(repeats + 2):  # the first two are warm-up
            for path, lean in paths.items():
                model.lean = lean
                _read_context(model)
                for n in READ:
                    times[path][n].append(_one(model, n))
        result[name] = {
            path: {str(n): round(median(t[2:]) * 1e3, 4) for n, t in by_n.items()} for path, by_n in times.items()
        }
    best = {name: min(path["1"] for path in paths.values()) for name, paths in result.items()}
    return {"milliseconds": result, "ratio": best["draft"] / best["target"], "context": CONTEXT, "repeats": repeats}


@torch.inference_mode()
def _read_context(model: CachedModel) -> None:
    model.start(CONTEXT + max(READ))
    model.forward(torch.arange(CONTEXT, device=model.device)[None] % model.vocab_size, keep=1)


@torch.inference_mode()
def _one(model: CachedModel, n: int) -> float:
    """Seconds of reading ``n`` tokens after ``CONTEXT`` others."""
    tokens = torch.arange(n, device=model.device)[None] % model.vocab_size
    started = time.perf_counter()
    logits, _ = model.forward(tokens)
    float(logits[0, -1, 0])  # waits for an accelerator
    seconds = time.perf_counter() - started
    model.crop(CONTEXT)
    return seconds
