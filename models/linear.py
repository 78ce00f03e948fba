"""Linear layers on the CPU: products with weights that are reordered once, or rounded to 8 or 4 bits.

*Reordered.* On some processors, such as AMD's, the default product of few rows with a weight matrix reaches only a
fraction of the memory bandwidth, so that verifying a draft takes longer than generating its tokens one by one. oneDNN's
product on reordered weights comes close to the memory bandwidth, and is hardly slower for eight rows than for one. The
reordered copy needs as much memory as the weights. On Intel processors the default float32 product is faster up to a
dozen rows within a forward.

*Rounded.* A draft step of one text takes as long as reading the draft's weights, so that fewer bits make it faster.
Rounding changes q only, and verification is exact for every q. PyTorch's products of few rows in bfloat16 read the
rounded weights. For more rows the rounded weights are also stored in bfloat16, reordered.

The table shows the milliseconds of the 48 products of 12 layers of SmolLM2-135M, by library and number of rows (AMD
EPYC, one thread, PyTorch 2.13, medians of alternating runs):

==========================================  =====  =====  =====  =====
float32                                         1      2      4      9
==========================================  =====  =====  =====  =====
:class:`PackedLinear`                        12.2   13.1   11.4   14.6
``nn.Linear``                                14.4   23.7   20.3   27.2
``torch.utils.mkldnn.to_mkldnn``             15.4   20.9   23.0   27.6
``torch.compile``, ``freezing``              14.4   19.1   16.5   19.3
**bfloat16**
:class:`PackedLinear`                         7.0    7.3    6.2    7.8
``nn.Linear``                                11.6   11.8   12.6   14.5
``torch.utils.mkldnn.to_mkldnn``             14.2   14.1   15.0   17.2
``torch.compile``, ``freezing``               9.2    9.4    8.0    9.4
**8 bits**
:class:`Int8Linear`                           7.0    8.3    8.6    9.6
torchao 0.18, ``Int8WeightOnlyConfig``       14.5   13.6   14.0   15.9
**4 bits**
:class:`Int4Linear`                           2.7    3.4    4.7    9.3
==========================================  =====  =====  =====  =====

With ``freezing``, compilation takes 15 s for each of two graphs. torchao 0.18 has no weights of 4 bits on CPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ..common.errors import InputError
from ..common.machine import processor
from .base import is_dispatched
from .eagle import is_eagle_module
from .model_snapshot import is_library_module, mirror
from .trimmed_head import TrimmedHead

FEW = 150_000  # multiplications below which the call of oneDNN takes longer than the product
# Longer inputs are padded to a multiple of this many rows. oneDNN generates code for every number of rows, which takes
# milliseconds and up to a MiB.
STEP = 16
# Rows up to which the default product is used. It depends on the vendor, not on a measurement, so that rounding is the
# same in every run.
PLAIN_ROWS = 12 if "Intel" in processor() else 0
# With large weights, up to three rows take longer than four: 44 instead of 38 ms for one token of SmolLM2-135M and 52
# instead of 41 ms for two, in float32 on one thread. Inputs are padded to this many rows.
FULL_ROWS = 1 if "Intel" in processor() else 4
LARGE = 800_000  # minimum number of elements of large weights

Quantization = Literal["int8", "int4"]
QUANTIZATIONS: tuple[Quantization, ...] = ("int8", "int4")
Linear = Callable[[Tensor], Tensor]  # (N, in) → (N, out)
MakeLinear = Callable[[Tensor, Tensor | None], Linear]  # weight (out, in), bias (out,) → product

GROUP = 32  # number of inputs that share a scale and an offset in 4 bits
OUTPUTS = 16  # the number of outputs of a weight in 4 bits must be a multiple of this
# Rows up to which the product with rounded weights is faster than with weights in bfloat16 (docs/performance.md).
INT8_ROWS = 3
INT4_ROWS = 8

LINEAR = {nn.Linear, Conv1D, TrimmedHead}
SMALLEST = FEW  # minimum number of elements of a weight that is reordered or rounded
MAX_GIB = 4  # maximum GiB of these weights in a model, because they are copied


class PackedLinear:
    """Computes ``F.linear(x, weight, bias)`` with a reordered copy of the weight.

    Args:
        weight: (out, in) the weight.
        bias: (out,) the bias, or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.size, self.bias = weight.numel(), bias
        # The operators that PyTorch's compiler uses for frozen weights. Not every build has them.
        self.packed: Tensor | None = None
        if torch.backends.mkldnn.is_available() and _reorders(weight.dtype):  # type: ignore[no-untyped-call]
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight)
            self.product = torch.ops.mkldnn._linear_pointwise.default
        self.plain_rows = PLAIN_ROWS if weight.dtype == torch.float32 else 0
        self.full_rows = FULL_ROWS if self.size >= LARGE else 1
        keep = self.packed is None or self.size < FEW or self.plain_rows > 0
        self.plain = weight.t() if keep else None  # (in, out)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the product for ``x``, (N, in) → (N, out)."""
        n = x.shape[0]  # len(x) takes five times as long
        is_small = n <= self.plain_rows or n * self.size < FEW
        if self.packed is None or (is_small and self.plain is not None):
            assert self.plain is not None
            return torch.mm(x, self.plain) if self.bias is None else torch.addmm(self.bias, x, self.plain)
        missing = -n % STEP if n > STEP else self.full_rows - n if n < self.full_rows else 0
        if missing:
            x = F.pad(x, (0, 0, 0, missing))
        result: Tensor = self.product(x, self.packed, self.bias, "none", [], "")
        return result[:-missing] if missing else result


