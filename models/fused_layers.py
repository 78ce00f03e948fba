"""The layers of Llama, Mistral, Qwen2 and Qwen3 in few kernels, for forwards of fixed shapes (:mod:`.static_forward`).

On a GPU every small kernel of a forward takes about two microseconds, independently of its computation. transformers
runs 45 kernels for each layer. These layers run 16 kernels for one token and 18 for several:

* ``F.rms_norm`` is one kernel instead of eight;
* queries, keys and values are one product, and so are gate and up;
* queries, keys and values are rotated together, values by an angle of zero, so that one kernel writes keys and values
  to the cache;
* the queries of heads with shared keys are rows of one product, which reads these keys once;
* the product that computes the output of attention or of the MLP also adds it to the residual.

The layers need no further memory: the weights that are multiplied together become views of one buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from .kv_cache import size_above
from .lean_forward import has_lean_layout, rotary_angles
from .trimmed_head import TrimmedHead


@dataclass(frozen=True)
class FusedLayer:
    """The weights of one decoder layer.

    Attributes:
        attention_norm, mlp_norm: (d,) weights of the root-mean-square norms.
        qkv: ((H + 2 H_kv)·D, d) projection to queries, keys and values.
        bias: ((H + 2 H_kv)·D,) bias of this projection, or None.
        head_norm: (H + H_kv, D) weights of the norms of queries and keys of each head, or None.
        out: (d, H·D) output projection of attention.
        gate_up: (2·m, d) projection to gate and up.
        down: (d, m) output projection of the MLP.
    """

    attention_norm: Tensor
    qkv: Tensor
    bias: Tensor | None
    head_norm: Tensor | None
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor

    @classmethod
    def of(cls, layer: Any, heads: int, kv_heads: int) -> FusedLayer:
        """Return the weights of ``layer``, which has H = ``heads`` and H_kv = ``kv_heads``."""
        attention, mlp = layer.self_attn, layer.mlp
        qkv = attention.q_proj, attention.k_proj, attention.v_proj
        head_norm = None
        if "q_norm" in attention._modules:
            q, k = attention.q_norm.weight.detach(), attention.k_norm.weight.detach()
            head_norm = torch.cat([q.expand(heads, -1), k.expand(kv_heads, -1)])
        return cls(
            layer.input_layernorm.weight.detach(),
            joined_rows([part.weight for part in qkv]),
            None if attention.q_proj.bias is None else torch.cat([part.bias.detach() for part in qkv]),
            head_norm,
            attention.o_proj.weight.detach(),
            layer.post_attention_layernorm.weight.detach(),
            joined_rows([mlp.gate_proj.weight, mlp.up_proj.weight]),
            mlp.down_proj.weight.detach(),
        )


class FusedLayers:
    """The forward of one model of the families Llama, Mistral, Qwen2 and Qwen3, whose weights it shares.

    Args:
        model: the model.
        compiled: whether ``torch.compile`` compiles the operations between the products.
    """

    def __init__(self, model: PreTrainedModel, *, compiled: bool = False) -> None:
        config: Any = model.config
        self.model: Any = model  # its modules are untyped
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_size: int = self.model.model.layers[0].self_attn.head_dim
        self.eps: float = config.rms_norm_eps
        with torch.inference_mode(False), torch.no_grad():
            self.layers = [FusedLayer.of(layer, self.heads, self.kv_heads) for layer in self.model.model.layers]
        self.embedding: Tensor = self.model.model.embed_tokens.weight.detach()
        self.norm: Tensor = self.model.model.norm.weight.detach()
        head = self.model.lm_head
        self.head: Tensor = head.weight.detach()
        self.trimmed = head if isinstance(head, TrimmedHead) else None
        self.state_layers: tuple[int, ...] = ()
        wrap: Callable[[Any], Any] = partial(torch.compile, dynamic=True) if compiled else _identity
        self.norm_rows, self.rotate_and_write = wrap(F.rms_norm), wrap(rotate_and_write)
        self.attention_weights, self.gated = wrap(attention_weights), wrap(gated)
        self._tables: list[tuple[Tensor, Tensor]] = []  # a list, so that early exits share them

    @staticmethod
    def fits(model: PreTrainedModel) -> bool:
        """Return true if these layers give the same results as the model's own, up to rounding."""
        return has_lean_layout(model) and model.config.rms_norm_eps == _epsilon(model)

    def first(self, layers: int) -> FusedLayers:
        """Return a forward of the first ``layers`` layers, the final norm and the head."""
        shorter = copy(self)
        shorter.layers = self.layers[:layers]
        return shorter

    def with_layers(self, layers: tuple[int, ...]) -> FusedLayers:
        """Return the same forward, which also returns the outputs of ``layers``."""
        forward = copy(self)
        forward.state_layers = layers
        return forward

    def tables(self, capacity: int) -> tuple[Tensor, Tensor]:
        """Return cosines and signed sines of the rotary angles of at least ``capacity`` positions, (…, D) each."""
        if not self._tables or len(self._tables[0][0]) < capacity:
            self._tables[:] = [rotary_angles(self.model, size_above(capacity))]
        return self._tables[0]

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        rows: Tensor,
        columns: Tensor,
        mask: Tensor,
        buffers: Sequence[Tensor],
        tables: tuple[Tensor, Tensor],
        keep: int,
    ) -> tuple[Tensor, Tensor]:
        """Read n tokens of each of B texts.

        Args:
            tokens, positions: (B, n) token ids and positions.
            rows, columns: (B, 1) and (B, n) places of the new keys and values in the buffers.
            mask: (B, 1, n, C) additive mask.
            buffers: (2, rows, H_kv, C, D) keys and values of each layer.
            tables: the result of :meth:`tables`.
            keep: number of last tokens with results.

        Returns:
            Logits (B, keep, V) and hidden states (B, keep, d + L·d).
        """
        batch, n = tokens.shape
        cos, sin = self._angles(positions.flatten(), tables)
        rows, columns = rows.expand(batch, n).flatten(), columns.flatten()
        group = self.heads // self.kv_heads
        mask = mask.expand(batch, group, n, -1).reshape(batch, 1, group * n, -1)
        x = F.embedding(tokens, self.embedding).view(batch * n, -1)  # (N, d), N = B·n
        width, size = x.shape[-1:], (self.head_size,)
        inner: list[Tensor] = []
        for number, (layer, cached) in enumerate(zip(self.layers, buffers, strict=False), 1):  # an early exit has fewer
            normed = self.norm_rows(x, width, layer.attention_norm, self.eps)
            heads = F.linear(normed, layer.qkv, layer.bias).view(batch * n, -1, self.head_size)  # (N, H + 2 H_kv, D)
            if layer.head_norm is not None:
                rotated_heads = heads[:, : self.heads + self.kv_heads]
                torch.mul(F.rms_norm(rotated_heads, size, None, self.eps), layer.head_norm, out=rotated_heads)
            q = self.rotate_and_write(heads, cos, sin, cached, rows, columns)
            mixed = self._attend(
                q.reshape(batch, n, self.heads, self.head_size), cached[0, :batch], cached[1, :batch], mask
            )
            # In place, unless the last layer's output is returned as well.
            add = Tensor.addmm if number - 1 in self.state_layers else Tensor.addmm_
            x = add(x, mixed, layer.out.t())
            normed = self.norm_rows(x, width, layer.mlp_norm, self.eps)
            x.addmm_(self.gated(F.linear(normed, layer.gate_up)), layer.down.t())
            if number in self.state_layers:
                inner.append(x)
        if keep < n:
            x, inner = _last(x, batch, keep), [_last(part, batch, keep) for part in inner]
        hidden = F.rms_norm(x, x.shape[-1:], self.norm, self.eps)
        logits = F.linear(hidden, self.head)
        if self.trimmed is not None:
            logits = self.trimmed.scatter_logits(logits)
        if inner:
            hidden = torch.cat([hidden, *inner], -1)
        return logits.view(batch, keep, -1), hidden.view(batch, keep, -1)

    def _angles(self, positions: Tensor, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return cosines and signed sines (N, H + 2 H_kv, D) of the heads' rotations; those of values are 1 and 0."""
        rotated = self.heads + self.kv_heads
        by_head = []
        for table, unrotated in zip(tables, (1.0, 0.0), strict=True):
            angles = table.new_full((len(positions), rotated + self.kv_heads, self.head_size), unrotated)
            angles[:, :rotated] = F.embedding(positions, table).unsqueeze(1)
            by_head.append(angles)
        return by_head[0], by_head[1]

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Return the attention (B·n, H·D) of queries (B, n, H, D) to keys and values (B, H_kv, C, D).

        For the few rows of one draft, two products are faster than PyTorch's attention kernels. On an H100 one token
        with 512 columns takes 11 µs, instead of 22 µs with the memory-efficient kernel and 16 µs with the default
        choice. With 8,192 columns it takes 26 µs instead of 320 µs and 165 µs. For 16 texts and 1,024 columns or more
        the default choice is faster: 35 µs instead of 39 µs. These times were measured by hand in a CUDA graph; no
        command prints them.

        Args:
            mask: (B, 1, G·n, C) additive mask, by query head of a group of G = H / H_kv and by token.
        """
        batch, n, heads, size = q.shape
        grouped = q.view(batch, n, self.kv_heads, -1, size).permute(0, 2, 3, 1, 4)
        q = grouped.reshape(batch, self.kv_heads, -1, size)
        mixed: Tensor = self.attention_weights(q @ keys.transpose(2, 3), mask, size**-0.5) @ values
        by_head = mixed.view(batch, self.kv_heads, -1, n, size).permute(0, 3, 1, 2, 4)
        return by_head.reshape(batch * n, heads * size)


def _identity(part: Any) -> Any:
    """Return ``part`` itself, in place of ``torch.compile``."""
    return part


def _last(values: Tensor, batch: int, keep: int) -> Tensor:
    """Return the last ``keep`` tokens of each text, (B·n, d) → (B·keep, d)."""
    return values.view(batch, -1, values.shape[-1])[:, -keep:].reshape(batch * keep, -1)


def rotate_and_write(heads: Tensor, cos: Tensor, sin: Tensor, cached: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Rotate queries and keys, write keys and values, and return the queries (N, H, D).

    Args:
        heads: (N, H + 2 H_kv, D) queries, keys and values.
        cos, sin: (N, H + 2 H_kv, D) cosines and signed sines of the angles.
        cached: (2, rows, H_kv, C, D) the buffer of keys and values, changed in place.
        rows, columns: (N,) places of each token's keys and values in the buffer.
    """
    heads = torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, -1), sin)
    count = cached.shape[2]
    cached[:, rows, :, columns] = heads[:, -2 * count :].view(len(heads), 2, count, -1)
    return heads[:, : -2 * count]


