"""Drafts: the tokens a drafter proposed and the distributions they were really drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from .distribution import TokenDistribution
from .models.tree_mask import TreeMask, ancestors_of


@dataclass(frozen=True)
class Draft:
    """A tree of drafted tokens; a chain is one with a single branch.

    Attributes:
        tokens: one for each node; children come after their parents, siblings in the order they were drawn.
        distributions: what each token was drawn from; without replacement, what its first sibling was drawn from.
        parents: the node above each, -1 for children of the root.
        n_forwards: forwards of the drafting model it took.
        copied: how many of the first tokens were copied from the text without the length controller's leave.
        from_target: the target itself chose these tokens and has read them: there is nothing to verify.
    """

    tokens: list[int]
    distributions: list[TokenDistribution]
    parents: list[int]
    n_forwards: int
    from_target: bool = False
    copied: int = 0

    @classmethod
    def chain(cls, tokens: list[int], distributions: list[TokenDistribution]) -> Draft:
        """y_1 … y_K, each after the one before, each with a distribution and a forward of its own."""
        return cls(tokens, distributions, list(range(-1, len(tokens) - 1)), len(tokens))

    @cached_property
    def q(self) -> Tensor:
        """(N, V) row i is the distribution token i was drawn from."""
        return torch.cat([distribution.dense for distribution in self.distributions])

    @cached_property
    def is_chain(self) -> bool:
        return self.parents == list(range(-1, len(self.tokens) - 1))

    def tree_mask(self, trunk: int) -> TreeMask | None:
        """Where the nodes stand behind a text of ``trunk`` tokens; None for a chain."""
        return None if self.is_chain else TreeMask.of_parents(trunk, self.parents)

    def ratios(self, p: TokenDistribution) -> list[float]:
        """p_i(y_i) / q_i(y_i) of a chain; q_i(y_i) > 0, since y_i was drawn from it."""
        drawn = [
            distribution.of([token])[0] for distribution, token in zip(self.distributions, self.tokens, strict=True)
        ]
        return [p_y / q_y for p_y, q_y in zip(p.of(self.tokens), drawn, strict=True)]

    def follow(self, tokens: list[int]) -> list[int]:
        """The path from the root whose nodes hold ``tokens``, as far as there is one."""
        path: list[int] = []
        level = [-1]
        for token in tokens:
            level = [n for n, above in enumerate(self.parents) if above in level and self.tokens[n] == token]
            if not level:
                break
            path = [*ancestors_of(self.parents, level[0]), level[0]]
        return path


NO_DRAFT = Draft.chain([], [])


def merge(drafts: list[Draft]) -> Draft:
    """One tree of several: all hang from the same root, one after another (SpecInfer, Miao et al. 2024, §3)."""
    if len(drafts) == 1:
        return drafts[0]
    starts = accumulate((len(draft.tokens) for draft in drafts), initial=0)
    return Draft(
        [token for draft in drafts for token in draft.tokens],
        [distribution for draft in drafts for distribution in draft.distributions],
        [n + start if n >= 0 else -1 for draft, start in zip(drafts, starts, strict=False) for n in draft.parents],
        sum(draft.n_forwards for draft in drafts),
    )
