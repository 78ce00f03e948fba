"""The model card of a controller: its purpose, its training and its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import fill

from ..sampling import SamplingParams
from .config import ControllerConfig

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
        "calibration": "none" if config.calibration is None else f"{config.calibration['method']} (see config.json)",
        "datasets": ", ".join(f"SHA-256 `{digest}`" for digest in config.datasets),
    }
    metrics = {name: f"{value:.4g}" for name, value in sorted(config.metrics.items())}
    return CARD.format(
        kind=config.kind,
        title=title,
        summary=fill(config.summary, WIDTH),
        loading=_loading(config.usage()),
        about=_table("", about),
        metrics=_table("metric", metrics) if metrics else "No metrics were recorded.",
    )


def shortcomings(metrics: Mapping[str, float | None]) -> list[str]:
    """What metrics of an acceptance predictor say against it, in words; nothing where it is as good as it should be.

    Args:
        metrics: of held-out prompts: ``kl`` (``calibrated_kl`` or ``kl_undone`` of a head trained with weights) and
            ``kl_constant``, that of predicting the mean; ``auroc`` and ``auroc_draft``, that of the draft's own
            confidence.
    """
    found = []
    kl = next((metrics[name] for name in ("calibrated_kl", "kl_undone", "kl") if name in metrics), None)
    constant, auroc, own = (metrics.get(name) for name in ("kl_constant", "auroc", "auroc_draft"))
    if kl is not None and constant is not None and kl >= constant:
        found.append(f"worse than a constant: its KL is {kl:.4f}, that of predicting the mean {constant:.4f}")
    if auroc is not None and own is not None and auroc < own:
        found.append(f"worse than the draft's own confidence: its AUROC is {auroc:.3f}, that of the draft's {own:.3f}")
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
