"""The options of ``python -m experiments gguf``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class GgufOptions:
    """Model.

    Attributes:
        model: What is converted: a Llama with a byte-level BPE tokenizer, by name or folder.
        type: Of the weights: f32, bf16, or q8_0, blocks of 32 numbers of 8 bits and a scale.
    """

    model: str = "tiny"
    type: Literal["f32", "bf16", "q8_0"] = "bf16"
