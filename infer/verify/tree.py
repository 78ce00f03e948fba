"""Verification of a draft tree, from the root down, by a rule that chooses one token from several proposals.

At each node the rule gets the target's distribution and the children's tokens in the order they were drawn. Children
that carry its output survive, all of them where several drew the same token, and their children are the next level's
proposals (SpecTr, Sun et al. 2023, Algorithm 3 and Appendix E; SpecInfer, Miao et al. 2024, Algorithm 2). A level at
which none survives ends the round, and below a leaf the target draws freely. A chain is a tree with one branch.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ...models.read import ancestors_of, children_of
from ..core import Draft, TokenDistribution, Verdict
from ..random_source import RandomSource

# (p (V,), proposals, their draft distributions (k, V), rng) → a token distributed as p
Selection = Callable[[Tensor, list[int], Tensor, RandomSource], int]


def verify_tree(p: TokenDistribution, draft: Draft, rng: RandomSource, select: Selection) -> Verdict:
    """Verify ``draft`` against the target's distributions ``p``: the root's, then each node's."""
    children = children_of(draft.parents)
    survivors = [-1]
    while True:
        here = survivors[0]
        path = [] if here < 0 else [*ancestors_of(draft.parents, here), here]
        proposals = [child for node in survivors for child in children.get(node, [])]
        if not proposals:
            return Verdict(path, p.sample(here + 1, rng))
        token = select(p.row(here + 1), [draft.tokens[child] for child in proposals], draft.q[proposals], rng)
        survivors = [child for child in proposals if draft.tokens[child] == token]
        if not survivors:
            return Verdict(path, token)
