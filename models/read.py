"""The inputs of a forward: new tokens of texts, and draft trees.

A forward appends new tokens to any number of texts. A :class:`Read` describes the new tokens of one text. A
:class:`TreeMask` holds the columns that the nodes of a draft tree attend to.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

Results = tuple[Tensor, Tensor]  # logits (N, V) and hidden states (N', d) of some reads, in the order of the reads


@dataclass(frozen=True)
class TreeMask:
    """The mask of new tokens that form a tree.

    Attributes:
        trunk: number of first columns of the row that every node attends to.
        above: for each node the columns of its ancestors from ``trunk`` on, the nearest last. The nodes are the last
            ``len(above)`` tokens of the read; earlier tokens are the end of the trunk.
    """

    trunk: int
    above: list[list[int]]

    @classmethod
    def from_parents(cls, trunk: int, parents: Sequence[int]) -> TreeMask:
        """Return the mask of a tree whose nodes follow the trunk; ``parents`` holds -1 for children of the root."""
        above = [[trunk + ancestor for ancestor in ancestors_of(parents, node)] for node in range(len(parents))]
        return cls(trunk, above)

    def positions(self) -> list[int]:
        """Return the position of each node, the number of tokens before it on its path."""
        return [self.trunk + len(ancestors) for ancestors in self.above]

    def paths(self, first: int) -> list[list[int]]:
        """Return the columns of the path to each leaf, from the trunk on; the nodes begin at column ``first``."""
        inner = {column for ancestors in self.above for column in ancestors}
        below = [[*ancestors, first + new] for new, ancestors in enumerate(self.above)]
        return [path for path in below if path[-1] not in inner]


def children_of(parents: Sequence[int]) -> dict[int, list[int]]:
    """Return the children, in order, of each node that has children; the root is -1."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        children.setdefault(parent, []).append(node)
    return children


def ancestors_of(parents: Sequence[int], node: int) -> list[int]:
    """Return the ancestors of ``node`` from the top; ``parents`` holds -1 for children of the root."""
    above: list[int] = []
    while parents[node] >= 0:
        node = parents[node]
        above.append(node)
    return above[::-1]


class Read(NamedTuple):
    """New tokens of one text.

    Attributes:
        text: the text's key in the cache.
        tokens: tokens to append, at least one.
        keep: number of last tokens for which results are returned.
        tree: tree mask of the last tokens; None for a chain.
        hidden: number of last tokens whose hidden states are returned, at least ``keep``; None for ``keep``.
        states: (n, d) the states before each token, for models that read them; None for zeros.
        drawn: (m,) the last tokens on the device, if the host has not read them. ``tokens`` then has arbitrary ids in
            their places.
    """

    text: Hashable
    tokens: Sequence[int]
    keep: int = 1
    tree: TreeMask | None = None
    hidden: int | None = None
    states: Tensor | None = None
    drawn: Tensor | None = None

    @property
    def kept_states(self) -> int:
        """Number of hidden states that are returned."""
        return self.keep if self.hidden is None else self.hidden


def put_drawn(reads: Sequence[Read], rows: Sequence[int], tokens: Tensor) -> None:
    """Write the tokens of ``reads`` that the host has not read to the ends of ``rows`` of ``tokens`` (B, n)."""
    drawn = [(row, read.drawn) for row, read in zip(rows, reads, strict=True) if read.drawn is not None]
    if not drawn:
        return
    n = tokens.shape[1]
    if len(drawn) == 1:
        (row, values), *_ = drawn
        tokens[row, n - len(values) :] = values
        return
    places = [[row, column] for row, values in drawn for column in range(n - len(values), n)]
    index = torch.tensor(places).to(tokens.device, non_blocking=True)
    tokens[index[:, 0], index[:, 1]] = torch.cat([values for _, values in drawn])


def put_states(reads: Sequence[Read], rows: Sequence[int], states: Tensor) -> None:
    """Write the states of ``reads`` to the ends of ``rows`` of ``states`` (B, n, d)."""
    for row, read in zip(rows, reads, strict=True):
        if read.states is not None:
            states[row, states.shape[1] - len(read.states) :] = read.states


def ends(rows: Sequence[int], counts: Sequence[int], width: int) -> list[int]:
    """Return indices of the last entries of some rows of an array (B, ``width``), row after row.

    The indices are those of the flattened array (B·width,).

    Args:
        rows: indices of the rows.
        counts: number of last entries of each row.
        width: number of entries of a row.
    """
    row_ends = [(row + 1) * width for row in rows]
    return [index for end, count in zip(row_ends, counts, strict=True) for index in range(end - count, end)]


def read_in_groups(
    reads: Sequence[Read], groups: Iterable[Sequence[int]], forward: Callable[[Sequence[Read]], Results]
) -> Results:
    """Read ``reads`` in several forwards, and return the results of all reads in their order.

    Args:
        reads: the new tokens of each text.
        groups: for each forward the indices of its reads.
        forward: reads a group, and returns logits and hidden states.
    """
    results: dict[int, Results] = {}
    for group in groups:
        group_reads = [reads[i] for i in group]
        logits, hidden = forward(group_reads)
        parts = (
            torch.split(logits, [read.keep for read in group_reads]),
            torch.split(hidden, [read.kept_states for read in group_reads]),
        )
        results.update(zip(group, zip(*parts, strict=True), strict=True))
    return joined([results[i] for i in range(len(reads))])


def joined(results: Sequence[Results]) -> Results:
    """Return the logits (N, V) of all ``results`` concatenated, and their hidden states (N', d) concatenated.

    N and N' are the total numbers of tokens with logits and with hidden states.
    """
    return torch.cat([logits for logits, _ in results]), torch.cat([hidden for _, hidden in results])
