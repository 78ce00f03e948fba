"""Verification of a draft tree, from the root down, by a rule that chooses one token from several proposals.

At each node the rule gets the target's distribution and the children's tokens in the order in which they were drawn.
All children with the token that the rule returns survive. The children of the survivors are the proposals of the next
level (SpecTr, Sun et al. 2023, Algorithm 3 and Appendix E; SpecInfer, Miao et al. 2024, Algorithm 2). The round ends at
a level without survivors. Below a leaf the token is drawn from the target's distribution. A chain is a tree with one
branch.
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
    """Verify the tree ``draft`` against the target's distributions ``p``: the root's, then each node's.

    Args:
        select: chooses one token from the proposals of a node.
    """
    children = children_of(draft.parents)
    survivors = [-1]
    while True:
        survivor = survivors[0]
        path = [] if survivor < 0 else [*ancestors_of(draft.parents, survivor), survivor]
        proposals = [child for node in survivors for child in children.get(node, [])]
        if not proposals:
            return Verdict(path, p.sample(survivor + 1, rng))
        token = select(p.row(survivor + 1), [draft.tokens[child] for child in proposals], draft.q[proposals], rng)
        survivors = [child for child in proposals if draft.tokens[child] == token]
        if not survivors:
            return Verdict(path, token)
