"""The draft at every token it would have drafted after the target's own text, all of a rollout in one forward."""

from __future__ import annotations

import torch
from torch import Tensor

from ..data_gen.dataset import Row
from ..infer.models import LanguageModel, TextReader, TreeMask


@torch.inference_mode()
def read_target_context(draft: LanguageModel, row: Row) -> tuple[Tensor, Tensor]:
    """Logits (T, V) behind q_i, and hidden states (T, d) at y_i, both after prompt and x_<i."""
    start, count = len(row.prompt_ids), len(row.x)
    reader, prompt = TextReader.begin(draft, row.prompt_ids, 2 * count)
    logits, _ = reader.read([*prompt, *row.x[:-1]], keep=count)
    branches = TreeMask(start, [list(range(start, start + i)) for i in range(count)])
    _, hidden = reader.read(row.y, tree=branches)
    return logits, hidden
