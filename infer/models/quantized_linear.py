"""Linear layers of a draft whose weights are rounded to 8 or 4 bits when it is loaded.

A draft step of one text takes as long as reading the draft's weights, so that fewer bits make it faster. Rounding
changes q alone, and verification is exact for every q. PyTorch's products of few rows in bfloat16 read the rounded
weights; for more rows the same weights are also kept in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from ...common.errors import InputError
from .packed_linear import PackedLinear

Quantization = Literal["int8", "int4"]
QUANTIZATIONS: tuple[Quantization, ...] = ("int8", "int4")
Linear = Callable[[Tensor], Tensor]  # (N, in) → (N, out)
MakeLinear = Callable[[Tensor, Tensor | None], Linear]  # of a weight (out, in) and a bias (out,)

GROUP = 32  # inputs that share a scale and an offset in 4 bits
OUTPUTS = 16  # of a weight in 4 bits there must be a multiple
# Rows up to which the product is faster than that of the weights in bfloat16 (docs/performance.md).
INT8_ROWS = 3
INT4_ROWS = 8


class Int8Linear:
    """``F.linear(x, weight, bias)`` for x in bfloat16, the rows of the weight rounded to multiples of a scale each."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        check_size("int8", weight)
        exact = weight.float()
        scale = (exact.abs().amax(1, keepdim=True) / 127).bfloat16()  # (out, 1)
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        rounded = (exact / scale.float()).round().clamp(-127, 127)
        self.weight, self.scale = rounded.to(torch.int8), scale.flatten()
        self.many = PackedLinear((rounded * scale.float()).bfloat16(), bias)
        self.bias = bias
        self.product = torch.ops.aten._weight_int8pack_mm.default

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes (N, in) → (N, out)."""
        if x.shape[0] > INT8_ROWS:
            return self.many(x)
        result: Tensor = self.product(x.contiguous(), self.weight, self.scale)
        return result if self.bias is None else result + self.bias


class Int4Linear:
    """``F.linear(x, weight, bias)`` for x in bfloat16, each ``GROUP`` weights of a row rounded to sixteen values."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        check_size("int4", weight, OUTPUTS)
        groups = weight.float().reshape(len(weight), -1, GROUP)  # (out, in / GROUP, GROUP)
        least, most = groups.aminmax(dim=2, keepdim=True)
        scale = ((most - least) / 15).bfloat16()
        zero = (least + 8 * scale.float()).bfloat16()  # the value of the number 8
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))  # equal weights are all the number 8
        rounded = ((groups - zero.float()) / scale.float() + 8).round().clamp(0, 15)
        self.weight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(rounded.flatten(1).int(), 1)
        self.scale = torch.cat([scale, zero], 2).transpose(0, 1).contiguous()  # (in / GROUP, out, 2)
        self.many = PackedLinear(((rounded - 8) * scale.float() + zero.float()).flatten(1).bfloat16(), bias)
        self.bias = bias
        self.product = torch.ops.aten._weight_int4pack_mm_for_cpu.default

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes (N, in) → (N, out)."""
        if x.shape[0] > INT4_ROWS:
            return self.many(x)
        result: Tensor = self.product(x.contiguous(), self.weight, GROUP, self.scale)
        return result if self.bias is None else result + self.bias


def linears(quantization: Quantization | None) -> tuple[MakeLinear, MakeLinear]:
    """What makes the products of a model's layers and of its output projection.

    The output projection has 8 bits at least: rounded to 4 it costs more acceptance than all layers.
    """
    if quantization is None:
        return PackedLinear, PackedLinear
    return (Int8Linear if quantization == "int8" else Int4Linear), Int8Linear


def not_quantized(quantization: Quantization, draft: str, reason: str) -> InputError:
    """The error for a draft that has no forward with rounded weights."""
    return InputError(
        f"draft_dtype={quantization!r}: the weights of {draft} cannot be rounded, since {reason}; take "
        "another draft_dtype"
    )


def check_size(quantization: Quantization, weight: Tensor, multiple: int = 1) -> None:
    """Refuse weights (out, in) that PyTorch's products do not take.

    Raises:
        InputError: ``in`` is no multiple of ``GROUP``, or ``out`` none of ``multiple``.
    """
    outputs, inputs = weight.shape
    if inputs % GROUP or outputs % multiple:
        also = f" and of {multiple} outputs" if multiple > 1 else ""
        raise InputError(
            f"draft_dtype={quantization!r}: takes weights with a multiple of {GROUP} inputs{also}, and the draft has "
            f"one with {inputs} and {outputs}; take draft_dtype='bfloat16'"
        )
