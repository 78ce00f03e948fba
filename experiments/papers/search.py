"""Settings of the lossy rules, chosen on validation prompts as the paper does (Qin et al. 2025, Appendix F).

The paper takes the setting of lowest perplexity. Perplexities of two dozen outputs are noisy, so this search considers
all settings whose perplexity is not significantly above the lowest (95 % interval of the change) and takes the one with
the most tokens per target forward.
"""

from __future__ import annotations

from typing import Any

from .specs import DecoderSpec, Runner, Runs

MTAD_GRID = [
    DecoderSpec(f"mtad:{tau}", str(length), beams=width, argmax=argmax)
    for argmax in (False, True)
    for width in (4, 8)
    for length in (3, 4)
    for tau in (0.1, 0.3, 0.5, 0.7, 0.9)
]
TYPICAL_GRID = [DecoderSpec(f"typical:{epsilon}", "4") for epsilon in (0.05, 0.09, 0.2, 0.4)]
BILD_GRID = [DecoderSpec(f"bild:{nats}", "fallback:0.6") for nats in (2, 3, 4, 5)]


def choose(runner: Runner, grid: list[DecoderSpec]) -> tuple[DecoderSpec, list[dict[str, Any]]]:
    """The chosen setting, and the results of every setting on the validation prompts."""
    runs = runner.measure(grid, validation=True)
    chosen = best(runs)
    return chosen, [
        spec.as_dict()
        | {
            "perplexity": found.perplexity,
            "tokens_per_target_forward": found.tokens_per_forward["value"],
            "chosen": spec == chosen,
        }
        for spec, found in runs.items()
    ]


def best(runs: dict[DecoderSpec, Runs]) -> DecoderSpec:
    """The most tokens per target forward among settings whose perplexity is not significantly above the lowest."""
    lowest = min(runs.values(), key=lambda found: found.perplexity["value"])
    near = [spec for spec, found in runs.items() if found.perplexity_change(lowest)["low"] <= 0]
    return max(near, key=lambda spec: runs[spec].tokens_per_forward["value"])