def packing_pays(dtype: torch.dtype) -> bool:
    """Return true if products of few rows are faster with reordered weights on this processor."""
    return (
        torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and _reorders(dtype)
        and not (dtype == torch.float32 and PLAIN_ROWS > 0)
    )


def _reorders(dtype: torch.dtype) -> bool:
    """Return true if oneDNN multiplies reordered weights of ``dtype`` on this processor."""
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


class Int8Linear:
    """Computes ``F.linear(x, weight, bias)`` with weights of 8 bits: multiples of a scale for each row.

    Args:
        weight: (out, in) the weight.
        bias: (out,) the bias in bfloat16, or None.

    Raises:
        InputError: the sizes of the weight are not supported (:func:`check_size`).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        check_size("int8", weight)
        exact = weight.float()
        scale = (exact.abs().amax(1, keepdim=True) / 127).bfloat16()  # (out, 1)
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        rounded = (exact / scale.float()).round().clamp(-127, 127)
        self.weight, self.scale = rounded.to(torch.int8), scale.flatten()
        self.packed_bfloat16 = PackedLinear((rounded * scale.float()).bfloat16(), bias)
        self.bias = bias
        self.product = torch.ops.aten._weight_int8pack_mm.default

    def __call__(self, x: Tensor) -> Tensor:
        """Return the product for ``x``, (N, in) → (N, out)."""
        if x.shape[0] > INT8_ROWS:
            return self.packed_bfloat16(x)
        result: Tensor = self.product(x.contiguous(), self.weight, self.scale)
        return result if self.bias is None else result + self.bias


class Int4Linear:
    """Computes ``F.linear(x, weight, bias)`` with weights of 4 bits.

    Each group of ``GROUP`` weights of a row has a scale and an offset, and thus sixteen possible values.

    Args:
        weight: (out, in) the weight.
        bias: (out,) the bias in bfloat16, or None.

    Raises:
        InputError: the sizes of the weight are not supported (:func:`check_size`).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        check_size("int4", weight, OUTPUTS)
        groups = weight.float().reshape(len(weight), -1, GROUP)  # (out, in / GROUP, GROUP)
        least, most = groups.aminmax(dim=2, keepdim=True)
        scale = ((most - least) / 15).bfloat16()
        zero = (least + 8 * scale.float()).bfloat16()  # the value of the number 8
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))  # equal weights all become the number 8
        rounded = ((groups - zero.float()) / scale.float() + 8).round().clamp(0, 15)
        self.weight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(rounded.flatten(1).int(), 1)
        self.scale = torch.cat([scale, zero], 2).transpose(0, 1).contiguous()  # (in / GROUP, out, 2)
        self.packed_bfloat16 = PackedLinear(((rounded - 8) * scale.float() + zero.float()).flatten(1).bfloat16(), bias)
        self.bias = bias
        self.product = torch.ops.aten._weight_int4pack_mm_for_cpu.default

    def __call__(self, x: Tensor) -> Tensor:
        """Return the product for ``x``, (N, in) → (N, out)."""
        if x.shape[0] > INT4_ROWS:
            return self.packed_bfloat16(x)
        result: Tensor = self.product(x.contiguous(), self.weight, GROUP, self.scale)
        return result if self.bias is None else result + self.bias


