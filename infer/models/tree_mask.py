"""Tree masks: the cache columns that the tokens of a draft tree attend to, and their positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TreeMask:
    """The mask of new tokens that form a tree.

    Attributes:
        trunk: every node attends to the first ``trunk`` columns of its row.
        above: for each node, the columns of its ancestors from ``trunk`` on, the nearest last. The nodes are the last
            ``len(above)`` of the tokens that are read; earlier ones are the end of the trunk.
    """

    trunk: int
    above: list[list[int]]

    @classmethod
    def of_parents(cls, trunk: int, parents: Sequence[int]) -> TreeMask:
        """The mask of all nodes of a tree, in order after the trunk; ``parents`` holds -1 for children of the root."""
        above = [[trunk + ancestor for ancestor in ancestors_of(parents, node)] for node in range(len(parents))]
        return cls(trunk, above)

    def positions(self) -> list[int]:
        """Position of each node: the number of tokens before it in its own text."""
        return [self.trunk + len(ancestors) for ancestors in self.above]

    def paths(self, first: int) -> list[list[int]]:
        """Columns of the path to each leaf, from the trunk on; nodes begin at column ``first``."""
        inner = {column for ancestors in self.above for column in ancestors}
        below = [[*ancestors, first + new] for new, ancestors in enumerate(self.above)]
        return [path for path in below if path[-1] not in inner]


def children_of(parents: Sequence[int]) -> dict[int, list[int]]:
    """The children of each node that has some, in order; the root is -1."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        children.setdefault(parent, []).append(node)
    return children


def ancestors_of(parents: Sequence[int], node: int) -> list[int]:
    """The ancestors of ``node``, the root's child first; ``parents`` holds -1 for children of the root."""
    above: list[int] = []
    while parents[node] >= 0:
        node = parents[node]
        above.append(node)
    return above[::-1]
