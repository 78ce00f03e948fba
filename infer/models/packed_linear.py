"""A linear layer's product on the CPU with weights that are reordered once.

On some processors, such as AMD's, the default product of few rows with a weight matrix reaches only a fraction of the
memory bandwidth. oneDNN's product on reordered weights comes close to it, and is hardly slower for eight rows than for
one, as in verifying a draft (docs/performance.md). The reordered copy needs as much memory as the weights. On Intel
processors the default float32 product is faster up to a dozen rows within a forward.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...common.machine import processor

FEW = 150_000  # multiplications below which calling oneDNN costs more than the product
# Longer inputs are padded to a multiple of this many rows: for every number of rows oneDNN generates code, which takes
# milliseconds and up to a MiB.
STEP = 16
# By vendor instead of by a measurement, so that rounding is the same in every run.
PLAIN_ROWS = 12 if "Intel" in processor() else 0
# Up to three rows take longer than four with large weights: 44 instead of 38 ms for one token of SmolLM2-135M and 52
# instead of 41 ms for two, in float32 on one thread.
FULL_ROWS = 1 if "Intel" in processor() else 4
LARGE = 800_000  # elements of such weights


class PackedLinear:
    """``F.linear(x, weight, bias)`` for a constant weight (out, in) and bias (out,)."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.size, self.bias = weight.numel(), bias
        # The operators that PyTorch's compiler uses for frozen weights; not in every build.
        self.packed: Tensor | None = None
        if torch.backends.mkldnn.is_available() and _packs(weight.dtype):  # type: ignore[no-untyped-call]
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight)
            self.product = torch.ops.mkldnn._linear_pointwise.default
        self.plain_rows = PLAIN_ROWS if weight.dtype == torch.float32 else 0
        self.full_rows = FULL_ROWS if self.size >= LARGE else 1
        keep = self.packed is None or self.size < FEW or self.plain_rows > 0
        self.plain = weight.t() if keep else None  # (in, out)

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes (N, in) → (N, out)."""
        n = x.shape[0]  # len(x) takes five times as long
        few = n <= self.plain_rows or n * self.size < FEW
        if self.packed is None or (few and self.plain is not None):
            assert self.plain is not None
            return torch.mm(x, self.plain) if self.bias is None else torch.addmm(self.bias, x, self.plain)
        missing = -n % STEP if n > STEP else self.full_rows - n if n < self.full_rows else 0
        if missing:
            x = F.pad(x, (0, 0, 0, missing))
        result: Tensor = self.product(x, self.packed, self.bias, "none", [], "")
        return result[:-missing] if missing else result


def packing_pays(dtype: torch.dtype) -> bool:
    """Whether products of few rows are faster with reordered weights on this processor."""
    return (
        torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and _packs(dtype)
        and not (dtype == torch.float32 and PLAIN_ROWS > 0)
    )


def _packs(dtype: torch.dtype) -> bool:
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32
