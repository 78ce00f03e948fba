"""Texts of different lengths in one forward without padding, except in attention: their tokens are concatenated.

Attention works on groups: short reads of several texts form one padded batch, and a long read (a prompt) is a separate
group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .kv_cache import RaggedKVCache, RaggedLayer, WritePlan
from .masks import FULL, MaskTypes, as_scores, layer_masks, placed
from .read import Read, ends

WHOLE = MaskTypes({FULL: None}, False)
SHORT = 32  # maximum tokens of a read in a padded batch, and of a precomputed triangular mask


class Tables(NamedTuple):
    """Cosines and signed sines by position, (capacity, 1, D) each, and draft masks, (SHORT, capacity + SHORT)."""

    capacity: int
    cos: Tensor
    sin: Tensor
    triangle: Tensor


@dataclass(slots=True)  # made for every forward: frozen ones take twice as long
class AttentionGroup:
    """N new tokens that attention reads together; queries are (1, H, N, D), keys and values (1, H_kv, N, D).

    Attributes:
        plan: plan of their keys and values.
        tokens: (N,) ids.
        cos, sin: (N, 1, D) their rotary angles.
        mask: additive mask, broadcast to (B, H, n, width), or :func:`per_group` of such a mask; None for none.
        causal: each token attends to the earlier ones of the group, without a mask.
        places: rows and columns (N,) in the cache's buffers; None for a group of one text.
        slots: (N,) indices in the padded batch of B·n; None without padding.
    """

    plan: WritePlan
    tokens: Tensor
    cos: Tensor
    sin: Tensor
    mask: Tensor | None
    causal: bool = False
    places: tuple[Tensor, Tensor] | None = None
    slots: Tensor | None = None

    def attend(self, kept: RaggedLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write keys and values to ``kept`` and return attention's output (1, H, N, D)."""
        if self.places is None:
            keys, values = kept.write(self.plan, k, v)
            return attention(q, keys, values, self.mask, self.causal)
        keys, values = kept.scatter(self.plan, *self.places, k[0].transpose(0, 1), v[0].transpose(0, 1))
        return self._unpad(attention(self._pad(q), keys, values, self.mask, False))

    def _pad(self, packed: Tensor) -> Tensor:
        """(1, H, N, D) → (B, H, n, D), zeros at padding."""
        batch, n = self.plan.high - self.plan.low, self.plan.new
        packed = packed[0].transpose(0, 1)
        if self.slots is None:
            return packed.view(batch, n, *packed.shape[1:]).transpose(1, 2)
        padded = packed.new_zeros(batch * n, *packed.shape[1:])
        padded[self.slots] = packed
        return padded.view(batch, n, *packed.shape[1:]).transpose(1, 2)

    def _unpad(self, padded: Tensor) -> Tensor:
        """(B, H, n, D) → (1, H, N, D)."""
        flat = padded.transpose(1, 2).flatten(0, 1)
        return (flat if self.slots is None else flat[self.slots]).transpose(0, 1).unsqueeze(0)


def attention(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Attention of q (B, H, n, D) over keys and values (B, H_kv, m, D), H a multiple of H_kv.

    Args:
        mask: additive, broadcast to (B, H, n, m), or :func:`per_group` of such a mask.
    """
    batch, heads, n, size = q.shape
    group = heads // keys.shape[1]
    slow = n == 1 and q.dtype == torch.bfloat16  # PyTorch's kernel takes up to twice as long for one query as for two
    if n == 1 and batch > 1 and not (slow and group > 1):
        # One new token per row is limited by reading keys and values, for which matrix products are faster.
        grouped = (q * size**-0.5).reshape(batch, -1, group, size)
        scores = torch.matmul(grouped, keys.transpose(-1, -2))  # (B, H_kv, H / H_kv, m)
        mixed = torch.matmul((scores if mask is None else scores + mask).softmax(-1), values)
        return mixed.view(q.shape)
    if group > 1 and (slow if n == 1 else mask is not None and mask.shape[-2] == n * group):
        # Heads that share keys become further queries of one head: the kernel reads the keys once.
        return attention(q.reshape(batch, -1, n * group, size), keys, values, mask, False).view(q.shape)
    if slow:
        return attention(q.expand(-1, -1, 2, -1), keys, values, mask, False)[:, :, :1]
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, is_causal=causal, enable_gqa=group > 1)


def per_group(mask: Tensor | None, group: int) -> Tensor | None:
    """``mask`` (…, n, m) for n queries of each of ``group`` heads that share keys, (…, n · group, m).

    Returned as it is where nothing is gained: for one query, which broadcasts, and for many, whose mask is large.
    """
    if mask is None or group == 1 or not 1 < mask.shape[-2] <= SHORT:
        return mask
    return mask.repeat(*[1] * (mask.ndim - 2), group, 1)


def group_reads(reads: Sequence[Read]) -> list[Sequence[Read]]:
    """The groups of reads."""
    if len(reads) == 1:
        return [reads]
    short = [read for read in reads if len(read.tokens) <= SHORT]
    groups: list[Sequence[Read]] = [[read] for read in reads if len(read.tokens) > SHORT]
    return [short, *groups] if short else groups


def attention_group(
    cache: RaggedKVCache, reads: Sequence[Read], tables: Tables, plan: WritePlan, group: int
) -> AttentionGroup:
    """The group of ``reads``, with keys and values at the positions of ``plan``.

    Args:
        group: number of heads that share keys, H / H_kv.
    """
    if len(reads) == 1:
        (read,) = reads
        past, n = plan.starts[0], len(read.tokens)
        tokens = torch.tensor(read.tokens, dtype=torch.long)
        if read.tree is None:
            mask = per_group(_chain_mask(n, past, tables), group)
            cos, sin = tables.cos[past : past + n], tables.sin[past : past + n]
            return AttentionGroup(plan, tokens, cos, sin, mask, causal=mask is None and n > 1)
        inputs = placed(plan, reads, cache)
        positions = inputs[0, :, 1]
        return AttentionGroup(
            plan, tokens, tables.cos[positions], tables.sin[positions], _mask(inputs, plan, tables, group)
        )
    inputs = placed(plan, reads, cache)
    slots = ends([cache.rows[read.text] - plan.low for read in reads], [len(read.tokens) for read in reads], plan.new)
    index = torch.tensor(slots)
    tokens, positions, columns = inputs.flatten(0, 1)[index, :3].unbind(-1)
    whole = plan.aligned and plan.new == 1 and all(read.tree is None for read in reads)
    return AttentionGroup(
        plan,
        tokens,
        tables.cos[positions],
        tables.sin[positions],
        None if whole else _mask(inputs, plan, tables, group),
        places=(index // plan.new + plan.low, columns),
        slots=None if slots == list(range((plan.high - plan.low) * plan.new)) else index,
    )


def _mask(inputs: Tensor, plan: WritePlan, tables: Tables, group: int) -> Tensor | None:
    mask = layer_masks(WHOLE, inputs, torch.arange(plan.width))[FULL]
    return per_group(as_scores(mask, tables.triangle.dtype), group)


def _chain_mask(n: int, past: int, tables: Tables) -> Tensor | None:
    """Additive mask (n, past + n) of n tokens after ``past`` others; None if no mask is needed.

    A single token attends to everything, and without earlier tokens attention applies the causal mask itself.
    """
    if n == 1 or past == 0:
        return None
    if n <= SHORT:
        return tables.triangle[:n, tables.capacity - past : tables.capacity + n]
    return as_scores(torch.ones(1, n, past + n, dtype=torch.bool).tril(past), tables.triangle.dtype)[0, 0]
