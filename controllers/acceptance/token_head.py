"""The base of the lag-free head and the copy head: an MLP on a few numbers and on vectors of tokens.

The MLP has one hidden layer. The contribution of a token to the hidden units depends on the token only. It is tabulated
for the vocabulary, so that a prediction is a few additions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...common.errors import InputError
from ..checkpoints.config import WIDEST, check_range

EPSILON = 1e-5  # added to variances
ROWS = 8192  # number of rows of an embedding that are processed at once


class TokenHead(nn.Module):
    """One hidden layer of ReLU units, ℝ^(n + k·d) → ℝ^m.

    Args:
        numbers: n, the number of scalar inputs, which are standardised by mean and scale of the training data.
        vectors: k, the number of vectors.
        hidden_size: d, the size of a vector.
        width: number of hidden units.
        outputs: m, the number of outputs.

    Raises:
        InputError: ``hidden_size`` or ``width`` is smaller than 1.
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
        """Set mean and standard deviation (n,) of the numbers; constant numbers are not scaled."""
        self.mean.copy_(mean)
        self.scale.copy_(torch.where(scale > 1e-6, scale, 1.0))

    def numbers(self, evidence: Tensor) -> Tensor:
        """Return the standardised numbers of ``evidence``, (…, n) → (…, n)."""
        return (evidence - self.mean) / self.scale

    def logit(self, numbers: Tensor, vectors: Tensor, mask: Tensor | None) -> Tensor:
        """Return the logits (…), or (…, m) for several outputs.

        Args:
            numbers: (…, n) standardised numbers.
            vectors: (…, k·d) the vectors.
            mask: (…, k·d) dropout factors of the vectors' entries; None for no dropout.
        """
        vectors = vectors if mask is None else vectors * mask
        units = self.inner(torch.cat([numbers, vectors], -1))
        return self.out(F.relu(units)).squeeze(-1)  # type: ignore[no-any-return]


def normalised(x: Tensor) -> Tensor:
    """Return normalised vectors, (…, d) → (…, d), without learnt scales.

    Without this, the lengths of embeddings would differ between tokens and models.
    """
    return F.layer_norm(x.float(), x.shape[-1:], eps=EPSILON)


def tabulate(embedding: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return ``weight`` times every normalised row of ``embedding`` plus ``bias``, (V, width), on the host.

    Args:
        embedding: (V, d) the embedding.
        weight: (width, d) the weights.
        bias: (width,) the bias.
    """
    parts = [F.linear(normalised(rows.to(weight.device)), weight).cpu() for rows in torch.split(embedding, ROWS)]
    return torch.cat(parts).add_(bias)


def check_sizes(hidden_size: int, width: int) -> None:
    """Check the sizes of a head that were read from ``config.json``, because the file may be damaged.

    Args:
        hidden_size: size of a vector.
        width: number of hidden units.

    Raises:
        InputError: a size is below 1 or above ``WIDEST``.
    """
    check_range("hidden_size", hidden_size, 1, WIDEST)
    check_range("width", width, 1, WIDEST)
