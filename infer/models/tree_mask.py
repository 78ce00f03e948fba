"""Where the tokens of a draft tree stand in a cache: what each of them attends to, and its position in its own text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TreeMask:
    """New tokens that do not all follow one another.

    Attributes:
        trunk: every node attends to the first ``trunk`` columns of its row.
        above: for each node, the columns from ``trunk`` on that hold its ancestors, the nearest last. The nodes are the
            last ``len(above)`` of the tokens that are read; those before them are the end of the trunk.
    """

    trunk: int
    above: list[list[int]]

    @classmethod
    def of_parents(cls, trunk: int, parents: Sequence[int]) -> TreeMask:
        """All nodes of a tree at once, in order behind the trunk; ``parents`` holds -1 for children of the root."""
        above = [[trunk + ancestor for ancestor in ancestors_of(parents, node)] for node in range(len(parents))]
        return cls(trunk, above)

    def positions(self) -> list[int]:
        """Each node's position: the number of tokens before it in its own text."""
        return [self.trunk + len(ancestors) for ancestors in self.above]

    def paths(self, first: int) -> list[list[int]]:
        """Columns from the trunk down to each node that no other stands below; nodes begin at column ``first``."""
        inner = {column for ancestors in self.above for column in ancestors}
        below = [[*ancestors, first + new] for new, ancestors in enumerate(self.above)]
        return [path for path in below if path[-1] not in inner]


def ancestors_of(parents: Sequence[int], node: int) -> list[int]:
    """The nodes above ``node``, the root's child first; ``parents`` holds -1 for children of the root."""
    above: list[int] = []
    while parents[node] >= 0:
        node = parents[node]
        above.append(node)
    return above[::-1]
