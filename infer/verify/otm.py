"""OTM-k, one token from k i.i.d. proposals by optimal transport (SpecTr, Sun et al. 2023, eq. 4). Lossless.

Of all rules whose output is distributed as p, the one whose output is most often a proposal. It solves a linear program
with as many unknowns as there are multisets of k proposals and tokens in each: for small supports only.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import factorial, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...common.errors import InputError
from ..random_source import RandomSource
from .rule import Rule

MOST = 200_000  # unknowns of the linear program
SCALE = 1e6  # of the linear program's probabilities: the solver's tolerance is absolute, and most of them are small


@dataclass(frozen=True)
class Transport:
    """The optimal plan for one p, q and k.

    Attributes:
        plan: sorted proposals → the probability of keeping each distinct one of them, by token.
        residual: (V,) float64, sums to 1: what the output is drawn from when none is kept.
        acceptance: the probability that the output is one of the proposals: the optimum, to the solver's tolerance.
    """

    plan: dict[tuple[int, ...], dict[int, float]]
    residual: Tensor
    acceptance: float


def optimal_transport(p: Tensor, q: Tensor, k: int) -> Transport:
    """Solve eq. 4 for ``p`` and ``q`` (V,) and ``k`` proposals.

    The solver meets the constraints to 1e-13; its answer is then shrunk until it meets them exactly, so that the
    output is distributed as p to rounding, and only the optimum is approximate. Of several optimal plans the same one
    is always taken (:func:`_preferences`), so that the plan does not depend on the rounding of p and q.

    Raises:
        InputError: the linear program would be too large.
    """
    from scipy.optimize import linprog  # slow to import, and few decoders need it
    from scipy.sparse import csr_array

    p, q = p.cpu().double(), q.cpu().double()
    drawn = q.nonzero().flatten().tolist()  # the only tokens that proposals can be
    n = len(drawn)
    if unknowns(n, k) > MOST:
        raise InputError(
            f"OTM with k={k} over {n} tokens: too many unknowns ({unknowns(n, k)}); take fewer tokens (top-k 10)"
        )
    multisets = list(combinations_with_replacement(drawn, k))
    probabilities = [prod(orders_and_probability(multiset, q)) for multiset in multisets]
    edges = [(i, v) for i, multiset in enumerate(multisets) for v in dict.fromkeys(multiset) if p[v] > 0]
    flow = np.zeros(len(edges))
    if edges:
        rows, columns = (np.array(x) for x in zip(*edges, strict=True))
        number, ones = np.arange(len(edges)), np.ones(len(edges))
        constraints = csr_array(
            (np.concatenate([ones, ones]), (np.concatenate([rows, columns + len(multisets)]), np.tile(number, 2))),
            shape=(len(multisets) + len(p), len(edges)),
        )
        bounds = SCALE * np.concatenate([probabilities, p.numpy()])
        solution = linprog(-_preferences(len(edges), n), A_ub=constraints, b_ub=bounds, method="highs")
        flow = np.clip(solution.x / SCALE, 0, None)
        for place, room in ((rows, np.array(probabilities)), (columns, p.numpy())):  # to the letter
            used = np.bincount(place, weights=flow, minlength=len(room))
            flow *= np.minimum(1.0, room / np.where(used > 0, used, 1.0))[place]
    plan: dict[tuple[int, ...], dict[int, float]] = {multiset: {} for multiset in multisets}
    for (i, v), amount in zip(edges, flow, strict=True):
        plan[multisets[i]][v] = amount / probabilities[i]
    kept = np.bincount([v for _, v in edges], weights=flow, minlength=len(p)) if edges else np.zeros(len(p))
    left = (p - torch.from_numpy(kept)).clamp(min=0)
    mass = float(left.sum())
    return Transport(plan, left / mass if mass > 0 else p, float(flow.sum()))


def _preferences(count: int, n: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Weights (count,) of the unknowns in the objective, which choose one of the optimal plans.

    An optimal plan is a maximum flow from multisets to ``n`` tokens, and often there are many. With distinct weights
    one of them is best, so that rounding does not decide between them: similar p and q have similar plans. The best
    one is still a maximum flow, since the weights are from 1 to 1 + 1 / 2n: a path that augments a flow visits each
    token once, so it has at most n - 1 steps back, and gains at least 1 - (n - 1) / 2n > 0.
    """
    return 1 + np.random.default_rng(0).random(count) / (2 * n)


def unknowns(n: int, k: int) -> int:
    """Upper bound of the linear program's unknowns for proposals of ``n`` possible tokens: k for each multiset."""
    return n * prod(range(n + 1, n + k)) // factorial(k - 1)


def orders_and_probability(multiset: tuple[int, ...], q: Tensor) -> tuple[int, float]:
    """In how many orders k draws can be these, and the probability of each order."""
    orders = factorial(len(multiset)) // prod(factorial(count) for count in Counter(multiset).values())
    return orders, prod(float(q[v]) for v in multiset)


def otm(p: Tensor, proposals: list[int], q: Tensor, rng: RandomSource) -> int:
    """A token distributed as ``p`` (V,); i.i.d. ``proposals``, so that all rows of ``q`` (k, V) are the same.

    Raises:
        InputError: see :func:`optimal_transport`.
    """
    transport = optimal_transport(p, q[0], len(proposals))
    keep = transport.plan[tuple(sorted(proposals))]
    kept = torch.tensor([*keep.values(), max(0.0, 1.0 - sum(keep.values()))], dtype=torch.float64)
    choice = rng.sample(kept)
    return list(keep)[choice] if choice < len(keep) else rng.sample(transport.residual)


RULE = Rule("otm", select=otm)
