"""The model card of a router: what it chooses between, what it was trained for, and how well it chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .router import RouterConfig

CARD_TEMPLATE = """---
library_name: specpilot
tags:
- speculative-decoding
- router
---

# Router for {target}

Chooses how a prompt is decoded, from the target's own embedding of it, which the prefill gives for nothing (Huang et
al. 2024, context-aware assistant selection). The arms, in the order of the router's outputs:

{arms}

```python
from specpilot import SpeculativeDecoder

decoder = SpeculativeDecoder.from_pretrained(target="{target}", router="path/to/this/folder")
print(decoder.generate("Once upon a time").text)
```

It works with this target and these arms only: `config.json` holds their fingerprints, which are checked when it is
loaded.

| | |
|---|---|
| policy | {hidden_size} → {width} → {width} → {count}, tanh |
| trained under | temperature {temperature}, top-k {top_k}, top-p {top_p} |
| reward | {reward} |
| dataset | SHA-256 `{dataset}` |

## Validation

{metrics}
"""


def model_card(config: RouterConfig) -> str:
    """The text of ``README.md`` for a router."""
    rows = [f"| {name} | {value:.4g} |" for name, value in sorted(config.metrics.items())]
    rouge = f"{config.alpha}·ROUGE-L + {1 - config.alpha:g}·cost, by {config.cost} (eq. 2)"
    return CARD_TEMPLATE.format(
        target=config.target,
        arms="\n".join(f"{i}. `{arm.name}` ({arm.kind})" for i, arm in enumerate(config.arms)),
        hidden_size=config.hidden_size,
        width=config.width,
        count=len(config.arms),
        temperature=config.sampling.temperature,
        top_k="off" if config.sampling.top_k is None else config.sampling.top_k,
        top_p=config.sampling.top_p,
        reward=rouge if config.reward == "rouge" else "expected tokens per second by the cost model",
        dataset=config.dataset_fingerprint,
        metrics="\n".join(["| metric | value |", "|---|---|", *rows]) if rows else "No metrics were recorded.",
    )
