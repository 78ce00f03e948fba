"""Drafts: the proposed tokens and the distributions they were drawn from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from .distribution import TokenDistribution
from .random_source import RandomSource


@dataclass(frozen=True)
class Drawn:
    """A chain's K tokens on the device.

    Attributes:
        tokens: (K,) y_1 … y_K.
        q: (K,) the probability of each in the distribution that it was drawn from.
        uniforms: the K numbers they were drawn with, if the host has not read them; otherwise none.
    """

    tokens: Tensor
    q: Tensor
    uniforms: list[float]


@dataclass(frozen=True)
class Draft:
    """A tree of drafted tokens; a chain is a tree with a single branch.

    Attributes:
        tokens: token of each node; children come after their parents, siblings in the order of drawing.
        distributions: distribution that each token was drawn from, without replacement that of its first sibling; those
            of a level of a tree may be one of several rows.
        parents: parent of each node, -1 for children of the root.
        n_forwards: number of forwards of the draft model.
        copied: number of first tokens that were copied from the text without asking the length controller.
        from_target: the tokens were chosen and read by the target and need no verification.
        drawn: the tokens of a chain that was drawn on an accelerator. If the host has not read them, ``tokens`` has
            zeros in their places, and may be longer than the draft, which ends with a stop token.
    """

    tokens: list[int]
    distributions: list[TokenDistribution]
    parents: list[int]
    n_forwards: int
    from_target: bool = False
    copied: int = 0
    drawn: Drawn | None = None

    @classmethod
    def chain(
        cls, tokens: list[int], distributions: list[TokenDistribution], n_forwards: int | None = None, copied: int = 0
    ) -> Draft:
        """A chain y_1 … y_K with a distribution for each token; ``n_forwards`` is None for a forward for each."""
        forwards = len(tokens) if n_forwards is None else n_forwards
        return cls(tokens, distributions, list(range(-1, len(tokens) - 1)), forwards, copied=copied)

    @cached_property
    def q(self) -> Tensor:
        """(N, V) row i is the distribution token i was drawn from."""
        return torch.cat([distribution.dense for distribution in self.distributions])

    @cached_property
    def is_chain(self) -> bool:
        return self.parents == list(range(-1, len(self.tokens) - 1))

    def ratios(self, p: TokenDistribution) -> list[float]:
        """p_i(y_i) / q_i(y_i) of a chain; q_i(y_i) > 0, since y_i was drawn from it."""
        drawn = [
            distribution.of([token])[0] for distribution, token in zip(self.distributions, self.tokens, strict=True)
        ]
        return [p_y / q_y for p_y, q_y in zip(p.of(self.tokens), drawn, strict=True)]

    def known(self, rng: RandomSource, stop_tokens: frozenset[int]) -> Draft:
        """Itself with tokens that the host has read."""
        if self.drawn is None or not self.drawn.uniforms:
            return self
        draft = self.with_tokens(self.drawn.tokens.tolist(), stop_tokens)
        rng.give_back(self.drawn.uniforms[len(draft.tokens) :])
        return draft

    def with_tokens(self, tokens: list[int], stop_tokens: frozenset[int]) -> Draft:
        """The chain with the ``tokens`` that the host has now read, up to a stop token."""
        count = next((i for i, token in enumerate(tokens, 1) if token in stop_tokens), len(tokens))
        return replace(
            self, tokens=tokens[:count], distributions=self.distributions[:count], parents=self.parents[:count],
            drawn=None,
        )  # fmt: skip


NO_DRAFT = Draft.chain([], [])
