"""The model card of a controller: its purpose, its training and its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import fill

from ..sampling import SamplingParams
from .config import ControllerConfig
from .provenance import TOKEN_WISE

WIDTH = 120  # characters of a line

CARD = """---
library_name: specpilot
tags:
- speculative-decoding
- {kind}
---

# {title}

{summary}

```python
from specpilot import SpeculativeDecoder

{loading}
print(decoder.generate("Once upon a time").text)
```

It works with these models only: `config.json` holds their fingerprints, which are checked when it is loaded.

{about}

## Validation

{metrics}
"""


def model_card(config: ControllerConfig) -> str:
    """The text of ``README.md``."""
    pair = config.provenance
    title = config.title + (f": {pair.draft} drafting" if pair.draft else "") + f" for {pair.target}"
    about = {
        "target": f"`{pair.target}`",
        **({"draft": f"`{pair.draft}`"} if pair.draft else {}),
        **config.rows(),
        "trained under": "; ".join(map(_named, pair.samplings)),
        **({} if pair.verifier == TOKEN_WISE else {"verification rule": f"`{pair.verifier}`"}),
        "calibration": "none" if config.calibration is None else f"{config.calibration.method} (see config.json)",
        "datasets": ", ".join(f"SHA-256 `{digest}`" for digest in config.datasets),
    }
    metrics = {name: f"{value:.4g}" for name, value in sorted(config.metrics.items())}
    warning = "".join(f"\n\n**Warning**: on held-out prompts it is {words}." for words in shortcomings(config.metrics))
    return CARD.format(
        kind=config.kind,
        title=title,
        summary=fill(config.summary, WIDTH),
        loading=_loading(config.usage()),
        about=_table("", about),
        metrics=(_table("metric", metrics) if metrics else "No metrics were recorded.") + warning,
    )


CONSTANTS = {  # metric → that of predicting the mean everywhere; the first that is known is judged by
    "calibrated_kl": "calibrated_kl_constant", "kl_unweighted": "kl_constant", "kl": "kl_constant",
    "brier": "brier_constant",
}  # fmt: skip


def shortcomings(metrics: Mapping[str, float | None]) -> list[str]:
    """Weaknesses of a controller by its metrics, in words that follow "it is"; none if there are none.

    Args:
        metrics: of held-out prompts. Of a predictor a key of ``CONSTANTS`` and its value, and ``auroc`` beside
            ``auroc_draft``, that of the draft's own confidence; of a router ``greedy_reward`` beside ``best_single``.
            What is missing is not judged.
    """
    found = []
    for name, of_constant in CONSTANTS.items():
        own, constant = metrics.get(name), metrics.get(of_constant)
        if own is not None and constant is not None:
            if own >= constant:
                found.append(f"worse than a constant: {name} {own:.4f}, and {constant:.4f} of predicting the mean")
            break
    order = metrics.get("calibrated_auroc", metrics.get("auroc"))
    draft = metrics.get("auroc_draft")
    if order is not None and draft is not None and order < draft:
        found.append(f"worse than the draft's own confidence: AUROC {order:.3f}, and {draft:.3f} of that")
    reward, single = metrics.get("greedy_reward"), metrics.get("best_single")
    if reward is not None and single is not None and reward < single:
        found.append(f"worse than its best single arm: reward {reward:.4f}, and {single:.4f} of always taking that arm")
    return found


def _loading(arguments: str) -> str:
    """The statement that makes a decoder, in lines of at most ``WIDTH`` where names allow it."""
    line, indented = f"decoder = SpeculativeDecoder.from_pretrained({arguments})", f"    {arguments}"
    if len(line) <= WIDTH:
        return line
    if len(indented) > WIDTH:
        indented = indented.replace(", ", ",\n    ") + ","
    return f"decoder = SpeculativeDecoder.from_pretrained(\n{indented}\n)"


def _named(sampling: SamplingParams) -> str:
    top_k = "off" if sampling.top_k is None else sampling.top_k
    return f"temperature {sampling.temperature}, top-k {top_k}, top-p {sampling.top_p}"


def _table(head: str, rows: dict[str, str]) -> str:
    return "\n".join([f"| {head} | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])
