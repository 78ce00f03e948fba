"""Llama's forward on the CPU without transformers' overhead a call: the same weights, the same numbers to rounding.

For small models, and drafts are small, building masks, positions and output objects costs more than the arithmetic.
This is the same computation in the fewest tensor operations. ``CachedModel`` takes it where it applies, and
transformers' own forward everywhere else.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel

from .cache import PreallocatedCache

KNOWN_MODULES = ("torch.nn.", "transformers.models.llama.", "transformers.activations")
SKINNY = 8  # rows up to which reading the weights takes longer than multiplying them
LARGE = 16 << 20  # bytes of weights that processor caches no longer hold
STATIC_ROPE = {"default", "linear", "llama3"}  # angles that depend on the position alone, not on the text's length


class LeanLlama:
    """The forward of one ``LlamaForCausalLM``; reads its weights in place."""

    def __init__(self, model: PreTrainedModel) -> None:
        config: Any = model.config
        self.model: Any = model  # whose modules transformers leaves untyped
        self.head_size: int = config.head_dim
        self.grouped: bool = config.num_key_value_heads != config.num_attention_heads
        self.large = sum(p.numel() * p.element_size() for p in model.parameters()) > LARGE
        self.cos = self.sin = torch.empty(0)

    @staticmethod
    def fits(model: PreTrainedModel) -> bool:
        """Whether this forward computes what the model's own does: adapters, quantised layers and hooks forbid it."""
        config: Any = model.config
        return (
            type(model) is LlamaForCausalLM
            and model.device.type == "cpu"
            and model.dtype in (torch.float32, torch.float64)
            and all(type(module).__module__.startswith(KNOWN_MODULES) for module in model.modules())
            and not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
            and not config.attention_bias
            and not config.mlp_bias
            and config.hidden_act == "silu"
            and config.rope_parameters["rope_type"] in STATIC_ROPE
        )

    def reserve(self, capacity: int) -> None:
        """Tabulate the rotary angles of ``capacity`` positions."""
        if len(self.cos) < capacity:
            embedding = self.model.model.embed_tokens.weight
            cos, sin = self.model.model.rotary_emb(embedding[:1], torch.arange(capacity)[None])
            half = self.head_size // 2
            # rotate_half(x)·sin = [-x₂, x₁]·sin = roll(x)·[-sin, sin]: the sign goes into the table.
            self.cos, self.sin = cos[0], torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)

    def forward(
        self, tokens: Tensor, cache: PreallocatedCache, keep: int, padding: Tensor | None, positions: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Read ``tokens`` (B, n); arguments and results are those of ``CachedModel.forward``."""
        batch, n = tokens.shape
        past = cache.length
        decoder, half = self.model.model, self.head_size // 2
        if padding is None or positions is None:
            cos, sin = self.cos[past : past + n], self.sin[past : past + n]  # (n, D)
        else:
            cos, sin = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)  # (B, 1, n, D)
        # One token sees everything, a prompt sees the triangle; a draft sees the cache and its own triangle.
        triangle = n > 1 and past == 0 and padding is None
        mask = None
        if n > 1 and not triangle:
            mask = torch.ones(n, past + n, dtype=torch.bool).tril(past)
        if padding is not None:
            mask = padding[:, None, None] if mask is None else mask & padding[:, None, None]  # (B, 1, n, past + n)
            # Padding sees itself: a row of attention that sees nothing would be NaN, and spread.
            if n > 1:
                mask = mask | torch.eye(n, past + n, dtype=torch.bool).roll(past, -1)
        if mask is not None:  # as numbers to add, once: attention would make them of the truth values in every layer
            mask = torch.zeros(mask.shape, dtype=decoder.embed_tokens.weight.dtype).masked_fill_(~mask, -torch.inf)

        x = F.embedding(tokens, decoder.embed_tokens.weight)  # (B, n, d)
        for layer, kept in zip(decoder.layers, cache.own, strict=True):
            attention, mlp = layer.self_attn, layer.mlp
            h = _norm(x, layer.input_layernorm)
            q, k, v = (
                self._linear(h, projection.weight).view(batch, n, -1, self.head_size).transpose(1, 2)
                for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
            )  # (B, H, n, D)
            q = torch.addcmul(q * cos, q.roll(half, -1), sin)
            k = torch.addcmul(k * cos, k.roll(half, -1), sin)
            keys, values = kept.update(k, v)
            mixed = F.scaled_dot_product_attention(
                q, keys, values, attn_mask=mask, is_causal=triangle, enable_gqa=self.grouped
            )
            x = x + self._linear(mixed.transpose(1, 2).reshape(batch, n, -1), attention.o_proj.weight)
            h = _norm(x, layer.post_attention_layernorm)
            gate = F.silu(self._linear(h, mlp.gate_proj.weight))
            x = x + self._linear(gate.mul_(self._linear(h, mlp.up_proj.weight)), mlp.down_proj.weight)
        hidden = _norm(x[:, -keep:], decoder.norm)
        return self._linear(hidden, self.model.lm_head.weight), hidden

    def _linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """``F.linear(x, weight)``, (..., in) → (..., out), fast for few rows.

        A large matrix times a vector or a few is bound by reading the matrix. The library reads it faster with the
        matrix on the left than where ``F.linear`` puts it, on the right, and two columns faster than one, so one row
        goes in twice. Tried on one kind of processor (docs/results.md, "One forward").
        """
        rows = x.reshape(-1, x.shape[-1])
        count = len(rows)
        if count > SKINNY or not self.large:
            return F.linear(x, weight)
        if count == 1:
            rows = rows.expand(2, -1).contiguous()
        return torch.mm(weight, rows.t()).t()[:count].reshape(*x.shape[:-1], -1).contiguous()


def _norm(x: Tensor, norm: Any) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)