def attention_weights(scores: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Return the softmax of ``mask`` + ``scale`` · ``scores``."""
    return torch.add(mask, scores, alpha=scale).softmax(-1)


def gated(gate_up: Tensor) -> Tensor:
    """Return SwiGLU of gate and up, (N, 2·m) → (N, m)."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate).mul_(up)


def joined_rows(parts: Sequence[nn.Parameter]) -> Tensor:
    """Return one weight (Σ out, in) with the rows of all ``parts``, which become views of this weight.

    Weights that were created in inference mode cannot become views. The result is then a copy.
    """
    first, address = parts[0], parts[0].data_ptr()
    consecutive = True
    for part in parts:
        same = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        consecutive = consecutive and same and part.is_contiguous() and part.data_ptr() == address
        address += part.nbytes
    rows = [len(part) for part in parts]
    if consecutive:
        return first.detach().as_strided((sum(rows), *first.shape[1:]), first.stride(), first.storage_offset())
    fused = torch.cat([part.detach() for part in parts])
    if any(part.is_inference() for part in parts):
        return fused
    for part, values in zip(parts, torch.split(fused, rows), strict=True):
        part.data = values
    return fused


def _epsilon(model: PreTrainedModel) -> float | None:
    """Return the common epsilon of the model's norms; None if they differ."""
    epsilons: set[Any] = {module.variance_epsilon for module in model.modules() if hasattr(module, "variance_epsilon")}
    return epsilons.pop() if len(epsilons) == 1 else None
