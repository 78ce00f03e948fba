"""The source of every random decision of the decoder.

Keeping the draws behind this small class is what lets the tests walk through *all* outcomes of the real decoder and
compare its exact output distribution with the target's.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from itertools import accumulate
from random import Random

import torch
from torch import Tensor

from ..controllers.sampling import require_finite


def draw(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse-CDF sampling: ``probabilities`` (..., V) and ``uniforms`` (...) in [0, 1) give tokens (...).

    The cumulative sum is in float64: a float32 uniform below 1 then never reaches past the last token of positive
    probability, and a token of probability 0 is never drawn.

    Raises:
        InputError: NaN probabilities.
    """
    device = probabilities.device
    if device.type == "mps":  # has no float64
        return draw(probabilities.cpu(), uniforms.cpu()).to(device)
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    require_finite(float(cumulative[..., -1].sum()))
    points = uniforms.unsqueeze(-1) * cumulative[..., -1:]
    return torch.searchsorted(cumulative, points, right=True).squeeze(-1)


class RandomSource:
    """Draws of a private generator; the global random state is never touched, and the device does not matter.

    Weights to draw from need not sum to 1.

    Raises:
        InputError: the weights are NaN: the model is broken.
    """

    def __init__(self, seed: int) -> None:
        self.uniform = Random(seed).random  # [0, 1)

    def pick(self, weights: list[float]) -> int:
        """An index drawn by ``weights``; of few, for which no tensor operation is worth its call."""
        cumulative = list(accumulate(weights))
        require_finite(cumulative[-1])
        return bisect_right(cumulative, self.uniform() * cumulative[-1])

    def sample(self, weights: Tensor) -> int:
        """An index drawn by ``weights`` (V,)."""
        if weights.device.type == "mps":  # has no float64
            weights = weights.cpu()
        cumulative = weights.cumsum(-1, dtype=torch.float64)
        mass = float(cumulative[-1])
        require_finite(mass)
        return int(torch.searchsorted(cumulative, self.uniform() * mass, right=True))

    def accept(self, probabilities: list[float]) -> list[bool]:
        """Independent draws, one for each of ``probabilities``; those above 1 are certain."""
        return [self.uniform() < probability for probability in probabilities]


def sample_seed(seed: int, index: int) -> int:
    """The seed of the ``index``-th of several samples made together; that of the first is ``seed`` itself.

    Derived by a hash: samples of neighbouring seeds share nothing, as they would if the index were added.
    """
    if index == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}/{index}".encode()).digest()[:8], "big")
