"""The acceptance head of SpecDec++ (Huang et al. 2024, §3.2 and Appendix)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...common.errors import InputError


class ResidualBlock(nn.Module):
    """``x + SiLU(W x + b)``, shapes (..., d) → (..., d)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.silu(self.linear(x))


class AcceptanceHead(nn.Module):
    """f: ℝ^d → ℝ: ``depth`` residual blocks, each with its own weights, then one linear layer to a logit.

    The input is the draft's last hidden state (after its final norm) at a drafted token; ``sigmoid`` of the output is
    the probability that the target accepts that token, given that it accepted all before it. ``depth=0`` is linear.
    """

    def __init__(self, hidden_size: int, depth: int = 3) -> None:
        super().__init__()
        if hidden_size < 1:
            raise InputError(f"hidden_size={hidden_size}: must be at least 1 (the draft's hidden size)")
        if depth < 0:
            raise InputError(f"depth={depth}: must be 0 (a linear head) or more")
        self.hidden_size, self.depth = hidden_size, depth
        self.blocks = nn.Sequential(*(ResidualBlock(hidden_size) for _ in range(depth)))
        self.out = nn.Linear(hidden_size, 1)

    def residual_blocks(self) -> list[ResidualBlock]:
        return [block for block in self.blocks if isinstance(block, ResidualBlock)]

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits (...) of acceptance for hidden states (..., d)."""
        return self.out(self.blocks(hidden)).squeeze(-1)  # type: ignore[no-any-return]

    @torch.no_grad()
    def probability(self, hidden: Tensor) -> Tensor:
        """â = sigmoid(f(hidden)), shapes (..., d) → (...), in the head's own precision."""
        return torch.sigmoid(self(hidden.to(self.out.weight.dtype)))
