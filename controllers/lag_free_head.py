"""The lag-free head: will the target keep this token, and will it keep the one after it, before the draft reads either?

SpecDec++'s head (Huang et al. 2024) reads the draft's state *at* a token, which exists one forward later. This one goes
by what is there when the token is drawn: the state its distribution came from, the token's embedding, and what the
distribution says of it. Its second output looks one token further ahead, which stopping needs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .errors import InputError
from .feature_model import features
from .said import Said

INPUTS = 3  # log q(y), log(1 - max q), entropy


class LagFreeHead(nn.Module):
    """An MLP with one hidden layer, ℝ^(3 + 2d) → ℝ².

    Args:
        hidden_size: d, of the draft's last hidden state and of its output embedding.
        width: hidden units.
        dropout: share of the two vectors' entries that training leaves out.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, hidden_size: int, width: int = 128, dropout: float = 0.0) -> None:
        super().__init__()
        for name, value in (("hidden_size", hidden_size), ("width", width)):
            if value < 1:
                raise InputError(f"{name}={value}: must be at least 1")
        self.hidden_size, self.width = hidden_size, width
        self.inner = nn.Linear(INPUTS + 2 * hidden_size, width)
        self.out = nn.Linear(width, 2)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mean", torch.zeros(INPUTS))
        self.register_buffer("scale", torch.ones(INPUTS))

    def forward(self, said: Tensor, hidden: Tensor, embedding: Tensor) -> Tensor:
        """Logits (…, 2): that the token is kept if all before it are, and then the one that will be drafted after it.

        Args:
            said: (…, 3) :func:`~.feature_model.features` of what the draft says of the token.
            hidden: (…, d) the draft's last hidden state at the token before.
            embedding: (…, d) the draft's output embedding of the token.
        """
        # Without learnt scales: models differ in how long these vectors are, and the first layer has weights enough.
        states = [self.dropout(F.layer_norm(x.float(), x.shape[-1:])) for x in (hidden, embedding)]
        return self.out(F.silu(self.inner(torch.cat([(said - self.mean) / self.scale, *states], -1))))  # type: ignore[no-any-return]


def inputs(said: list[Said]) -> Tensor:
    """(N, 3) from what the draft says of N tokens."""
    return torch.tensor([features(*one) for one in said], dtype=torch.float32).reshape(-1, INPUTS)
