"""Next-token distributions, stored for the tokens of positive probability.

Under top-k sampling a distribution has a few dozen entries, for which Python lists are faster than tensor operations
(docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from ..controllers.acceptance.step import FEW
from ..controllers.sampling import SamplingParams
from .random_source import RandomSource, draw_unchecked


class TokenDistribution:
    """N distributions over the V tokens of the target.

    Args:
        probabilities: (N, k) probabilities.
        tokens: (N, k) their tokens; None for the first k tokens in order.
        size: vocabulary size V.

    Attributes:
        whole: the distributions that these are a part of, whose lists are read together, with the first and last row.
    """

    whole: tuple[TokenDistribution, int, int] | None = None

    def __init__(self, probabilities: Tensor, tokens: Tensor | None, size: int) -> None:
        self.probabilities, self.tokens, self.size = probabilities, tokens, size

    @classmethod
    def from_logits(
        cls, sampling: SamplingParams, logits: Tensor, size: int | None = None, kept: Tensor | None = None
    ) -> TokenDistribution:
        """Distributions of ``logits`` (N, V'), cut to ``size`` = V, since vocabularies may be padded. Default: V'.

        Args:
            kept: (M,) the only tokens with finite logits, all below V; None if others may have them.
        """
        size = logits.shape[-1] if size is None else size
        if kept is not None:  # M numbers instead of V
            probabilities, places = sampling.top(logits[:, kept])
            return cls(probabilities, kept.expand(len(logits), -1) if places is None else kept[places], size)
        if logits.shape[-1] > size:
            logits = logits[:, :size]
        return cls(*sampling.top(logits), size)

    @classmethod
    def joined(cls, parts: Sequence[TokenDistribution]) -> TokenDistribution:
        """The rows of ``parts``; of all tokens where not all parts are :func:`alike`."""
        if len(parts) == 1:
            return parts[0]
        if len(alike(parts)) > 1:
            return cls(torch.cat([part.dense for part in parts]), None, parts[0].size)
        lists = [part.tokens for part in parts if part.tokens is not None]
        probabilities = torch.cat([part.probabilities for part in parts])
        return cls(probabilities, torch.cat(lists) if lists else None, parts[0].size)

    @cached_property
    def lists(self) -> list[tuple[list[float], list[int]]] | None:
        """Each distribution's probabilities and tokens as lists; None if they are too long."""
        if self.tokens is None or self.tokens.shape[1] > FEW:
            return None
        if self.whole is not None:
            whole, start, end = self.whole
            return None if whole.lists is None else whole.lists[start:end]
        if self.probabilities.device.type == "cpu":
            return list(zip(self.probabilities.tolist(), self.tokens.tolist(), strict=True))
        return read_together(self.probabilities, self.tokens)

    @cached_property
    def dense(self) -> Tensor:
        """(N, V) probabilities of all tokens."""
        if self.tokens is None and self.probabilities.shape[1] == self.size:
            return self.probabilities
        dense = self.probabilities.new_zeros(len(self.probabilities), self.size)
        if self.tokens is None:
            dense[:, : self.probabilities.shape[1]] = self.probabilities
            return dense
        return dense.scatter_(1, self.tokens, self.probabilities)

    def row(self, row: int) -> Tensor:
        """(V,) probabilities of all tokens in distribution ``row``."""
        return self.part(row, row + 1).dense[0]

    def support(self, row: int) -> tuple[Tensor, Tensor]:
        """Tokens (k,) and their probabilities (k,) in distribution ``row``; the others have none.

        A token may stand there again with probability zero.
        """
        probabilities = self.probabilities[row]
        if self.tokens is None:
            return torch.arange(len(probabilities), device=probabilities.device), probabilities
        return self.tokens[row], probabilities

    def part(self, start: int, end: int) -> TokenDistribution:
        """The distributions from ``start`` up to ``end``."""
        part = TokenDistribution(
            self.probabilities[start:end], None if self.tokens is None else self.tokens[start:end], self.size
        )
        part.whole = self, start, end
        return part

    def take(self, rows: list[int]) -> TokenDistribution:
        """The distributions with indices ``rows``, in this order; indices may repeat."""
        return TokenDistribution(
            self.probabilities[rows], None if self.tokens is None else self.tokens[rows], self.size
        )

    def of(self, tokens: list[int]) -> list[float]:
        """Probability of ``tokens[i]`` in row i; there may be fewer tokens than rows."""
        if self.lists is None:
            index = torch.tensor(tokens, dtype=torch.long, device=self.probabilities.device)
            return self.dense[: len(tokens)].gather(1, index.unsqueeze(1)).squeeze(1).tolist()
        return [
            row[0][row[1].index(token)] if token in row[1] else 0.0
            for row, token in zip(self.lists, tokens, strict=False)
        ]

    def token(self, row: int, choice: int) -> int:
        """The token of entry ``choice`` of distribution ``row``."""
        return choice if self.tokens is None else int(self.tokens[row, choice])

    def sample(self, row: int, rng: RandomSource) -> int:
        """A token drawn from distribution ``row``."""
        if self.lists is None:
            return self.token(row, rng.sample(self.probabilities[row]))
        probabilities, tokens = self.lists[row]
        return tokens[rng.pick(probabilities)]

    def sample_beyond(self, row: int, other: TokenDistribution, rng: RandomSource, scale: float = 1.0) -> int:
        """A token from ``norm((scale·p - q)+)``, where p is distribution ``row`` and q the first of ``other``.

        If the difference is empty, which can only be rounding, the token is drawn from p.
        """
        if self.lists is None or other.lists is None:
            if self.tokens is None:
                return rng.sample(residual(scale * self.dense[row], other.dense[0]))
            kept = self.tokens[row]  # in the order of the lists, so that the same number draws the same token
            return self.token(row, rng.sample(residual(scale * self.probabilities[row], other.dense[0][kept])))
        probabilities, tokens = self.lists[row]
        less = dict(zip(other.lists[0][1], other.lists[0][0], strict=True))
        left = [max(0.0, scale * p - less.get(token, 0.0)) for p, token in zip(probabilities, tokens, strict=True)]
        return tokens[rng.pick(left if any(left) else probabilities)]


def read_together(probabilities: Tensor, tokens: Tensor) -> list[tuple[list[float], list[int]]]:
    """Rows of probabilities (N, k) and tokens (N, k) with one read by the host; a float32 is exact up to token 2^24."""
    k = tokens.shape[1]
    rows = torch.cat([probabilities, tokens.to(probabilities.dtype)], -1).tolist()
    return [(row[:k], [int(token) for token in row[k:]]) for row in rows]


def alike(parts: Sequence[TokenDistribution]) -> list[list[int]]:
    """Indices of those of ``parts`` that all list their tokens or none, and equally many."""
    groups: dict[tuple[int, bool], list[int]] = {}
    for i, part in enumerate(parts):
        groups.setdefault((part.probabilities.shape[1], part.tokens is None), []).append(i)
    return list(groups.values())


def draw_unread(
    q: Sequence[TokenDistribution], uniforms: Sequence[float]
) -> list[tuple[list[int], TokenDistribution, Tensor, Tensor]]:
    """A token of each of ``q``, which have one row, and its probability: the host reads neither.

    Returns:
        For n of equal widths each: their indices, these distributions, the tokens (n,), and their probabilities (n,).
    """
    found = []
    for rows in alike(q):
        together = TokenDistribution.joined([q[row] for row in rows])
        numbers = torch.tensor([uniforms[row] for row in rows], dtype=torch.float64)
        numbers = numbers.to(together.probabilities.device, non_blocking=True)
        places = draw_unchecked(together.probabilities, numbers).unsqueeze(-1)
        tokens = places if together.tokens is None else together.tokens.gather(-1, places)
        chosen = together.probabilities.gather(-1, places)
        found.append((rows, together, tokens.squeeze(-1), chosen.squeeze(-1)))
    return found


def residual(p: Tensor, q: Tensor) -> Tensor:
    """``norm((p - q)+)``, shapes (V,) → (V,); ``p`` if the difference is empty, which can only be rounding."""
    difference = (p - q).clamp(min=0)
    mass = difference.sum()
    return difference / mass if float(mass) > 0 else p


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
