"""The lag-free head's checkpoint: a folder of ``config.json``, ``model.safetensors`` and ``README.md``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..acceptance.lag_free_head import LagFreeHead
from ..errors import InputError
from ..sampling import SamplingParams
from .acceptance_head import read_config, read_weights, write_checkpoint
from .controller_config import CONFIG, exactly
from .fingerprint import PairFingerprint
from .old_keys import rename_old_keys
from .provenance import Provenance

TYPE = "lag-free-head"
SCHEMA_VERSION, OLDEST = 3, 2
WIDEST = 65536  # a damaged config.json must not build a layer that fills the memory

CARD = """---
library_name: specpilot
tags:
- speculative-decoding
- acceptance-head
---

# Lag-free acceptance head: {draft} drafting for {target}

Predicts, when a token is drawn from the draft model and before the draft reads it, the probability that the target
model keeps it, and then the one after it. Goes by the draft's last hidden state, the token's embedding, and log q(y),
log(1 - max q) and the entropy of q{lookup}.

```python
from specpilot import SpeculativeDecoder

decoder = SpeculativeDecoder.from_pretrained(
    target="{target}", draft="{draft}", length="path/to/this/folder", cost="cost.json"
)
print(decoder.generate("Once upon a time").text)
```

`cost.json` is what `specpilot bench cost --output cost.json` measures on your machine: drafting stops where a token no
longer pays. It works with this pair of models only: `config.json` holds their fingerprints, which are checked when it
is loaded.

| | |
|---|---|
| trained under | temperature {temperature}, top-k {top_k}, top-p {top_p} |
| trained on | {tokens:,} drafted tokens, mean acceptance {mean:.3f} |
| looks ahead | {predicts_next} |
| datasets | {datasets} |

## Validation

| | |
|---|---|
{metrics}
"""


@dataclass(frozen=True)
class LagFreeConfig:
    """What a lag-free head is and where it came from.

    Attributes:
        hidden_size: d of the draft.
        width: hidden units of the head.
        predicts_next: whether its second output was taught: that takes rounds, which acceptance data has none of.
        uses_ngrams: whether it goes by what the text before says of a token.
        mean: mean acceptance in the training data.
        tokens: drafted tokens it was trained on.
        provenance: the pair and sampling it is for.
        datasets: SHA-256 of each dataset.
        metrics: of these weights, on prompts held out.
    """

    hidden_size: int
    width: int
    predicts_next: bool
    uses_ngrams: bool
    mean: float
    tokens: int
    provenance: Provenance
    datasets: list[str]
    metrics: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("hidden_size", "width"):
            if not 1 <= getattr(self, name) <= WIDEST:
                raise InputError(f"{name}={getattr(self, name)}: must be between 1 and {WIDEST}")
        if not 0 <= self.mean <= 1:
            raise InputError(f"mean={self.mean}: must be in [0, 1]")

    def as_dict(self) -> dict[str, Any]:
        return {"type": TYPE, "schema_version": SCHEMA_VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LagFreeConfig:
        """Read what ``as_dict`` wrote.

        Raises:
            InputError: a controller of another type or of a newer format, a key missing or unknown, or a wrong value.
        """
        if data.get("type") != TYPE:
            raise InputError(f"type={data.get('type')!r}: no lag-free head; expected {TYPE!r}")
        version = data.get("schema_version")
        if not isinstance(version, int) or version > SCHEMA_VERSION:
            raise InputError(f"schema_version={version}: this version reads up to {SCHEMA_VERSION}; upgrade specpilot")
        if version < OLDEST:
            raise InputError(
                f"schema_version={version}: this version reads {OLDEST} and {SCHEMA_VERSION}; train it again with "
                "'specpilot train lag-free'"
            )
        keys = {"type", "schema_version", *(entry.name for entry in fields(cls))}
        values = exactly(rename_old_keys(data), keys, CONFIG)
        provenance = exactly(values["provenance"], {entry.name for entry in fields(Provenance)}, "provenance")
        pair = exactly(provenance["fingerprint"], {entry.name for entry in fields(PairFingerprint)}, "fingerprint")
        sampling = exactly(provenance["sampling"], {entry.name for entry in fields(SamplingParams)}, "sampling")
        try:
            values["provenance"] = Provenance(
                provenance["target"], provenance["draft"], PairFingerprint(**pair), SamplingParams(**sampling)
            )
            return cls(**{entry.name: values[entry.name] for entry in fields(cls)})
        except TypeError as error:
            raise InputError(f"{CONFIG}: a value has the wrong type ({error})") from error


def is_lag_free(data: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` is that of a lag-free head."""
    return data.get("type") == TYPE


def save_lag_free(folder: str | Path, head: LagFreeHead, config: LagFreeConfig, *, overwrite: bool = False) -> Path:
    """Write a checkpoint folder; it appears whole or not at all.

    Raises:
        InputError: ``folder`` is taken, the head's sizes are not the configuration's, a weight is not finite, or the
            disk cannot be written.
    """
    if (head.hidden_size, head.width) != (config.hidden_size, config.width):
        raise InputError(f"the head has sizes {(head.hidden_size, head.width)}, its config says otherwise")
    sampling = config.provenance.sampling
    card = CARD.format(
        target=config.provenance.target,
        draft=config.provenance.draft,
        temperature=sampling.temperature,
        top_k="off" if sampling.top_k is None else sampling.top_k,
        top_p=sampling.top_p,
        tokens=config.tokens,
        mean=config.mean,
        lookup=", and by what followed the text's last tokens where they stood before" if config.uses_ngrams else "",
        predicts_next="one token" if config.predicts_next else "no",
        datasets=", ".join(f"`{digest}`" for digest in config.datasets),
        metrics="\n".join(f"| {name} | {value:.4g} |" for name, value in sorted(config.metrics.items())),
    )
    return write_checkpoint(Path(folder), head, config.as_dict(), card, overwrite=overwrite)


def load_lag_free(name: str | Path) -> tuple[LagFreeHead, LagFreeConfig]:
    """Load a lag-free head, in evaluation mode, float32, on the CPU, from a local folder or the hub.

    Raises:
        InputError: it cannot be found, or its files are missing, truncated, changed or not understood.
    """
    folder, data = read_config(name)
    try:
        config = LagFreeConfig.from_dict(data)
    except InputError as error:
        raise InputError(f"{folder}: {error}") from error
    head = LagFreeHead(config.hidden_size, config.width)
    head.load_state_dict(read_weights(folder, head))
    return head.eval().requires_grad_(False), config
