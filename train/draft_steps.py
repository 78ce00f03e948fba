"""The forward of drafts in training: a single one for plain drafts, one for each drafted token if they read states.

Given the target's states at all positions before, the prediction at every position of a window is that of a first
drafted token. The j-th one, j > 1, is predicted from the draft's own state at the position before, and the last j - 1
entries of the KV cache come from own states too; earlier ones come from the target's. All positions of a window are
predicted together (training-time test of EAGLE-3, Li et al. 2025): forward j adds the entries of T positions to the
cache, and a mask gives each position the entries that it has in decoding. The tokens are those of the text, as in
decoding as long as drafts are accepted. Shapes: B windows of T tokens, N learned positions, M tokens of the draft.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from ..infer.models.causal_lm import forward_with_hidden
from ..infer.models.eagle import state_input_of
from ..infer.models.masks import CHUNKED, SLIDING, MaskTypes, as_scores, mask_types
from .target_states import Windows


def draft_logits(draft: PreTrainedModel, batch: Windows, states: Tensor, positions: int) -> Iterator[Tensor]:
    """The logits (N, M) of each of the drafted positions; of a single one unless the draft reads states.

    Args:
        states: (B, T, d) the target's.
    """
    tokens, fuse = batch.tokens.long(), state_input_of(draft)

    def learned(hidden: Tensor) -> Tensor:
        return hidden[batch.learned]

    if fuse is None:
        yield forward_with_hidden(draft, select=learned, input_ids=tokens, use_cache=False)[0]
        return
    embeddings = draft.get_input_embeddings()(tokens)
    types = mask_types(draft.config.get_text_config(decoder=True))
    assert types is not None
    width = tokens.shape[1]
    cache = DynamicCache()
    before = states.to(embeddings.dtype)
    for number in range(positions):
        inputs: dict[str, Any] = {"inputs_embeds": fuse(embeddings, shifted(before)), "past_key_values": cache}
        inputs["position_ids"] = torch.arange(width, device=tokens.device).unsqueeze(0)
        if number:
            inputs["attention_mask"] = step_masks(types, width, number, embeddings)
        logits, before = forward_with_hidden(draft, select=learned, use_cache=True, **inputs)
        yield logits


def shifted(states: Tensor) -> Tensor:
    """(B, T, d): the state of the position before, zero at the first."""
    return F.pad(states, (0, 0, 1, 0))[:, :-1]


def step_masks(types: MaskTypes, width: int, number: int, like: Tensor) -> Tensor | dict[str, Tensor]:
    """Additive masks of forward ``number`` (from 0) over the entries of all forwards so far, (1, 1, T, (number + 1) T).

    Position t attends to entries of the first forward up to t - number, and to those of forward i at t - number + i.
    """
    t = torch.arange(width).unsqueeze(-1)
    seen = torch.cat([t - number >= t.T] + [t - number + i == t.T for i in range(1, number + 1)], -1)
    distance = t - torch.arange(width).repeat(number + 1)
    masks = {}
    for name, size in types.sizes.items():
        mask = seen
        if size is not None and name == SLIDING:
            mask = seen & (distance < size)
        elif size is not None and name == CHUNKED:
            mask = seen & (t // size == (t - distance) // size)
        masks[name] = as_scores(mask.unsqueeze(0), like.dtype, like.device)
    return masks if types.by_type else next(iter(masks.values()))
