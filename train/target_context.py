"""The draft at every token it would have drafted after the target's own text, all of a rollout in one forward."""

from __future__ import annotations

import torch
from torch import Tensor

from ..data_gen.dataset import Row
from ..infer.cache import as_row
from ..infer.cached_model import CachedModel
from ..infer.tree_mask import TreeMask


@torch.inference_mode()
def read_target_context(draft: CachedModel, row: Row) -> tuple[Tensor, Tensor]:
    """Logits (T, V) behind q_i, and hidden states (T, d) at y_i, both after prompt and x_<i."""
    start, count = len(row.prompt_ids), len(row.x)
    draft.start(start + 2 * count)
    logits, _ = draft.forward(as_row([*row.prompt_ids, *row.x[:-1]], draft.device), keep=count)
    branches = TreeMask(start, [list(range(start, start + i)) for i in range(count)])
    _, hidden = draft.forward(as_row(row.y, draft.device), branches=branches)
    return logits[0], hidden[0]
