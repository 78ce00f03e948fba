"""``specpilot bench spectr``: tokens per target forward by number and length of drafts (SpecTr, Sun et al. 2023).

As its Table 2: K i.i.d. drafts of L tokens are verified by K-SEQ; beside it the same number of nodes under the other
rules. K = 1 is plain speculative decoding. Tokens per target forward do not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...infer.decoder import SpeculativeDecoder
from ...infer.generation import Stats
from ..interval import interval

LENGTHS = (4, 8)
DRAFTS = (1, 2, 4, 8)
RULES = ("k-seq", "spec-infer", "mcss")


def efficiency(runs: list[Stats]) -> dict[str, float]:
    """Tokens per target forward over all runs, and its 95 % interval over resampled prompts."""
    tokens, forwards = (np.array([getattr(run, name) for run in runs]) for name in ("n_generated", "n_target_forwards"))
    value, low, high = interval(np.divide, tokens, forwards)
    return {"value": value, "low": low, "high": high}


def bench_spectr(
    decoder: SpeculativeDecoder,
    prompts: list[list[int]],
    sampling: dict[str, Any],
    on_progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """``block_efficiency[rule][L][K]`` for the pair of ``decoder``; ``sampling`` are keywords of its ``generate``."""
    pair = decoder.target, decoder.drafts[0], decoder.tokenizer
    result: dict[str, dict[str, dict[str, Any]]] = {}
    for rule in RULES:
        for length in LENGTHS:
            for drafts in DRAFTS:
                tree = SpeculativeDecoder(*pair, verifier=rule, tree=(drafts, *[1] * (length - 1)))
                runs = []
                for index, prompt in enumerate(prompts):
                    runs.append(tree.generate(prompt, seed=index, **sampling).stats)
                    on_progress()
                result.setdefault(rule, {}).setdefault(str(length), {})[str(drafts)] = efficiency(runs)
    return {"block_efficiency": result}
