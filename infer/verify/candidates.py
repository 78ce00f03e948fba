"""Verification of a tree whose nodes have drawn children, and candidates: arbitrary further tokens. Lossless.

At each node the drawn children are tried as by SpecInfer's rule (Miao et al. 2024, Algorithm 2). Child y_i is accepted
with probability ``min(1, p(y_i)/q_i(y_i))``, where q_i is the distribution that it was drawn from, given its earlier
siblings. After a rejection ``p ← norm((p - q_i)+)``. If all drawn children are rejected, one token is drawn from the
remaining p. If a candidate has this token, the candidate is accepted and verification continues at the candidate.
Otherwise the token follows the accepted path.

For all candidates, the token chosen at a node is distributed as p. Candidates may therefore depend on anything,
including drawn siblings. The decision to draw another child may depend on the earlier children, because the remaining p
after their rejection does not depend on this decision. A drawn child must never be removed because of its token. A node
with one drawn child and no candidates is verified as by the token-wise rule.
"""

from __future__ import annotations

from ...models.read import children_of
from ..core import Draft, TokenDistribution, Verdict, residual
from ..random_source import RandomSource
from .token_wise import token_wise


def candidates(p: TokenDistribution, draft: Draft, rng: RandomSource) -> Verdict:
    """Verify the tree ``draft`` against the target's distributions ``p``: the root's, then each node's.

    A child whose distribution is a point mass is a candidate. Candidates come after their drawn siblings.
    """
    if draft.is_chain:
        return token_wise(p, draft, rng)
    children = children_of(draft.parents)
    path: list[int] = []
    node = -1
    while node in children:
        chosen = _choose(p, draft, node, children[node], rng)
        if chosen[0] is None:
            return Verdict(path, chosen[1])
        node = chosen[0]
        path.append(node)
    return Verdict(path, p.sample(node + 1, rng))


def _choose(
    p: TokenDistribution, draft: Draft, parent: int, children: list[int], rng: RandomSource
) -> tuple[int | None, int]:
    """Return the accepted one of the ``children`` of ``parent``, or None, and the token chosen at ``parent``."""
    tokens, remaining = p.support(parent + 1)
    drawn = [node for node in children if draft.distributions[node].probabilities.shape[1] > 1]
    for node in drawn:
        q, token = draft.distributions[node].dense[0], draft.tokens[node]
        if rng.accept([float(remaining[tokens == token].sum() / q[token])])[0]:
            return node, token
        remaining = residual(remaining, q[tokens])
    token = int(tokens[rng.sample(remaining)])
    return next((node for node in children[len(drawn) :] if draft.tokens[node] == token), None), token
