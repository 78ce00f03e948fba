"""Llama's forward on the CPU without transformers' overhead a call: the same weights, the same numbers to rounding.

For small models, and drafts are small, building masks, positions and output objects costs more than the arithmetic.
This is the same computation in the fewest tensor operations: projections that read the same input are one product, and
products run on weights reordered for them. ``CachedModel`` takes it where it applies, and transformers' own forward
everywhere else.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel

from .cache import PreallocatedCache
from .packed_linear import PackedLinear

KNOWN_MODULES = ("torch.nn.", "transformers.models.llama.", "transformers.activations")
LARGEST = 4 << 30  # bytes of weights: a second copy of them is kept, and larger models gain little from it
DRAFT = 32  # tokens a forward may read after others with a ready-made mask
STATIC_ROPE = {"default", "linear", "llama3"}  # angles that depend on the position alone, not on the text's length


class LeanLlama:
    """The forward of one ``LlamaForCausalLM``, from a copy of its weights: training it further does not reach here."""

    @torch.inference_mode()
    def __init__(self, model: PreTrainedModel) -> None:
        config: Any = model.config
        self.model: Any = model  # whose modules transformers leaves untyped
        self.head_size: int = config.head_dim
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.layers = [Layer.of(layer) for layer in self.model.model.layers]
        self.embedding: Tensor = self.model.model.embed_tokens.weight.detach()
        self.norm = Norm.of(self.model.model.norm)
        self.head = PackedLinear(self.model.lm_head.weight.detach())
        self.cos = self.sin = self.triangle = torch.empty(0)

    def first(self, layers: int) -> LeanLlama:
        """The forward through the first ``layers`` only, then final norm and head, of the same weights."""
        shorter = copy(self)
        shorter.layers = self.layers[:layers]
        return shorter

    @staticmethod
    def fits(model: PreTrainedModel) -> bool:
        """Whether this forward computes what the model's own does: adapters, quantised layers and hooks forbid it."""
        config: Any = model.config
        return (
            type(model) is LlamaForCausalLM
            and model.device.type == "cpu"
            and model.dtype in (torch.float32, torch.float64, torch.bfloat16)
            and all(type(module).__module__.startswith(KNOWN_MODULES) for module in model.modules())
            and not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
            and not config.attention_bias
            and not config.mlp_bias
            and config.hidden_act == "silu"
            and config.rope_parameters["rope_type"] in STATIC_ROPE
            and sum(p.numel() * p.element_size() for p in model.parameters()) <= LARGEST
        )

    def reserve(self, capacity: int) -> None:
        """Tabulate the rotary angles of ``capacity`` positions."""
        if len(self.cos) < capacity:
            cos, sin = self.model.model.rotary_emb(self.embedding[:1], torch.arange(capacity)[None])
            half = self.head_size // 2
            # rotate_half(x)·sin = [-x₂, x₁]·sin = roll(x)·[-sin, sin]: the sign goes into the table.
            self.cos, self.sin = cos[0], torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)
            # Row i hides what comes after column capacity + i: a window of it is any draft's mask.
            hidden = torch.ones(DRAFT, capacity + DRAFT, dtype=torch.bool).triu(capacity + 1)
            self.triangle = torch.zeros(hidden.shape, dtype=self.embedding.dtype).masked_fill_(hidden, -torch.inf)

    def forward(
        self,
        tokens: Tensor,
        cache: PreallocatedCache,
        keep: int,
        padding: Tensor | None,
        positions: Tensor | None,
        seen: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Read ``tokens`` (B, n); as ``CachedModel.forward``, with ``seen`` (n, past + n) made of its branches."""
        batch, n = tokens.shape
        past, half = cache.length, self.head_size // 2
        if positions is None:
            cos, sin = self.cos[past : past + n], self.sin[past : past + n]  # (n, D)
        else:
            cos, sin = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)  # (B, 1, n, D)
        triangle = n > 1 and past == 0 and padding is None and seen is None
        mask = None if triangle else self._mask(n, past, padding, seen)
        rotated = self.heads + self.kv_heads

        x = self.embedding[tokens.reshape(-1)]  # (B·n, d)
        for layer, kept in zip(self.layers, cache.own, strict=True):
            heads = layer.qkv(layer.before_attention(x)).view(batch, n, -1, self.head_size).transpose(1, 2)
            turned, v = heads.split_with_sizes(
                [rotated, self.kv_heads], 1
            )  # (B, H + H_kv, n, D): queries and keys turn alike
            turned = torch.addcmul(turned * cos, turned.roll(half, -1), sin)
            q, k = turned.split_with_sizes([self.heads, self.kv_heads], 1)
            mixed = self._attend(q, *kept.update(k, v), mask, triangle)
            x = x + layer.out(mixed.transpose(1, 2).reshape(batch * n, -1))
            gate, up = layer.gate_up(layer.before_mlp(x)).chunk(2, -1)
            x = x + layer.down(F.silu(gate).mul_(up))
        if keep < n:
            x = x.view(batch, n, -1)[:, -keep:].reshape(batch * keep, -1)
        hidden = self.norm(x)
        return self.head(hidden).view(batch, keep, -1), hidden.view(batch, keep, -1)

    def _mask(self, n: int, past: int, padding: Tensor | None, seen: Tensor | None) -> Tensor | None:
        """What attention adds to the scores, (n, past + n) or (B, 1, n, past + n); None where everything is seen.

        One token sees everything; a draft sees the cache and its own triangle, a tree what ``seen`` says.
        """
        capacity = self.triangle.shape[1] - DRAFT
        if 1 < n <= DRAFT and padding is None and seen is None:
            return self.triangle[:n, capacity - past : capacity + n]
        mask = torch.ones(n, past + n, dtype=torch.bool).tril(past) if n > 1 and seen is None else seen
        if padding is not None:
            mask = padding[:, None, None] if mask is None else mask & padding[:, None, None]  # (B, 1, n, past + n)
            # Padding sees itself: a row of attention that sees nothing would be NaN, and spread.
            if n > 1:
                mask = mask | torch.eye(n, past + n, dtype=torch.bool).roll(past, -1)
        if mask is None:
            return None
        # As numbers to add, once: attention would make them of the truth values in every layer.
        return torch.zeros(mask.shape, dtype=self.embedding.dtype).masked_fill_(~mask, -torch.inf)

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, triangle: bool) -> Tensor:
        """Attention of q (B, H, n, D) over keys and values (B, H_kv, m, D)."""
        if q.shape[2] == 1 and len(q) > 1:
            # One new token in each of many rows is bound by reading keys and values, which plain products do faster.
            grouped = (q * self.head_size**-0.5).reshape(len(q), self.kv_heads, -1, self.head_size)
            scores = torch.matmul(grouped, keys.transpose(-1, -2))  # (B, H_kv, H / H_kv, m)
            mixed = torch.matmul((scores if mask is None else scores + mask).softmax(-1), values)
            return mixed.view(q.shape)
        return F.scaled_dot_product_attention(
            q, keys, values, attn_mask=mask, is_causal=triangle, enable_gqa=self.heads != self.kv_heads
        )


@dataclass(frozen=True)
class Norm:
    """Root-mean-square normalisation."""

    weight: Tensor
    epsilon: float
    least: Tensor  # the same, (1, 1)

    @classmethod
    def of(cls, norm: Any) -> Norm:
        weight = norm.weight.detach()
        return cls(weight, norm.variance_epsilon, weight.new_full((1, 1), norm.variance_epsilon))

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes (N, d) → (N, d)."""
        if x.dtype == torch.bfloat16:  # whose squares are to be summed in float32
            return F.rms_norm(x, self.weight.shape, self.weight, self.epsilon)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # F.rms_norm takes three times as many operations
        return (x * torch.addcmul(self.least, length, length, value=1 / x.shape[-1]).rsqrt_()).mul_(self.weight)


@dataclass(frozen=True)
class Layer:
    """One decoder layer: four products and two norms."""

    before_attention: Norm
    qkv: PackedLinear
    out: PackedLinear
    before_mlp: Norm
    gate_up: PackedLinear
    down: PackedLinear

    @classmethod
    def of(cls, layer: Any) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        return cls(
            Norm.of(layer.input_layernorm),
            PackedLinear(torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])),
            PackedLinear(attention.o_proj.weight.detach()),
            Norm.of(layer.post_attention_layernorm),
            PackedLinear(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])),
            PackedLinear(mlp.down_proj.weight.detach()),
        )
