"""Attention for a batch of texts of different lengths.

All other layers read the new tokens of all texts concatenated, without padding. Only attention pads: short reads of
several texts (up to 32 tokens each) form one padded batch, and a long read, such as a prompt, is a group of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .kv_cache import RaggedKVCache, RaggedLayer, WritePlan
from .masks import FULL, MaskTypes, additive_mask, layer_masks, place_tokens
from .read import Read, ends

WHOLE = MaskTypes({FULL: None}, False)
SHORT = 32  # maximum tokens of a read in a padded batch, and of a precomputed triangular mask


class Tables(NamedTuple):
    """Tables that every forward reads: rotary angles by position, and masks of short reads.

    Attributes:
        capacity: number of positions.
        cos, sin: (capacity, 1, D) cosines and signed sines of the rotary angles.
        triangle: (SHORT, capacity + SHORT) additive mask, of which the mask of any short read is a part.
    """

    capacity: int
    cos: Tensor
    sin: Tensor
    triangle: Tensor


@dataclass(slots=True)  # created in every forward; creating a frozen instance takes twice as long
class AttentionGroup:
    """N new tokens that attention reads together; queries are (1, H, N, D), keys and values (1, H_kv, N, D).

    Attributes:
        plan: the plan for the tokens' keys and values.
        tokens: (N,) token ids.
        cos, sin: (N, 1, D) cosines and signed sines of the tokens' rotary angles.
        mask: additive mask, broadcast to (B, H, n, width), or :func:`per_group` of such a mask; None for no mask.
        causal: whether each token attends to the earlier tokens of the group, without a mask.
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

    def attend(self, cache_layer: RaggedLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write keys and values to ``cache_layer`` and return attention's output (1, H, N, D)."""
        if self.places is None:
            keys, values = cache_layer.write(self.plan, k, v)
            return attention(q, keys, values, self.mask, self.causal)
        keys, values = cache_layer.scatter(self.plan, *self.places, k[0].transpose(0, 1), v[0].transpose(0, 1))
        return self._unpad(attention(self._pad(q), keys, values, self.mask, False))

    def _pad(self, packed: Tensor) -> Tensor:
        """Pad ``packed``, (1, H, N, D) → (B, H, n, D), with zeros."""
        batch, n = self.plan.high - self.plan.low, self.plan.new
        packed = packed[0].transpose(0, 1)
        if self.slots is None:
            return packed.view(batch, n, *packed.shape[1:]).transpose(1, 2)
        padded = packed.new_zeros(batch * n, *packed.shape[1:])
        padded[self.slots] = packed
        return padded.view(batch, n, *packed.shape[1:]).transpose(1, 2)

    def _unpad(self, padded: Tensor) -> Tensor:
        """Remove the padding, (B, H, n, D) → (1, H, N, D)."""
        flat = padded.transpose(1, 2).flatten(0, 1)
        return (flat if self.slots is None else flat[self.slots]).transpose(0, 1).unsqueeze(0)


def attention(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Return the attention (B, H, n, D) of q (B, H, n, D) to keys and values (B, H_kv, m, D); H_kv divides H.

    Args:
        mask: additive mask, broadcast to (B, H, n, m), or :func:`per_group` of such a mask.
        causal: whether each query attends to earlier positions only.
    """
    batch, heads, n, size = q.shape
    group = heads // keys.shape[1]
    slow = n == 1 and q.dtype == torch.bfloat16  # PyTorch's kernel takes up to twice as long for one query as for two
    if n == 1 and batch > 1 and not (slow and group > 1):
        # With one new token per row the reading of keys and values takes most of the time; products are faster at it.
        grouped = (q * size**-0.5).reshape(batch, -1, group, size)
        scores = torch.matmul(grouped, keys.transpose(-1, -2))  # (B, H_kv, H / H_kv, m)
        mixed = torch.matmul((scores if mask is None else scores + mask).softmax(-1), values)
        return mixed.view(q.shape)
    if group > 1 and (slow if n == 1 else mask is not None and mask.shape[-2] == n * group):
        # The queries of heads with shared keys become queries of one head, so that the kernel reads the keys once.
        return attention(q.reshape(batch, -1, n * group, size), keys, values, mask, False).view(q.shape)
    if slow:
        return attention(q.expand(-1, -1, 2, -1), keys, values, mask, False)[:, :, :1]
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, is_causal=causal, enable_gqa=group > 1)


def per_group(mask: Tensor | None, group: int) -> Tensor | None:
    """Repeat ``mask`` (…, n, m) for ``group`` heads with shared keys, (…, n · group, m).

    The mask is returned unchanged for one query, which broadcasts, and for many queries, whose mask is large.
    """
    if mask is None or group == 1 or not 1 < mask.shape[-2] <= SHORT:
        return mask
    return mask.repeat(*[1] * (mask.ndim - 2), group, 1)


def group_reads(reads: Sequence[Read]) -> list[Sequence[Read]]:
    """Split ``reads`` into groups: one of all short reads, and one for each long read."""
    if len(reads) == 1:
        return [reads]
    short = [read for read in reads if len(read.tokens) <= SHORT]
    groups: list[Sequence[Read]] = [[read] for read in reads if len(read.tokens) > SHORT]
    return [short, *groups] if short else groups


def attention_group(
    cache: RaggedKVCache, reads: Sequence[Read], tables: Tables, plan: WritePlan, group: int
) -> AttentionGroup:
    """Return the group of ``reads``, whose keys and values are written by ``plan``.

    Args:
        cache: the cache of the texts.
        tables: tables for at least the positions of ``plan``.
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
        inputs = place_tokens(plan, reads, cache)
        positions = inputs[0, :, 1]
        return AttentionGroup(
            plan, tokens, tables.cos[positions], tables.sin[positions], _mask(inputs, plan, tables, group)
        )
    inputs = place_tokens(plan, reads, cache)
    slots = ends([cache.rows[read.text] - plan.low for read in reads], [len(read.tokens) for read in reads], plan.new)
    index = torch.tensor(slots)
    tokens, positions, columns = inputs.flatten(0, 1)[index, :3].unbind(-1)
    needs_no_mask = plan.aligned and plan.new == 1 and all(read.tree is None for read in reads)
    return AttentionGroup(
        plan,
        tokens,
        tables.cos[positions],
        tables.sin[positions],
        None if needs_no_mask else _mask(inputs, plan, tables, group),
        places=(index // plan.new + plan.low, columns),
        slots=None if slots == list(range((plan.high - plan.low) * plan.new)) else index,
    )


def _mask(inputs: Tensor, plan: WritePlan, tables: Tables, group: int) -> Tensor | None:
    """Return the additive mask of a padded batch ``inputs`` (B, n, 4 + E)."""
    mask = layer_masks(WHOLE, inputs, torch.arange(plan.width))[FULL]
    return per_group(additive_mask(mask, tables.triangle.dtype), group)


def _chain_mask(n: int, past: int, tables: Tables) -> Tensor | None:
    """Return the additive mask (n, past + n) of n tokens after ``past`` tokens; None if no mask is needed.

    A single token attends to all tokens. Without earlier tokens attention applies the causal mask itself.
    """
    if n == 1 or past == 0:
        return None
    if n <= SHORT:
        return tables.triangle[:n, tables.capacity - past : tables.capacity + n]
    return additive_mask(torch.ones(1, n, past + n, dtype=torch.bool).tril(past), tables.triangle.dtype)[0, 0]
