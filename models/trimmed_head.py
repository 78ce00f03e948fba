"""Output projections onto a part of the vocabulary: a draft's trimmed vocabulary (FR-Spec, Zhao et al. 2025).

Only the logits of M kept tokens are computed. The logits of all other tokens are -inf, so that q is zero there and the
draft never proposes them. Verification stays exact, because it is exact for every q.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput


class TrimmedHead(nn.Linear):
    """An output projection that computes only the logits of M kept tokens.

    Args:
        weight: (M, d) weights; row i belongs to ``tokens[i]``.
        bias: (M,) biases, or None.
        tokens: indices of the M kept tokens in the vocabulary, ascending.
        size: vocabulary size V.
    """

    tokens: Tensor  # (M,)

    def __init__(self, weight: Tensor, bias: Tensor | None, tokens: Sequence[int], size: int) -> None:
        rows, width = weight.shape
        super().__init__(width, rows, bias=bias is not None, device="meta")  # weight and bias are replaced
        self.weight = nn.Parameter(weight, requires_grad=False)
        if bias is not None:
            self.bias = nn.Parameter(bias, requires_grad=False)
        self.size = size
        token_ids = torch.tensor(tokens, dtype=torch.long, device=weight.device)
        self.register_buffer("tokens", token_ids, persistent=False)

    def scatter_logits(self, logits: Tensor) -> Tensor:
        """Return logits of all tokens, (…, M) → (…, V), with -inf for tokens that are not kept."""
        scattered = logits.new_full((*logits.shape[:-1], self.size), -torch.inf)
        return scattered.index_copy_(-1, self.tokens, logits)

    def embedding(self) -> Tensor:
        """Return the weights (V, d) of all tokens, with zeros for tokens that are not kept."""
        weight = self.weight.detach()
        return weight.new_zeros(self.size, weight.shape[1]).index_copy_(0, self.tokens, weight)


def trim_head(model: PreTrainedModel, tokens: Sequence[int]) -> None:
    """Restrict the output of ``model`` to the ascending ``tokens``; its forward then returns logits (…, M)."""
    head: Any = model.get_output_embeddings()
    size = len(head.weight)
    if isinstance(head, TrimmedHead):
        size, row_of = head.size, {token: row for row, token in enumerate(head.tokens.tolist())}
        rows = [row_of[token] for token in tokens]
    else:
        rows = list(tokens)
    bias = None if head.bias is None else head.bias.detach()[rows]
    model.set_output_embeddings(TrimmedHead(head.weight.detach()[rows], bias, tokens, size))


def kept_tokens(model: PreTrainedModel) -> list[int] | None:
    """Return the tokens that ``model`` has logits of, ascending; None for all."""
    head = model.get_output_embeddings()
    return head.tokens.tolist() if isinstance(head, TrimmedHead) else None


def keep_trimmed(model: PreTrainedModel) -> None:
    """Remove the hook :func:`spread_logits`, so that the forward of ``model`` returns logits (…, M) of kept tokens."""
    for key, hook in [*model._forward_hooks.items()]:
        if hook is spread_logits:
            del model._forward_hooks[key]


def spread_logits(model: nn.Module, inputs: Any, output: ModelOutput) -> ModelOutput:
    """Extend the logits to the whole vocabulary; a forward hook of models with a trimmed head."""
    assert isinstance(model, PreTrainedModel)
    head = model.get_output_embeddings()
    assert isinstance(head, TrimmedHead)
    output["logits"] = head.scatter_logits(output["logits"])
    return output
