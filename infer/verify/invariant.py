"""Verification by the target's own tokens (Daliri, Musco and Suresh 2024, arXiv 2408.07978). Lossless.

The target draws y_1 from p_1; while the draft has drawn the same token, it is accepted, and y_2 is drawn from p_2, and
so on. The first y that was not drafted ends the round. The draft's probabilities are not needed. With noise that target
and draft share (:class:`.SharedNoise`) drafted tokens often equal the target's: the drafted token i is accepted with
probability ``1 / Σ_j max(q_j, p_j·q_i/p_i)``. The text is y_1 y_2 …: it depends on the seed and the target alone.
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
        rng: the request's source at the position after the text.
    """
    if draft.is_chain and isinstance(rng, SharedNoise) and _drawn_together(p):
        tokens = rng.chain(p)
        accepted = next((i for i, token in enumerate(draft.tokens) if token != tokens[i]), len(draft.tokens))
        return Verdict.chain(accepted, tokens[accepted])
    children = children_of(draft.parents)
    path: list[int] = []
    here = -1
    while True:
        token = rng.token(p, here + 1, len(path))
        here = next((child for child in children.get(here, []) if draft.tokens[child] == token), -1)
        if here < 0:
            return Verdict(path, token)
        path.append(here)


def _drawn_together(p: TokenDistribution) -> bool:
    """Return true if drawing from all of ``p`` at once is faster than drawing as far as tokens are accepted."""
    return p.probabilities.device.type != "cpu" or p.probabilities.shape[1] <= FEW


RULE = Rule("invariant", invariant, trees=True)
