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

{properties}

## Validation

{metrics}
"""


def model_card(config: ControllerConfig) -> str:
    """Return the text of the ``README.md`` in the checkpoint of a controller with the configuration ``config``."""
    pair = config.provenance
    title = config.title + (f": {pair.draft} drafting" if pair.draft else "") + f" for {pair.target}"
    properties = {
        "target": f"`{pair.target}`",
        **({"draft": f"`{pair.draft}`"} if pair.draft else {}),
        **config.rows(),
        "trained under": "; ".join(map(_sampling_text, pair.samplings)),
        **({} if pair.verifier == TOKEN_WISE else {"verification rule": f"`{pair.verifier}`"}),
        "calibration": "none" if config.calibration is None else f"{config.calibration.method} (see config.json)",
        "datasets": ", ".join(f"SHA-256 `{digest}`" for digest in config.datasets),
    }
    metrics = {name: f"{value:.4g}" for name, value in sorted(config.metrics.items())}
    weakness = judgement(config.metrics)
    warning = f"\n\n**Warning**: On held-out prompts this controller {weakness}." if weakness else ""
    return CARD.format(
        kind=config.kind,
        title=title,
        summary=fill(config.summary, WIDTH),
        loading=_loading(config.usage()),
        properties=_table("", properties),
        metrics=(_table("metric", metrics) if metrics else "No metrics were recorded.") + warning,
    )


# Name of a metric → the name of its value for a constant prediction, the mean, and the metric in words. A predictor is
# judged by the first metric whose two values are known.
CONSTANTS = {
    "calibrated_kl": ("calibrated_kl_constant", "KL divergence"),
    "kl_unweighted": ("kl_constant", "KL divergence"),
    "kl": ("kl_constant", "KL divergence"),
    "brier": ("brier_constant", "Brier score"),
}


def strengths_and_weaknesses(metrics: Mapping[str, float | None]) -> tuple[list[str], list[str]]:
    """Return the strengths and the weaknesses of a controller, as phrases whose subject is the controller.

    A predictor is compared with a constant prediction, by a metric of ``CONSTANTS``, and with the draft's own
    confidence, by ``auroc`` and ``auroc_draft``. A router is compared with its best single arm, by ``greedy_reward``
    and ``best_single``. A comparison is left out if one of its two values is missing.

    Args:
        metrics: the metrics on held-out prompts by name.
    """
    strengths, weaknesses = [], []
    for name, (constant_name, label) in CONSTANTS.items():
        value, constant = metrics.get(name), metrics.get(constant_name)
        if value is not None and constant is not None:
            numbers = "({} {}; predicting the mean gives {})".format(label, *_distinct(value, constant))
            if value >= constant:
                weaknesses.append(f"predicts probabilities that are worse than a constant {numbers}")
            else:
                strengths.append(f"predicts probabilities that are better than a constant {numbers}")
            break
    auroc, draft_auroc = metrics.get("calibrated_auroc", metrics.get("auroc")), metrics.get("auroc_draft")
    if auroc is not None and draft_auroc is not None:
        numbers = "(AUROC {}; the confidence has {})".format(*_distinct(auroc, draft_auroc))
        if auroc < draft_auroc:
            weaknesses.append(f"ranks tokens worse than the draft's own confidence {numbers}")
        elif auroc > draft_auroc:
            strengths.append(f"ranks tokens better than the draft's own confidence {numbers}")
    reward, arm_reward = metrics.get("greedy_reward"), metrics.get("best_single")
    if reward is not None and arm_reward is not None and reward < arm_reward:
        numbers = "(reward {}; always choosing that arm gives {})".format(*_distinct(reward, arm_reward))
        weaknesses.append(f"is worse than its best single arm {numbers}")
    return strengths, weaknesses


def judgement(metrics: Mapping[str, float | None]) -> str:
    """Return a phrase with the strengths and weaknesses of a controller; empty if it has no weakness.

    The subject of the phrase is the controller. Arguments as for :func:`strengths_and_weaknesses`.
    """
    strengths, weaknesses = strengths_and_weaknesses(metrics)
    if not weaknesses:
        return ""
    return ", but ".join(" and ".join(phrases) for phrases in (strengths, weaknesses) if phrases)


def _distinct(first: float, second: float) -> tuple[str, str]:
    """Return two numbers with two decimals, or with three or four if their texts would be equal otherwise."""
    digits = next((digits for digits in (2, 3, 4) if round(first, digits) != round(second, digits)), 2)
    return f"{first:.{digits}f}", f"{second:.{digits}f}"


def _loading(arguments: str) -> str:
    """Return the statement that creates a decoder, in lines of at most ``WIDTH`` characters if names allow it."""
    line, indented = f"decoder = SpeculativeDecoder.from_pretrained({arguments})", f"    {arguments}"
    if len(line) <= WIDTH:
        return line
    if len(indented) > WIDTH:
        indented = indented.replace(", ", ",\n    ") + ","
    return f"decoder = SpeculativeDecoder.from_pretrained(\n{indented}\n)"


def _sampling_text(sampling: SamplingParams) -> str:
    """Return sampling parameters in words."""
    top_k = "off" if sampling.top_k is None else sampling.top_k
    return f"temperature {sampling.temperature}, top-k {top_k}, top-p {sampling.top_p}"


def _table(head: str, rows: dict[str, str]) -> str:
    """Return a Markdown table of two columns."""
    return "\n".join([f"| {head} | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])
