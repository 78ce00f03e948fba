"""Verification by comparison with the target's tokens (Daliri, Musco and Suresh 2024, arXiv 2408.07978). Lossless.

The target draws y_1 from p_1. If the draft has drawn the same token, the token is accepted, and the target draws y_2
from p_2, and so on. The first y that was not drafted ends the round. The rule does not need the draft's probabilities.
With noise that target and draft share (:class:`.SharedNoise`), drafted tokens often equal the target's: the drafted
token i is accepted with probability ``1 / Σ_j max(q_j, p_j·q_i/p_i)``. The text y_1 y_2 … depends on the seed and the
target only.
"""

from __future__ import annotations

from ...controllers.acceptance.step import FEW
from ...models.read import children_of
from ..core import Draft, TokenDistribution, Verdict
from ..random_source import RandomSource, SharedNoise
from .rule import Rule


def invariant(p: TokenDistribution, draft: Draft, rng: RandomSource) -> Verdict:
    """Verify ``draft``, a chain or a tree, against the target's distributions ``p``: the root's, then each node's.

    Args:
        p: the distributions.
        draft: the draft.
        rng: the request's random source at the position after the text.
    """
    if draft.is_chain and isinstance(rng, SharedNoise) and _draws_together(p):
        tokens = rng.chain(p)
        accepted = next((i for i, token in enumerate(draft.tokens) if token != tokens[i]), len(draft.tokens))
        return Verdict.chain(accepted, tokens[accepted])
    children = children_of(draft.parents)
    path: list[int] = []
    node = -1
    while True:
        token = rng.token(p, node + 1, len(path))
        node = next((child for child in children.get(node, []) if draft.tokens[child] == token), -1)
        if node < 0:
            return Verdict(path, token)
        path.append(node)


def _draws_together(p: TokenDistribution) -> bool:
    """Return true if drawing from all of ``p`` at once is faster than drawing as far as tokens are accepted."""
    return p.probabilities.device.type != "cpu" or p.probabilities.shape[1] <= FEW


RULE = Rule("invariant", invariant, trees=True)
