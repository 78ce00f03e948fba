"""Distributions of several requests at once, and sampling without a read by the host."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from ..controllers.sampling import SamplingParams, draw_by
from .core import TokenDistribution, alike
from .random_source import RandomSource

DTYPES = {float: torch.float64, int: torch.long}  # types of the random numbers that draw tokens


def draw_unread(
    q: Sequence[TokenDistribution], numbers: Sequence[float | int]
) -> list[tuple[list[int], TokenDistribution, Tensor, Tensor]]:
    """Sample a token from each of ``q`` without a read by the host.

    Args:
        q: distributions with one row each.
        numbers: the random number of each distribution, see :meth:`.RandomSource.number`.

    Returns:
        For each group of n distributions with equal widths and types of numbers: their indices, their joined
        distribution, the tokens (n,), and the tokens' probabilities (n,).
    """
    drawn = []
    for rows in _drawn_alike(q, numbers):
        joined = TokenDistribution.joined([q[row] for row in rows])
        number_tensor = torch.tensor([numbers[row] for row in rows], dtype=DTYPES[type(numbers[rows[0]])])
        number_tensor = number_tensor.to(joined.probabilities.device, non_blocking=True)
        choices = draw_by(joined.probabilities, joined.tokens, number_tensor).unsqueeze(-1)
        tokens = choices if joined.tokens is None else joined.tokens.gather(-1, choices)
        chosen = joined.probabilities.gather(-1, choices)
        drawn.append((rows, joined, tokens.squeeze(-1), chosen.squeeze(-1)))
    return drawn


def _drawn_alike(q: Sequence[TokenDistribution], numbers: Sequence[float | int]) -> list[list[int]]:
    """Group the indices of distributions that have equal widths and ``numbers`` of the same type."""
    groups = []
    for dtype in DTYPES:
        some = [row for row, number in enumerate(numbers) if type(number) is dtype]
        groups += [[some[i] for i in group] for group in alike([q[row] for row in some])]
    return groups


def on_host(parts: Sequence[TokenDistribution]) -> list[TokenDistribution]:
    """Return the same distributions in the host's memory; one read serves all distributions of equal width."""
    results: dict[int, TokenDistribution] = {}
    for group in alike(parts):
        joined = TokenDistribution.joined([parts[i] for i in group])
        probabilities, tokens = joined.probabilities, joined.tokens
        if tokens is None or probabilities.device.type == "mps":  # mps has no float64, which is exact for all tokens
            probabilities, tokens = probabilities.cpu(), None if tokens is None else tokens.cpu()
        else:
            numbers = torch.stack([probabilities.double(), tokens.double()]).cpu()
            probabilities, tokens = numbers[0].to(probabilities.dtype), numbers[1].long()
        joined_on_host, start = TokenDistribution(probabilities, tokens, joined.size), 0
        for i in group:
            rows = len(parts[i].probabilities)
            results[i] = joined_on_host.part(start, start + rows)
            start += rows
    return [results[i] for i in range(len(parts))]


def distributions(
    samplings: Sequence[SamplingParams],
    logits: Tensor,
    counts: Sequence[int],
    size: int | None = None,
    kept_tokens: Tensor | None = None,
) -> list[TokenDistribution]:
    """Return the distributions of several requests; those with the same sampling parameters are computed together.

    Args:
        samplings: the sampling parameters of each request.
        logits: (N, V') logits.
        counts: the number of rows of ``logits`` of each request.
        size, kept_tokens: as for :meth:`TokenDistribution.from_logits`.
    """
    if len(samplings) == 1:
        return [TokenDistribution.from_logits(samplings[0], logits, size, kept_tokens)]
    groups: dict[SamplingParams, list[int]] = {}
    for i, sampling in enumerate(samplings):
        groups.setdefault(sampling, []).append(i)
    pieces = torch.split(logits, list(counts)) if len(groups) > 1 else None
    results: dict[int, TokenDistribution] = {}
    for sampling, places in groups.items():
        rows = logits if pieces is None else torch.cat([pieces[i] for i in places])
        joined = TokenDistribution.from_logits(sampling, rows, size, kept_tokens)
        start = 0
        for i in places:
            results[i] = joined if counts[i] == len(rows) else joined.part(start, start + counts[i])
            start += counts[i]
    return [results[i] for i in range(len(samplings))]


class RowwiseDistribution(TokenDistribution):
    """The distributions of a tree's nodes, computed row by row, because verification reads one path only.

    With top-p a row of 50,000 logits takes 0.1 ms on a CPU, about 1 % of a small target's forward.

    Args:
        sampling: the sampling parameters.
        logits: (N, V) logits.
    """

    def __init__(self, sampling: SamplingParams, logits: Tensor) -> None:
        self.sampling, self.logits, self.size = sampling, logits, logits.shape[-1]
        self.rows_computed: dict[int, TokenDistribution] = {}

    def compute_row(self, row: int) -> TokenDistribution:
        """Return distribution ``row``."""
        if row not in self.rows_computed:
            self.rows_computed[row] = TokenDistribution.from_logits(self.sampling, self.logits[row : row + 1])
        return self.rows_computed[row]

    def part(self, start: int, end: int) -> TokenDistribution:
        return self.compute_row(start) if end == start + 1 else super().part(start, end)

    def row(self, row: int) -> Tensor:
        return self.compute_row(row).dense[0]

    def support(self, row: int) -> tuple[Tensor, Tensor]:
        return self.compute_row(row).support(0)

    def sample(self, row: int, rng: RandomSource) -> int:
        return self.compute_row(row).sample(0, rng)

    @cached_property
    def _all(self) -> tuple[Tensor, Tensor | None]:
        """Probabilities (N, k) and tokens (N, k), or None, of all distributions."""
        return self.sampling.top(self.logits)

    @property
    def probabilities(self) -> Tensor:  # type: ignore[override]
        return self._all[0]

    @property
    def tokens(self) -> Tensor | None:  # type: ignore[override]
        return self._all[1]
