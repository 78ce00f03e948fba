"""Forwards of Llama, Mistral, Qwen2 and Qwen3 on the CPU without transformers' overhead per call.

The results are the same up to rounding. For small models such as drafts, transformers takes longer for building masks,
positions and output objects than for the arithmetic. This forward does the same computation in few tensor operations:
projections of the same input are one product, and weights are reordered for the products.

The table shows the milliseconds of a forward after 128 tokens, by number of tokens (AMD EPYC, one thread, medians of
alternating runs). *packed* is transformers' forward with the same products (:func:`.linear.pack`):

================  ============  =====  =====  =====  =====
model             forward           1      2      4      9
================  ============  =====  =====  =====  =====
tiny, float32     lean            6.3    6.7    5.9    7.3
..                packed          9.1   10.2   10.2   11.5
..                transformers    8.9   11.3   12.1   14.4
SmolLM2-135M,     lean           38.8   39.1   40.4   43.7
bfloat16          packed         52.4   53.6   52.3   58.0
..                transformers   60.4   61.3   69.8   69.4
================  ============  =====  =====  =====  =====

The four families share a layout: rotary positions, root-mean-square norms before attention and MLP, and a gated MLP.
Qwen2 adds biases to queries, keys and values. Qwen3 normalises the queries and keys of each head.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from .base import is_dispatched
from .kv_cache import RaggedKVCache
from .lean_attention import SHORT, AttentionGroup, Tables, attention_group, group_reads
from .linear import Linear, MakeLinear, Quantization, linears
from .masks import mask_types
from .model_snapshot import State, is_library_module, matches_config
from .read import Read
from .trimmed_head import TrimmedHead

FAMILIES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
CLASSES = {f"{name}ForCausalLM" for name in FAMILIES.values()}
FAMILY_MODULES = ("torch.nn.", *(f"transformers.models.{name}." for name in FAMILIES), "transformers.activations")
LARGEST = 4 << 30  # maximum bytes of weights, because weights are copied and larger models gain little
UNBIASED = ("o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")
STATIC_ROPE = {"default", "linear", "llama3", "yarn"}  # rotary angles that do not depend on the text's length


class LeanForward:
    """The forward of one model with a copy of its weights; later changes of the model have no effect.

    Args:
        model: the model, for which :meth:`fits` is true.
        quantization: round the weights of the linear layers of a draft in bfloat16.

    Raises:
        InputError: weights have sizes that cannot be quantized.
    """

    @torch.inference_mode()
    def __init__(self, model: PreTrainedModel, quantization: Quantization | None = None) -> None:
        linear, output = linears(quantization)
        config: Any = model.config
        self.model: Any = model  # its modules are untyped
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_size: int = self.model.model.layers[0].self_attn.head_dim
        self.layers = [Layer.of(layer, linear, self.heads, self.kv_heads) for layer in self.model.model.layers]
        self.embedding: Tensor = self.model.model.embed_tokens.weight.detach()
        self.norm = Norm.of(self.model.model.norm)
        head = self.model.lm_head
        self.head = output(head.weight.detach(), None)
        self.trimmed = head if isinstance(head, TrimmedHead) else None
        self.state_layers: tuple[int, ...] = ()
        empty = torch.empty(0)
        self._tables = [Tables(0, empty, empty, empty)]  # a list, so that early exits share them

    def first(self, layers: int) -> LeanForward:
        """Return a forward of the first ``layers`` layers, the final norm and the head; the weights are shared."""
        shorter = copy(self)
        shorter.layers = self.layers[:layers]
        return shorter

    def with_layers(self, layers: tuple[int, ...]) -> LeanForward:
        """Return the same forward, which also returns the outputs of ``layers``."""
        forward = copy(self)
        forward.state_layers = layers
        return forward

    @staticmethod
    def fits(model: PreTrainedModel) -> bool:
        """Return true for a model on the CPU with the same layout and at most ``LARGEST`` bytes of weights."""
        return (
            model.device.type == "cpu"
            and sum(p.numel() * p.element_size() for p in model.parameters()) <= LARGEST
            and has_lean_layout(model)
        )

    def tables(self, capacity: int) -> Tables:
        """Return rotary angles and draft masks for at least ``capacity`` positions."""
        tables = self._tables[0]
        if tables.capacity < capacity:
            # The tables are assigned when they are complete, because other threads may read them.
            tables = self._tables[0] = self._tabulate(max(capacity, 2 * tables.capacity))
        return tables

    def _tabulate(self, capacity: int) -> Tables:
        """Compute the tables for ``capacity`` positions."""
        cos, signed = rotary_angles(self.model, capacity)
        # Row i hides the columns after capacity + i, so that the mask of every draft is a part of this mask.
        hidden = torch.ones(SHORT, capacity + SHORT, dtype=torch.bool).triu(capacity + 1)
        triangle = torch.zeros(hidden.shape, dtype=self.embedding.dtype).masked_fill_(hidden, -torch.inf)
        return Tables(capacity, cos.unsqueeze(1), signed.unsqueeze(1), triangle)

    def forward(self, cache: RaggedKVCache, reads: Sequence[Read]) -> tuple[Tensor, Tensor]:
        """Append the new tokens of each read to its text; see ``CausalLM.forward``.

        The tokens of all texts are concatenated to (N,), group by group.
        """
        parts = group_reads(reads)
        groups = []
        for part in parts:
            plan = cache.plan_forward(part)
            groups.append(attention_group(cache, part, self.tables(plan.width + 1), plan, self.heads // self.kv_heads))
        x, inner = self._layers(cache, groups)  # (N, d)
        for group in groups:
            cache.end_forward(group.plan)
        state_indices = _state_indices(reads, parts)
        hidden = self.norm(x if state_indices is None else x[state_indices])
        logit_indices = _logit_indices(reads)
        logits = self.head(hidden if logit_indices is None else hidden[logit_indices])
        if inner:
            hidden = torch.cat(
                [hidden, *(part if state_indices is None else part[state_indices] for part in inner)], -1
            )
        return logits if self.trimmed is None else self.trimmed.scatter_logits(logits), hidden

    def _layers(self, cache: RaggedKVCache, groups: Sequence[AttentionGroup]) -> tuple[Tensor, list[Tensor]]:
        """Return the output (N, d) of the last layer, and the outputs (N, d) of ``state_layers``."""
        first, counts = groups[0], [group.tokens.shape[0] for group in groups]
        tokens, cos, sin = first.tokens, first.cos, first.sin
        if len(groups) > 1:
            tokens = torch.cat([group.tokens for group in groups])
            cos, sin = torch.cat([group.cos for group in groups]), torch.cat([group.sin for group in groups])
        rotated = self.heads + self.kv_heads

        n = tokens.shape[0]
        x = self.embedding[tokens]
        inner: list[Tensor] = []
        for number, (layer, cache_layer) in enumerate(
            zip(self.layers, cache.ragged_layers, strict=False), 1
        ):  # an early exit has fewer
            heads = layer.qkv(layer.before_attention(x)).view(1, n, -1, self.head_size)  # (1, N, H + 2 H_kv, D)
            rotated_heads, v = heads.split_with_sizes([rotated, self.kv_heads], 2)
            if layer.head_norm is not None:
                rotated_heads = layer.head_norm(rotated_heads)
            rotated_heads = torch.addcmul(rotated_heads * cos, rotated_heads.roll(self.head_size // 2, -1), sin)
            q, k = rotated_heads.transpose(1, 2).split_with_sizes([self.heads, self.kv_heads], 1)
            v = v.transpose(1, 2)
            if len(groups) == 1:
                mixed = first.attend(cache_layer, q, k, v)
            else:
                parts = zip(groups, *(torch.split(part, counts, 2) for part in (q, k, v)), strict=True)
                mixed = torch.cat([group.attend(cache_layer, *qkv) for group, *qkv in parts], 2)
            x = x + layer.out(mixed.transpose(1, 2).reshape(n, -1))
            gate, up = layer.gate_up(layer.before_mlp(x)).chunk(2, -1)
            x = x + layer.down(F.silu(gate).mul_(up))
            if number in self.state_layers:
                inner.append(x)
        return x, inner


def _state_indices(reads: Sequence[Read], parts: Sequence[Sequence[Read]]) -> Tensor | slice | None:
    """Return the indices of the concatenated tokens whose states are returned, in the order of reads; None for all."""
    if len(reads) == 1:
        return None if reads[0].kept_states == len(reads[0].tokens) else slice(-reads[0].kept_states, None)
    ends: dict[Hashable, int] = {}
    total = 0
    for part in parts:
        for read in part:
            total += len(read.tokens)
            ends[read.text] = total
    indices = [index for read in reads for index in range(ends[read.text] - read.kept_states, ends[read.text])]
    return None if indices == list(range(total)) else torch.tensor(indices)


def _logit_indices(reads: Sequence[Read]) -> Tensor | slice | None:
    """Return the indices of the returned states that have logits; None for all."""
    if all(read.keep == read.kept_states for read in reads):
        return None
    if len(reads) == 1:
        return slice(-reads[0].keep, None)
    ends = accumulate(read.kept_states for read in reads)
    return torch.tensor([index for read, end in zip(reads, ends, strict=True) for index in range(end - read.keep, end)])


def has_lean_layout(model: PreTrainedModel) -> bool:
    """Return true if the model is of these families and as its class builds it.

    The model must have no adapters, hooks, attention windows or replaced modules.
    """
    config: Any = model.config
    return (
        type(model).__name__ in CLASSES
        and not is_dispatched(model)
        and model.dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
        and (model.dtype != torch.float16 or model.device.type != "cpu")
        and all(is_library_module(module, FAMILY_MODULES) for module in model.modules())
        and not any(State.of(module).hooks or "forward" in vars(module) for module in model.modules())
        and all(module.bias is None for name, module in model.named_modules() if name.endswith(UNBIASED))
        and all(
            type(p) is nn.Parameter and (p.dtype, p.device) == (model.dtype, model.device) for p in model.parameters()
        )
        and config._attn_implementation in ("eager", "sdpa")
        and config.hidden_act == "silu"
        and config.rope_parameters["rope_type"] in STATIC_ROPE
        and (types := mask_types(config)) is not None
        and types.plain
        and matches_config(model)
    )


def rotary_angles(model: Any, capacity: int) -> tuple[Tensor, Tensor]:
    """Return cosines and signed sines of the rotary angles of the first ``capacity`` positions, (capacity, D) each.

    The table of sines includes the sign: rotate_half(x)·sin = [-x₂, x₁]·sin = roll(x)·[-sin, sin].
    """
    embedding = model.model.embed_tokens.weight.detach()
    cos, sin = model.model.rotary_emb(embedding[:1], torch.arange(capacity, device=embedding.device)[None])
    half = sin.shape[-1] // 2
    return cos[0], torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)


@dataclass(frozen=True)
class Norm:
    """Root-mean-square normalisation of the last dimension.

    Attributes:
        weight: the scale, in float32 at least.
        least: (1, 1) epsilon.
    """

    weight: Tensor
    least: Tensor

    @classmethod
    def of(cls, norm: Any) -> Norm:
        """Return the norm of the module ``norm``."""
        return cls.with_weight(norm.weight.detach(), norm.variance_epsilon)

    @classmethod
    def from_heads(cls, attention: Any, heads: int, kv_heads: int) -> Norm | None:
        """Return the norm of queries and keys (…, H + H_kv, D); None if ``attention`` does not normalise them."""
        norms = [attention._modules.get(name) for name in ("q_norm", "k_norm")]
        if None in norms:
            return None
        q, k = norms
        weight = torch.cat([q.weight.detach().expand(heads, -1), k.weight.detach().expand(kv_heads, -1)])
        return cls.with_weight(weight, q.variance_epsilon)

    @classmethod
    def with_weight(cls, weight: Tensor, epsilon: float) -> Norm:
        """Return the norm with ``weight`` and ``epsilon``."""
        if weight.dtype == torch.bfloat16:
            weight = weight.float()  # squares must be summed in float32
        return cls(weight, weight.new_full((1, 1), epsilon))

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise ``x``, (…, d) → (…, d)."""
        return self._normalised(x.float()).to(x.dtype) if x.dtype == torch.bfloat16 else self._normalised(x)

    def _normalised(self, x: Tensor) -> Tensor:
        """Normalise ``x`` in its own precision."""
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # F.rms_norm takes three times as many operations
        return (x * torch.addcmul(self.least, length, length, value=1 / x.shape[-1]).rsqrt_()).mul_(self.weight)


@dataclass(frozen=True)
class Layer:
    """One decoder layer: four products and two norms.

    ``head_norm`` normalises queries and keys of each head; None for families without this norm.
    """

    before_attention: Norm
    qkv: Linear
    head_norm: Norm | None
    out: Linear
    before_mlp: Norm
    gate_up: Linear
    down: Linear

    @classmethod
    def of(cls, layer: Any, linear: MakeLinear, heads: int, kv_heads: int) -> Layer:
        """Return the products and norms of the module ``layer``; ``linear`` makes a product of weight and bias."""
        attention, mlp = layer.self_attn, layer.mlp
        qkv = attention.q_proj, attention.k_proj, attention.v_proj
        return cls(
            Norm.of(layer.input_layernorm),
            linear(
                torch.cat([part.weight for part in qkv]),
                None if attention.q_proj.bias is None else torch.cat([part.bias for part in qkv]),
            ),
            Norm.from_heads(attention, heads, kv_heads),
            linear(attention.o_proj.weight.detach(), None),
            Norm.of(layer.post_attention_layernorm),
            linear(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]), None),
            linear(mlp.down_proj.weight.detach(), None),
        )
