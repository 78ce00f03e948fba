"""Where the tokens of a draft tree stand in a cache: what each of them sees, and its position in its own text."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TreeMask:
    """New tokens that do not all follow one another.

    Attributes:
        trunk: every new token sees the cache's first ``trunk`` columns.
        above: for each new token, the columns from ``trunk`` on that hold its ancestors, the nearest last.
    """

    trunk: int
    above: list[list[int]]

    def seen(self, columns: int, device: torch.device) -> Tensor:
        """(n, columns) which of the cached and new ``columns`` each of the n new tokens sees, itself included."""
        seen = torch.zeros(len(self.above), columns, dtype=torch.bool)
        seen[:, : self.trunk] = True
        first = columns - len(self.above)
        for row, ancestors in enumerate(self.above):
            seen[row, [*ancestors, first + row]] = True
        return seen.to(device)

    def positions(self, device: torch.device) -> Tensor:
        """(1, n) each new token's position: the length of what it sees before itself."""
        return torch.tensor([[self.trunk + len(ancestors) for ancestors in self.above]], device=device)

    def paths(self, first: int) -> list[list[int]]:
        """Columns from the trunk down to each new token that no other stands below; new columns begin at ``first``."""
        inner = {column for ancestors in self.above for column in ancestors}
        below = [[*ancestors, first + new] for new, ancestors in enumerate(self.above)]
        return [path for path in below if path[-1] not in inner]


def ancestors_of(parents: list[int], node: int) -> list[int]:
    """The nodes above ``node``, the root's child first; ``parents`` holds -1 for children of the root."""
    above: list[int] = []
    while parents[node] >= 0:
        node = parents[node]
        above.append(node)
    return above[::-1]