def linears(quantization: Quantization | None) -> tuple[MakeLinear, MakeLinear]:
    """Return the classes that compute the products of a model's layers and of its output projection.

    The output projection has at least 8 bits, because rounding it to 4 bits lowers the acceptance rate more than
    rounding all layers.
    """
    if quantization is None:
        return PackedLinear, PackedLinear
    return (Int8Linear if quantization == "int8" else Int4Linear), Int8Linear


def not_quantized(quantization: Quantization, draft: str, reason: str) -> InputError:
    """Return the error for a draft that has no forward with rounded weights."""
    return InputError(
        f"draft_dtype={quantization!r}: the weights of {draft} cannot be rounded, since {reason}; take "
        "another draft_dtype"
    )


def check_size(quantization: Quantization, weight: Tensor, multiple: int = 1) -> None:
    """Check that PyTorch's products support a weight (out, in).

    Raises:
        InputError: ``in`` is not a multiple of ``GROUP``, or ``out`` not a multiple of ``multiple``.
    """
    outputs, inputs = weight.shape
    if inputs % GROUP or outputs % multiple:
        also = f" and of {multiple} outputs" if multiple > 1 else ""
        raise InputError(
            f"draft_dtype={quantization!r}: takes weights with a multiple of {GROUP} inputs{also}, and the draft has "
            f"one with {inputs} and {outputs}; take draft_dtype='bfloat16'"
        )


class PackedForward:
    """The forward of one linear layer in inference, with a copy of its weights.

    Args:
        module: the layer.
        linear: makes the product of weight and bias.
    """

    def __init__(self, module: Any, linear: MakeLinear) -> None:
        weight = module.weight.detach()
        bias = None if module.bias is None else module.bias.detach()
        self.product = linear(weight.t().contiguous() if isinstance(module, Conv1D) else weight, bias)
        self.dtype, self.plain = weight.dtype, module.forward

    def __call__(self, x: Tensor) -> Tensor:
        """Return the product for ``x``, (…, in) → (…, out)."""
        if torch.is_grad_enabled() or x.dtype != self.dtype:
            result: Tensor = self.plain(x)
            return result
        rows = self.product(x.reshape(-1, x.shape[-1]))
        return rows.view(*x.shape[:-1], rows.shape[-1])


def pack(model: PreTrainedModel, quantization: Quantization | None = None) -> PreTrainedModel:
    """Return ``model`` with reordered or rounded weights; ``model`` itself if they would not be faster.

    The result shares everything else with ``model``. Its modules keep their classes, parameters and hooks. Later
    changes of the packed weights have no effect.

    Args:
        model: the model.
        quantization: round the weights, those of a draft in bfloat16.

    Raises:
        InputError: weights have sizes that cannot be quantized.
    """
    if packing_obstacle(model) is not None or (quantization is None and not packing_pays(model.dtype)):
        return model
    inner, output = linears(quantization)
    head = model.get_output_embeddings()

    def packed(module_copy: nn.Module, module: nn.Module) -> None:
        """Replace the forward of the copy ``module_copy`` of a linear layer ``module``."""
        if _packs(module):
            module_copy.forward = PackedForward(module, output if module is head else inner)

    with torch.inference_mode():
        result = mirror(model, packed)
    assert isinstance(result, PreTrainedModel)
    return result


def packing_obstacle(model: PreTrainedModel) -> str | None:
    """Return the reason why :func:`pack` cannot change ``model``, as a clause; None if it can."""
    if model.device.type != "cpu" or is_dispatched(model):
        return "it is not on the CPU"
    if not all(is_library_module(module) or is_eagle_module(module) for module in model.modules()):
        return "it has adapters or quantized layers"
    if any("forward" in vars(module) and module._modules for module in model.modules()):
        return "its forward was replaced"
    weights: list[Any] = [module.weight for module in model.modules() if _packs(module)]
    size = sum(weight.numel() * weight.element_size() for weight in weights) / 2**30
    if size > MAX_GIB:
        return f"its weights take {size:.1f} GiB, more than {MAX_GIB}"
    return None if weights else f"its linear layers have fewer than {SMALLEST} weights each"


def _packs(module: Any) -> bool:
    """Return true if the module is a linear layer with many weights and the forward of its class."""
    if type(module) not in LINEAR or "forward" in vars(module):
        return False
    return type(module.weight) in (nn.Parameter, Tensor) and module.weight.numel() >= SMALLEST
