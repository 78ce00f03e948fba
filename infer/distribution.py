"""Distributions of several requests at once: from logits, and draws that the host does not read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from ..controllers.sampling import SamplingParams, draw_by
from .core import TokenDistribution, alike
from .random_source import RandomSource

DTYPES = {float: torch.float64, int: torch.long}  # of the numbers that tokens are drawn with


def draw_unread(
    q: Sequence[TokenDistribution], numbers: Sequence[float | int]
) -> list[tuple[list[int], TokenDistribution, Tensor, Tensor]]:
    """A token of each of ``q``, which have one row, and its probability: the host reads neither.

    Args:
        numbers: what each is drawn with, see :meth:`.RandomSource.number`.

    Returns:
        For n of equal widths and sources each: their indices, these distributions, the tokens (n,), and their
        probabilities (n,).
    """
    drawn = []
    for rows in _drawn_alike(q, numbers):
        together = TokenDistribution.joined([q[row] for row in rows])
        by = torch.tensor([numbers[row] for row in rows], dtype=DTYPES[type(numbers[rows[0]])])
        by = by.to(together.probabilities.device, non_blocking=True)
        places = draw_by(together.probabilities, together.tokens, by).unsqueeze(-1)
        tokens = places if together.tokens is None else together.tokens.gather(-1, places)
        chosen = together.probabilities.gather(-1, places)
        drawn.append((rows, together, tokens.squeeze(-1), chosen.squeeze(-1)))
    return drawn


def _drawn_alike(q: Sequence[TokenDistribution], numbers: Sequence[float | int]) -> list[list[int]]:
    """Indices of those of ``q`` that are of equal widths, and drawn from with ``numbers`` of the same type."""
    groups = []
    for dtype in DTYPES:
        some = [row for row, number in enumerate(numbers) if type(number) is dtype]
        groups += [[some[i] for i in group] for group in alike([q[row] for row in some])]
    return groups


def on_host(parts: Sequence[TokenDistribution]) -> list[TokenDistribution]:
    """The same distributions in the host's memory, with one read of those of equal widths."""
    moved: dict[int, TokenDistribution] = {}
    for group in alike(parts):
        together = TokenDistribution.joined([parts[i] for i in group])
        probabilities, tokens = together.probabilities, together.tokens
        if tokens is None or probabilities.device.type == "mps":  # has no float64, which every token is exact in
            probabilities, tokens = probabilities.cpu(), None if tokens is None else tokens.cpu()
        else:
            numbers = torch.stack([probabilities.double(), tokens.double()]).cpu()
            probabilities, tokens = numbers[0].to(probabilities.dtype), numbers[1].long()
        whole, start = TokenDistribution(probabilities, tokens, together.size), 0
        for i in group:
            rows = len(parts[i].probabilities)
            moved[i] = whole.part(start, start + rows)
            start += rows
    return [moved[i] for i in range(len(parts))]


def distributions(
    samplings: Sequence[SamplingParams],
    logits: Tensor,
    counts: Sequence[int],
    size: int | None = None,
    kept: Tensor | None = None,
) -> list[TokenDistribution]:
    """The distributions of several requests with ``counts`` rows each of ``logits`` (N, V').

    Requests with the same sampling parameters are computed together. ``size`` and ``kept`` are as in
    :meth:`TokenDistribution.from_logits`.
    """
    if len(samplings) == 1:
        return [TokenDistribution.from_logits(samplings[0], logits, size, kept)]
    same: dict[SamplingParams, list[int]] = {}
    for i, sampling in enumerate(samplings):
        same.setdefault(sampling, []).append(i)
    pieces = torch.split(logits, list(counts)) if len(same) > 1 else None
    found: dict[int, TokenDistribution] = {}
    for sampling, places in same.items():
        rows = logits if pieces is None else torch.cat([pieces[i] for i in places])
        together = TokenDistribution.from_logits(sampling, rows, size, kept)
        start = 0
        for i in places:
            found[i] = together if counts[i] == len(rows) else together.part(start, start + counts[i])
            start += counts[i]
    return [found[i] for i in range(len(samplings))]


class RowwiseDistribution(TokenDistribution):
    """The distributions of ``logits`` (N, V): those of a tree's nodes, of which verification reads one path.

    With top-p a row of 50,000 logits takes 0.1 ms on a CPU, about as long as 1 % of a small target's forward.
    """

    def __init__(self, sampling: SamplingParams, logits: Tensor) -> None:
        self.sampling, self.logits, self.size = sampling, logits, logits.shape[-1]
        self.found: dict[int, TokenDistribution] = {}

    def one(self, row: int) -> TokenDistribution:
        """Distribution ``row`` alone."""
        if row not in self.found:
            self.found[row] = TokenDistribution.from_logits(self.sampling, self.logits[row : row + 1])
        return self.found[row]

    def part(self, start: int, end: int) -> TokenDistribution:
        return self.one(start) if end == start + 1 else super().part(start, end)

    def row(self, row: int) -> Tensor:
        return self.one(row).dense[0]

    def support(self, row: int) -> tuple[Tensor, Tensor]:
        return self.one(row).support(0)

    def sample(self, row: int, rng: RandomSource) -> int:
        return self.one(row).sample(0, rng)

    @cached_property
    def _all(self) -> tuple[Tensor, Tensor | None]:
        return self.sampling.top(self.logits)

    @property
    def probabilities(self) -> Tensor:  # type: ignore[override]
        return self._all[0]

    @property
    def tokens(self) -> Tensor | None:  # type: ignore[override]
        return self._all[1]
