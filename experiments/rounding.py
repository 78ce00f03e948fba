"""``python -m experiments rounding``: rounds and packs the weights of a model, so that the checkout stays small.

The encoder-decoders that ship were rounded with ``--share 0.125`` after their training, SmolLM2's draft with 0.5.
Rounded once more, a row may get larger steps.
"""

from __future__ import annotations

import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from specpilot.checkpoints import PACKED
from specpilot.common.console import quiet
from specpilot.common.options import Positive
from torch import Tensor

# Of bfloat16, whose numbers have two bytes.
FILTERS: list[dict[str, Any]] = [
    {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 3, "lp": 1, "pb": 1}
]


@dataclass(frozen=True, kw_only=True)
class RoundingOptions:
    """Rounding.

    Options of ``python -m experiments rounding``.

    Attributes:
        weights: File model.safetensors with weights in bfloat16.
        output: Folder for the rounded file, and for the packed file, which specpilot includes.
        share: Largest rounding step of a row of weights, in units of the row's root mean square.
    """

    weights: Path
    output: Path
    share: Positive = 0.125


def rounded(weight: Tensor, share: float) -> Tensor:
    """Return ``weight`` (M, N) with rounded rows.

    Each row is rounded to multiples of the largest power of two that is at most ``share`` times its root mean square.
    """
    values = weight.float()
    largest = values.square().mean(-1, keepdim=True).sqrt() * share
    step = largest.clamp(min=torch.finfo(torch.float32).tiny).log2().floor().exp2()
    return ((values / step).round() * step).to(weight)


def main(options: RoundingOptions) -> None:
    """Round the matrices of a file of weights, and pack it as the included models are."""
    quiet()
    weights = load_file(options.weights)
    rounded_weights = {name: rounded(w, options.share) if w.ndim == 2 else w for name, w in weights.items()}
    options.output.mkdir(parents=True, exist_ok=True)
    file = options.output / options.weights.name
    save_file(rounded_weights, file, {"format": "pt"})
    packed = lzma.compress(file.read_bytes(), format=lzma.FORMAT_XZ, filters=FILTERS)
    file.with_name(file.name + PACKED).write_bytes(packed)
