"""Where every random decision of the decoder comes from: two kinds of toss, one seed.

Keeping the tosses behind this small class is what lets the tests walk through *all* outcomes of the real decoder and
compare its exact output law with the target's.
"""

from __future__ import annotations

import torch
from torch import Tensor


def draw(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse-CDF sampling: ``probabilities`` (..., V) and ``uniforms`` (...) in [0, 1) give tokens (...).

    The cumulative sum is in float64: a float32 uniform below 1 then never reaches past the last token of positive
    probability, and a token of probability 0 is never drawn.
    """
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    points = uniforms.unsqueeze(-1) * cumulative[..., -1:]
    return torch.searchsorted(cumulative, points, right=True).squeeze(-1)


class Chance:
    """Tosses from a private generator; the global random state is never touched."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.generator = torch.Generator(device).manual_seed(seed)

    def sample(self, probabilities: Tensor) -> int:
        """A token drawn from ``probabilities`` (V,)."""
        # :func:`draw` for one distribution, in as few operations as it takes: this is done for every drafted token.
        cumulative = probabilities.cumsum(-1, dtype=torch.float64)
        uniform = torch.rand(1, generator=self.generator, device=probabilities.device)
        return int(torch.searchsorted(cumulative, uniform * cumulative[-1], right=True))

    def accept(self, probabilities: Tensor) -> list[bool]:
        """Independent tosses, one for each entry of ``probabilities`` (K,)."""
        tosses = torch.rand(
            probabilities.shape, generator=self.generator, device=probabilities.device, dtype=probabilities.dtype
        )
        return (tosses < probabilities).tolist()
