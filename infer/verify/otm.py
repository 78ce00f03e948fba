"""OTM-k, one token from k i.i.d. proposals by optimal transport (SpecTr, Sun et al. 2023, eq. 4). Lossless.

Among all rules whose output is distributed as p, this rule returns one of the proposals with the highest probability.
It solves a linear program with one unknown for each multiset of k proposals and each distinct token in the multiset, so
that it is usable for small supports only.
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

MAX_UNKNOWNS = 200_000  # unknowns of the linear program
SCALE = 1e6  # factor of the linear program's probabilities, most of which are small: the solver's tolerance is absolute


@dataclass(frozen=True)
class Transport:
    """The optimal plan for one p, q and k.

    Attributes:
        plan: sorted proposals → the probability of returning each distinct one of them, by token.
        residual: (V,) float64, sums to 1: the distribution of the output if no proposal is returned.
        acceptance: the probability that the output is one of the proposals, optimal up to the solver's tolerance.
    """

    plan: dict[tuple[int, ...], dict[int, float]]
    residual: Tensor
    acceptance: float


def optimal_transport(p: Tensor, q: Tensor, k: int) -> Transport:
    """Solve eq. 4 for ``p`` and ``q`` (V,) and ``k`` proposals.

    The solver meets the constraints to 1e-13. The function then shrinks the solution until the constraints hold
    exactly: the output is distributed as p up to rounding, and only the optimum is approximate. If there are several
    optimal plans, :func:`_preferences` selects always the same, so that the plan does not depend on the rounding of p
    and q.

    Raises:
        InputError: the linear program would be too large.
    """
    from scipy.optimize import linprog  # slow to import, and few decoders need it
    from scipy.sparse import csr_array

    p, q = p.cpu().double(), q.cpu().double()
    drawn = q.nonzero().flatten().tolist()  # the only tokens that proposals can be
    n = len(drawn)
    if unknowns(n, k) > MAX_UNKNOWNS:
        raise InputError(
            f"OTM with k={k} over {n} tokens: too many unknowns ({unknowns(n, k)}); take fewer tokens (top-k 10)"
        )
    multisets = list(combinations_with_replacement(drawn, k))
    probabilities = [prod(orders_and_probability(multiset, q)) for multiset in multisets]
    edges = [(i, v) for i, multiset in enumerate(multisets) for v in dict.fromkeys(multiset) if p[v] > 0]
    flow = np.zeros(len(edges))
    if edges:
        rows, columns = (np.array(x) for x in zip(*edges, strict=True))
        number, weights = np.arange(len(edges)), np.ones(len(edges))
        constraints = csr_array(
            (
                np.concatenate([weights, weights]),
                (np.concatenate([rows, columns + len(multisets)]), np.tile(number, 2)),
            ),
            shape=(len(multisets) + len(p), len(edges)),
        )
        bounds = SCALE * np.concatenate([probabilities, p.numpy()])
        solution = linprog(-_preferences(len(edges), n), A_ub=constraints, b_ub=bounds, method="highs")
        flow = np.clip(solution.x / SCALE, 0, None)
        for indices, limits in ((rows, np.array(probabilities)), (columns, p.numpy())):  # shrink: the constraints hold
            sums = np.bincount(indices, weights=flow, minlength=len(limits))
            flow *= np.minimum(1.0, limits / np.where(sums > 0, sums, 1.0))[indices]
    plan: dict[tuple[int, ...], dict[int, float]] = {multiset: {} for multiset in multisets}
    for (i, v), amount in zip(edges, flow, strict=True):
        plan[multisets[i]][v] = amount / probabilities[i]
    transported = np.bincount([v for _, v in edges], weights=flow, minlength=len(p)) if edges else np.zeros(len(p))
    remaining = (p - torch.from_numpy(transported)).clamp(min=0)
    mass = float(remaining.sum())
    return Transport(plan, remaining / mass if mass > 0 else p, float(flow.sum()))


def _preferences(count: int, n: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return weights (count,) of the unknowns in the objective, which select one of the optimal plans.

    An optimal plan is a maximum flow from multisets to ``n`` tokens, and there are often several. With distinct weights
    one of them is the best. Rounding does not decide between them, so that similar p and q have similar plans. The best
    plan is still a maximum flow, because the weights lie between 1 and 1 + 1 / 2n: a path that augments a flow visits
    each token once, so it has at most n - 1 steps back and gains at least 1 - (n - 1) / 2n > 0.
    """
    return 1 + np.random.default_rng(0).random(count) / (2 * n)


def unknowns(n: int, k: int) -> int:
    """Return an upper bound of the linear program's unknowns for ``n`` possible tokens: ``k`` for each multiset."""
    return n * prod(range(n + 1, n + k)) // factorial(k - 1)


def orders_and_probability(multiset: tuple[int, ...], q: Tensor) -> tuple[int, float]:
    """Return the number of orders in which k draws give ``multiset``, and the probability of each order."""
    orders = factorial(len(multiset)) // prod(factorial(count) for count in Counter(multiset).values())
    return orders, prod(float(q[v]) for v in multiset)


def otm(p: Tensor, proposals: list[int], q: Tensor, rng: RandomSource) -> int:
    """Return a token distributed as ``p`` (V,).

    Args:
        proposals: k tokens, drawn independently from the same distribution.
        q: (k, V) the proposals' distributions; all rows are equal.

    Raises:
        InputError: the linear program would be too large.
    """
    transport = optimal_transport(p, q[0], len(proposals))
    keep = transport.plan[tuple(sorted(proposals))]
    weights = torch.tensor([*keep.values(), max(0.0, 1.0 - sum(keep.values()))], dtype=torch.float64)
    choice = rng.sample(weights)
    return list(keep)[choice] if choice < len(keep) else rng.sample(transport.residual)


RULE = Rule("otm", select=otm)
