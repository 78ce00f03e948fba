"""Where every random decision of the decoder comes from: two kinds of toss, one seed.

Keeping the tosses behind this small class is what lets the tests walk through *all* outcomes of the real decoder and
compare its exact output law with the target's.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Chance:
    """Tosses from a private generator; the global random state is never touched."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.generator = torch.Generator(device).manual_seed(seed)

    def sample(self, probabilities: Tensor) -> int:
        """A token drawn from ``probabilities`` (V,)."""
        return int(torch.multinomial(probabilities, 1, generator=self.generator))

    def accept(self, probabilities: Tensor) -> list[bool]:
        """Independent tosses, one for each entry of ``probabilities`` (K,)."""
        tosses = torch.rand(
            probabilities.shape, generator=self.generator, device=probabilities.device, dtype=probabilities.dtype
        )
        return (tosses < probabilities).tolist()
