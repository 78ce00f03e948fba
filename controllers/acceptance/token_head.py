"""What the lag-free head and the copy head have in common: an MLP on a few numbers and on vectors of tokens.

The MLP has one hidden layer. What a token adds to the hidden units depends on the token alone, so it is tabulated for a
vocabulary: then a prediction is a few additions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...common.errors import InputError
from ..checkpoints.config import WIDEST, check_range

EPSILON = 1e-5  # added to variances
ROWS = 8192  # of an embedding that are read at once


class TokenHead(nn.Module):
    """One hidden layer of ReLU units, ℝ^(n + k·d) → ℝ^m.

    Args:
        numbers: n, standardised by their mean and scale in the training data.
        vectors: k.
        hidden_size: d.
        width: hidden units.
        outputs: m.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, numbers: int, vectors: int, hidden_size: int, width: int, outputs: int = 1) -> None:
        super().__init__()
        for name, value in (("hidden_size", hidden_size), ("width", width)):
            if value < 1:
                raise InputError(f"{name}={value}: must be at least 1")
        self.hidden_size, self.width = hidden_size, width
        self.inner = nn.Linear(numbers + vectors * hidden_size, width)
        self.out = nn.Linear(width, outputs)
        self.register_buffer("mean", torch.zeros(numbers))
        self.register_buffer("scale", torch.ones(numbers))

    def standardise(self, mean: Tensor, scale: Tensor) -> None:
        """Take mean and standard deviation (n,) of the numbers; those that are constant are not divided."""
        self.mean.copy_(mean)
        self.scale.copy_(torch.where(scale > 1e-6, scale, 1.0))

    def numbers(self, evidence: Tensor) -> Tensor:
        """Standardised numbers, (…, n) → (…, n)."""
        return (evidence - self.mean) / self.scale

    def logit(self, numbers: Tensor, vectors: Tensor, mask: Tensor | None) -> Tensor:
        """Logits (…), or (…, m) of several outputs, of standardised ``numbers`` (…, n) and ``vectors`` (…, k·d).

        Args:
            mask: (…, k·d) factors of the entries of the vectors: dropout in training.
        """
        vectors = vectors if mask is None else vectors * mask
        units = self.inner(torch.cat([numbers, vectors], -1))
        return self.out(F.relu(units)).squeeze(-1)  # type: ignore[no-any-return]


def normalised(x: Tensor) -> Tensor:
    """Shapes (…, d) → (…, d); without learnt scales: tokens and models differ in the length of these vectors."""
    return F.layer_norm(x.float(), x.shape[-1:], eps=EPSILON)


def tabulate(embedding: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(V, width) ``weight`` (width, d) times every normalised row of ``embedding`` (V, d), plus ``bias``, on the host.

    Args:
        bias: (width,).
    """
    parts = [F.linear(normalised(rows.to(weight.device)), weight).cpu() for rows in torch.split(embedding, ROWS)]
    return torch.cat(parts).add_(bias)


def check_sizes(hidden_size: int, width: int) -> None:
    """Raise InputError for sizes that no head has, as of a damaged ``config.json``."""
    check_range("hidden_size", hidden_size, 1, WIDEST)
    check_range("width", width, 1, WIDEST)
