"""``specpilot bench spectr``: tokens per target forward by number and length of drafts (SpecTr, Sun et al. 2023).

As in the paper's Table 2, K-SEQ verifies K i.i.d. drafts of L tokens; the other rules verify the same number of nodes.
K = 1 is standard speculative decoding. Tokens per target forward do not depend on the machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Console
from specpilot.compare.interval import interval, show
from specpilot.compare.runner import decode_all
from specpilot.compare.table import Table
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.generation import Stats

LENGTHS = (4, 8)
DRAFTS = (1, 2, 4, 8)
RULES = ("k-seq", "spec-infer", "mcss")


def efficiency(runs: list[Stats]) -> dict[str, float]:
    """Tokens per target forward over all runs, and its 95 % interval over resampled prompts."""
    tokens, forwards = (np.array([getattr(run, name) for run in runs]) for name in ("n_generated", "n_target_forwards"))
    return interval(np.divide, tokens, forwards).as_dict()


def bench_spectr(
    decoder: SpeculativeDecoder, prompts: list[list[int]], sampling: dict[str, Any], console: Console
) -> dict[str, Any]:
    """``block_efficiency[rule][L][K]`` for the pair of ``decoder``; ``sampling`` are keywords of its ``generate``."""
    pair = decoder.target, decoder.drafts[0], decoder.tokenizer
    trees = {
        f"{rule} {length} {drafts}": SpeculativeDecoder(*pair, verifier=rule, tree=(drafts, *[1] * (length - 1)))
        for rule in RULES
        for length in LENGTHS
        for drafts in DRAFTS
    }
    runs = decode_all({name: tree.generate for name, tree in trees.items()}, prompts, sampling, console)
    result: dict[str, dict[str, dict[str, Any]]] = {}
    for name, of_name in runs.items():
        rule, length, drafts = name.split()
        result.setdefault(rule, {}).setdefault(length, {})[drafts] = efficiency(of_name)
    return {"block_efficiency": result}


def as_table(result: dict[str, Any]) -> Table:
    """A row for each rule and draft length."""
    rows = [
        {"rule": rule, "L": length, **{f"K = {drafts}": show(found) for drafts, found in by_drafts.items()}}
        for rule, by_length in result["block_efficiency"].items()
        for length, by_drafts in by_length.items()
    ]
    return Table("tokens per target forward", rows)
