"""Llama's forward on the CPU without transformers' overhead a call: the same weights, the same numbers to rounding.

For small models, and drafts are small, building masks, positions and output objects costs more than the arithmetic.
This is the same computation in the fewest tensor operations: projections that read the same input are one product, and
products run on weights reordered for them. ``CausalLM`` takes it where it applies, and transformers' own forward
everywhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel

from ..loading import is_dispatched
from .base import Read
from .kv_cache import RaggedKVCache, WritePlan
from .masks import positions_of, visible
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
        empty = torch.empty(0)
        self._tables = [Tables(empty, empty, empty)]  # in a list, so that early exits share them

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
            and not is_dispatched(model)
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

    def tables(self, capacity: int) -> Tables:
        """Rotary angles of at least ``capacity`` positions, and the masks of drafts among them."""
        tables = self._tables[0]
        if len(tables.cos) < capacity:
            # Made whole and then put in place, for other threads may be reading.
            tables = self._tables[0] = self._tabulate(max(capacity, 2 * len(tables.cos)))
        return tables

    def _tabulate(self, capacity: int) -> Tables:
        cos, sin = self.model.model.rotary_emb(self.embedding[:1], torch.arange(capacity)[None])
        half = self.head_size // 2
        # rotate_half(x)·sin = [-x₂, x₁]·sin = roll(x)·[-sin, sin]: the sign goes into the table.
        signed = torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)
        # Row i hides what comes after column capacity + i: a window of it is any draft's mask.
        hidden = torch.ones(DRAFT, capacity + DRAFT, dtype=torch.bool).triu(capacity + 1)
        triangle = torch.zeros(hidden.shape, dtype=self.embedding.dtype).masked_fill_(hidden, -torch.inf)
        return Tables(cos[0].unsqueeze(1), signed.unsqueeze(1), triangle)

    def forward(self, cache: RaggedKVCache, reads: Sequence[Read]) -> tuple[Tensor, Tensor]:
        """``CausalLM.forward``, as the cache's plan says; the tokens of all texts lie one after another, (N,)."""
        plan = cache.plan
        tables = self.tables(plan.width + 1)
        one = len(reads) == 1 and plan.aligned and len(plan.starts) == 1
        batch = None if one else Packed.of(plan, reads, cache)
        if batch is None:
            tokens, past = torch.tensor(reads[0].tokens, dtype=torch.long), plan.starts[0]
            n = len(tokens)
            if reads[0].tree is None:
                cos, sin = tables.cos[past : past + n], tables.sin[past : past + n]  # (N, 1, D)
                mask = self._draft_mask(n, past, tables)
            else:
                positions = positions_of(plan, reads, cache)[0]
                cos, sin = tables.cos[positions], tables.sin[positions]
                mask = self._scores(visible(plan, reads, cache)[0])[0]
        else:
            tokens = batch.tokens
            cos, sin = tables.cos[batch.positions], tables.sin[batch.positions]
            mask = None if batch.whole else self._scores(visible(plan, reads, cache)[0])
        triangle = batch is None and mask is None and len(tokens) > 1
        rotated = self.heads + self.kv_heads

        x = self.embedding[tokens]  # (N, d)
        for layer, kept in zip(self.layers, cache.own, strict=False):  # an early exit has fewer
            heads = layer.qkv(layer.before_attention(x)).view(len(x), -1, self.head_size)  # (N, H + 2 H_kv, D)
            turned, v = heads.split_with_sizes([rotated, self.kv_heads], 1)
            turned = torch.addcmul(turned * cos, turned.roll(self.head_size // 2, -1), sin)
            q, k = turned.split_with_sizes([self.heads, self.kv_heads], 1)
            if batch is None:
                keys, values = kept.update(k.transpose(0, 1).unsqueeze(0), v.transpose(0, 1).unsqueeze(0))
                mixed = self._attend(q.transpose(0, 1).unsqueeze(0), keys, values, mask, triangle)
                mixed = mixed[0].transpose(0, 1)  # (N, H, D)
            else:
                kept.fit(*(part.transpose(0, 1).unsqueeze(0) for part in (k, v)))
                kept.keys[batch.rows, :, batch.columns] = k
                kept.values[batch.rows, :, batch.columns] = v
                mixed = batch.unpad(self._attend(batch.pad(q), *kept.read(), mask, False))
            x = x + layer.out(mixed.reshape(len(x), -1))
            gate, up = layer.gate_up(layer.before_mlp(x)).chunk(2, -1)
            x = x + layer.down(F.silu(gate).mul_(up))
        if batch is not None:
            x = x if batch.wanted is None else x[batch.wanted]
        elif reads[0].keep < len(x):
            x = x[-reads[0].keep :]
        hidden = self.norm(x)
        return self.head(hidden), hidden

    def _draft_mask(self, n: int, past: int, tables: Tables) -> Tensor | None:
        """What attention adds to the scores of n tokens after ``past`` others, (n, past + n); None where nothing.

        One token attends to everything, and where nothing is before, attention masks the triangle itself.
        """
        if n == 1 or past == 0:
            return None
        if n <= DRAFT:
            capacity = tables.triangle.shape[1] - DRAFT
            return tables.triangle[:n, capacity - past : capacity + n]
        return self._scores(torch.ones(n, past + n, dtype=torch.bool).tril(past).unsqueeze(0))[0, 0]

    def _scores(self, seen: Tensor) -> Tensor:
        """(B, 1, n, m) of (B, n, m) bool: numbers to add, made once; attention would make them in every layer."""
        scores = torch.zeros(seen.shape, dtype=self.embedding.dtype).masked_fill_(~seen, -torch.inf)
        return scores.unsqueeze(1)

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


class Tables(NamedTuple):
    """By position: cosines and signed sines, (capacity, 1, D) each, and a draft's mask, (DRAFT, capacity + DRAFT)."""

    cos: Tensor
    sin: Tensor
    triangle: Tensor


@dataclass(frozen=True)
class Packed:
    """The N new tokens of several texts one after another; only attention sees them as a padded batch.

    Attributes:
        tokens, positions, rows, columns: (N,) each token, its position, and where in the cache's buffers it goes.
        slots: (N,) its place in the padded batch of B·n; None where nothing is padded.
        wanted: (K,) the tokens that results are wanted for; None where all.
        shape: B, n.
        whole: every token attends to all columns: one new token in each of texts of one length.
    """

    tokens: Tensor
    positions: Tensor
    rows: Tensor
    columns: Tensor
    slots: Tensor | None
    wanted: Tensor | None
    shape: tuple[int, int]
    whole: bool

    @classmethod
    def of(cls, plan: WritePlan, reads: Sequence[Read], cache: RaggedKVCache) -> Packed:
        tokens: list[int] = []
        positions: list[int] = []
        rows: list[int] = []
        columns: list[int] = []
        slots: list[int] = []
        wanted: list[int] = []
        for read in reads:
            row, count = cache.rows[read.text], len(read.tokens)
            start = plan.starts[row - plan.low]
            own = [*range(start, start + count)]
            wanted += range(len(tokens) + count - read.keep, len(tokens) + count)
            tokens += read.tokens
            columns += own
            rows += [row] * count
            slots += range((row - plan.low + 1) * plan.new - count, (row - plan.low + 1) * plan.new)
            if read.tree is not None:
                own[count - len(read.tree.above) :] = read.tree.positions()
            positions += own
        size = plan.high - plan.low, plan.new
        full = slots == list(range(size[0] * size[1]))
        return cls(
            torch.tensor(tokens), torch.tensor(positions), torch.tensor(rows), torch.tensor(columns),
            None if full else torch.tensor(slots),
            None if len(wanted) == len(tokens) else torch.tensor(wanted),
            size, plan.aligned and plan.new == 1,
        )  # fmt: skip

    def pad(self, packed: Tensor) -> Tensor:
        """(N, H, D) → (B, H, n, D), zeros at padding."""
        batch, n = self.shape
        if self.slots is None:
            return packed.view(batch, n, *packed.shape[1:]).transpose(1, 2)
        padded = packed.new_zeros(batch * n, *packed.shape[1:])
        padded[self.slots] = packed
        return padded.view(batch, n, *packed.shape[1:]).transpose(1, 2)

    def unpad(self, padded: Tensor) -> Tensor:
        """(B, H, n, D) → (N, H, D)."""
        flat = padded.transpose(1, 2).flatten(0, 1)
        return flat if self.slots is None else flat[self.slots]


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
