"""The model card of a controller: what it is, what it was trained for, and how well it judges."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .controller_config import ControllerConfig

CARD_TEMPLATE = """---
library_name: specpilot
tags:
- speculative-decoding
- acceptance-head
---

# Acceptance head: {draft} drafting for {target}

Reads the last hidden state of the draft model at a token it has drafted, and predicts the probability that the target
model accepts that token (SpecDec++, Huang et al. 2024). Drafting stops when the probability that some token of the
draft is rejected exceeds the threshold.

```python
from specpilot import SpeculativeDecoder

decoder = SpeculativeDecoder.from_pretrained(target="{target}", draft="{draft}", length="path/to/this/folder")
print(decoder.generate("Once upon a time").text)
```

It works with this pair of models only: `config.json` holds their fingerprints, which are checked when it is loaded.

| | |
|---|---|
| target | `{target}` |
| draft | `{draft}` |
| head | {depth} residual blocks of size {hidden_size} and a linear layer |
| trained under | temperature {temperature}, top-k {top_k}, top-p {top_p} |
| loss weights | acceptance {w_acc}, rejection {w_rej} |
| target tokens mixed in | {mixing:.0%} |
| threshold | {threshold} ({threshold_source}) |
| calibration | {calibration} |
| dataset | SHA-256 `{dataset}` |

## Validation

{metrics}
"""


def model_card(config: ControllerConfig) -> str:
    """The text of ``README.md`` for a controller."""
    rows = [f"| {name} | {value:.4g} |" for name, value in sorted(config.metrics.items())]
    return CARD_TEMPLATE.format(
        target=config.target,
        draft=config.draft,
        depth=config.depth,
        hidden_size=config.hidden_size,
        temperature=config.sampling.temperature,
        top_k="off" if config.sampling.top_k is None else config.sampling.top_k,
        top_p=config.sampling.top_p,
        w_acc=config.w_acc,
        w_rej=config.w_rej,
        mixing=config.mixing,
        threshold=config.threshold,
        threshold_source=config.threshold_source,
        calibration="none: probabilities are those of the weighted loss"
        if config.calibration is None
        else f"{config.calibration['method']} (see config.json)",
        dataset=config.dataset_fingerprint,
        metrics="\n".join(["| metric | value |", "|---|---|", *rows]) if rows else "No metrics were recorded.",
    )
