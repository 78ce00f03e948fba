"""Verification of a tree whose nodes have drawn children, then candidates: any tokens whatever. Lossless.

At each node the drawn children are tried as by SpecInfer's rule (Miao et al. 2024, Algorithm 2): y_i is accepted with
probability ``min(1, p(y_i)/q_i(y_i))``, q_i being the distribution it was drawn from given its elder siblings; after a
rejection ``p ← norm((p - q_i)+)``. If all are rejected, one token is drawn from what is left of p. If a candidate
carries it, the candidate is accepted and verification goes on below; otherwise it is the token after the accepted path.

The token chosen at a node is distributed as p whatever the candidates are, so they may depend on anything, drawn
siblings included. Whether another child is drawn may depend on those before it: after their rejection what is left of p
does not. No drawn child may be dropped for what it is. One drawn child and no candidates is the token-wise rule.
"""

from __future__ import annotations

from ...models.read import children_of
from ..core import Draft, TokenDistribution, Verdict, residual
from ..random_source import RandomSource
from .token_wise import token_wise


def candidates(p: TokenDistribution, draft: Draft, rng: RandomSource) -> Verdict:
    """Verify ``draft`` against the target's distributions ``p``: the root's, then each node's.

    Candidates are the children whose distribution is a point mass; they come after their drawn siblings.
    """
    if draft.is_chain:
        return token_wise(p, draft, rng)
    children = children_of(draft.parents)
    path: list[int] = []
    here = -1
    while here in children:
        chosen = _choose(p, draft, here, children[here], rng)
        if chosen[0] is None:
            return Verdict(path, chosen[1])
        here = chosen[0]
        path.append(here)
    return Verdict(path, p.sample(here + 1, rng))


def _choose(
    p: TokenDistribution, draft: Draft, here: int, nodes: list[int], rng: RandomSource
) -> tuple[int | None, int]:
    """The child of node ``here`` that is accepted, None if none is, and its token."""
    tokens, left = p.support(here + 1)
    drawn = [node for node in nodes if draft.distributions[node].probabilities.shape[1] > 1]
    for node in drawn:
        q, token = draft.distributions[node].dense[0], draft.tokens[node]
        if rng.accept([float(left[tokens == token].sum() / q[token])])[0]:
            return node, token
        left = residual(left, q[tokens])
    token = int(tokens[rng.sample(left)])
    return next((node for node in nodes[len(drawn) :] if draft.tokens[node] == token), None), token
