"""Decoding of a real pair by the clock, by kind of prompt: autoregressive, fixed lengths, confidence, n-grams."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from specpilot.bench.interval import ratio_interval
from specpilot.bench.runner import interleave
from specpilot.controllers.length import CumulativeConfidence, Fixed
from specpilot.data_gen.prompts import PromptRow, load_prompts
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.loading import load_any_model, load_tokenizer
from specpilot.infer.machine import commit, machine, versions

from .settings import RealDecodeOptions

AUTOREGRESSIVE = "autoregressive"
RULES: dict[str, Any] = {
    "fixed-1": Fixed(1), "fixed-2": Fixed(2), "confidence-0.6": CumulativeConfidence(0.6),
    "confidence-0.4": CumulativeConfidence(0.4),
}  # fmt: skip


def measure(settings: RealDecodeOptions, output: Path) -> dict[str, Any]:
    """Time every configuration on the same prompts in turn, and write the result to ``output``."""
    rows = chosen(load_prompts(str(settings.prompts), skip=settings.skip), settings.per_kind)
    tokenizer, target = load_tokenizer(settings.target), load_any_model(settings.target)
    draft = load_any_model(settings.draft, target=target)
    drafting = SpeculativeDecoder(target, draft, tokenizer)
    plain = SpeculativeDecoder(drafting.target, None, tokenizer)
    options: dict[str, Any] = {
        "max_new_tokens": settings.max_new_tokens, "temperature": settings.temperature, "top_k": None,
        "top_p": 0.95 if settings.temperature else 1.0, "chat": True,
    }  # fmt: skip

    def decoding(decoder: SpeculativeDecoder, length: Any) -> Any:
        return lambda item, repeat: decoder.generate(rows[item].prompt, seed=item, length=length, **options)

    runs = {AUTOREGRESSIVE: decoding(plain, None)} | {name: decoding(drafting, rule) for name, rule in RULES.items()}
    found = interleave(runs, len(rows), Console(stderr=True))
    tokens = {name: np.array([sum(len(t.value.tokens) for t in item) for item in found[name]]) for name in runs}
    kinds = {"all": np.ones(len(rows), dtype=bool)}
    kinds |= {kind: np.array([row.domain == kind for row in rows]) for kind in sorted({row.domain for row in rows})}
    result: dict[str, Any] = {
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "settings": {**vars(settings), "prompts": str(settings.prompts), "sampling": options},
        "acceptance_rate": {
            name: sum(t.value.stats.n_accepted for item in found[name] for t in item)
            / max(1, sum(t.value.stats.n_drafted for item in found[name] for t in item))
            for name in RULES
        },
    }
    for clock in ("seconds", "processor_seconds"):  # other work on the machine changes the second one less
        spent = {name: np.array([sum(vars(t)[clock] for t in item) for item in found[name]]) for name in runs}
        result[f"tokens_per_{clock.removesuffix('s')}"] = {
            kind: {name: float(tokens[name][at].sum() / spent[name][at].sum()) for name in runs}
            for kind, at in kinds.items()
        }
        plain_rate = tokens[AUTOREGRESSIVE], spent[AUTOREGRESSIVE]
        result[f"over_autoregressive_in_{clock}"] = {
            name: ratio_interval(tokens[name], spent[name], *plain_rate).as_dict() for name in RULES
        }
    output.write_text(json.dumps(result, indent=1, default=str) + "\n", encoding="utf-8")
    return result


def chosen(rows: list[PromptRow], per_kind: int) -> list[PromptRow]:
    """The first ``per_kind`` prompts of every domain."""
    ordered = sorted(rows, key=lambda row: row.domain)
    return [row for _, group in groupby(ordered, lambda row: row.domain) for row in list(group)[:per_kind]]
