"""A linear layer's product on the CPU, with the weights laid out for it once instead of in every call.

The default product of few rows with a weight matrix reaches a fraction of the memory's speed on some processors, AMD's
among them. oneDNN's, on weights it has reordered beforehand, comes close to it, and costs hardly more for eight rows
than for one, which is what verifying a draft needs (docs/performance.md). The reordered copy takes as much memory
again. On Intel's processors the default product in float32 is the faster one up to a dozen rows, amid the other
operations of a forward if not in a loop of its own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..machine import processor

FEW = 150_000  # multiplications below which entering oneDNN costs more than the product itself
# Longer inputs are filled up to a multiple of so many rows: oneDNN generates code for every number of rows it meets,
# which takes milliseconds, and keeps it, which takes a good part of a MiB.
STEP = 16
# By the maker, not by a measurement: the same seed must round alike in every run.
PLAIN_ROWS = 12 if "Intel" in processor() else 0


class PackedLinear:
    """``F.linear(x, weight)`` for a weight (out, in) that no longer changes; without bias."""

    def __init__(self, weight: Tensor) -> None:
        self.size = weight.numel()
        # The operators PyTorch's own compiler calls when it freezes weights; not in every build.
        self.packed: Tensor | None = None
        if torch.backends.mkldnn.is_available() and _packs(weight.dtype):  # type: ignore[no-untyped-call]
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight)
            self.product = torch.ops.mkldnn._linear_pointwise.default
        self.plain_rows = PLAIN_ROWS if weight.dtype == torch.float32 else 0
        keep = self.packed is None or self.size < FEW or self.plain_rows > 0
        self.plain = weight.t() if keep else None  # (in, out)

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes (N, in) → (N, out)."""
        n = x.shape[0]  # len(x) takes five times as long
        few = n <= self.plain_rows or n * self.size < FEW
        if self.packed is None or (few and self.plain is not None):
            assert self.plain is not None
            return torch.mm(x, self.plain)
        missing = -n % STEP if n > STEP else 0
        if missing:
            x = F.pad(x, (0, 0, 0, missing))
        result: Tensor = self.product(x, self.packed, None, "none", [], "")
        return result[:-missing] if missing else result


def _packs(dtype: torch.dtype) -> bool:
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32
