"""The upper bound of SpecTr's Theorem 1 (Sun et al. 2023) on the acceptance probability of k proposals."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import torch
from specpilot.common.errors import InputError
from specpilot.infer.verify.otm import orders_and_probability
from torch import Tensor


def upper_bound(p: Tensor, q: Tensor, k: int) -> float:
    """Return the upper bound of Theorem 1 on the acceptance probability of any rule.

    The proposals are ``k`` tokens drawn from ``q`` (V,), with V up to 12. The bound is the minimum over sets of tokens
    Ω₀ of Σ_{y∈Ω₀} min(p(y), 1 - (1 - q(y))^k) + Σ_{y^k} min(Π q(y_i), p(S(y^k) \\ Ω₀)).

    Raises:
        InputError: V is above 12, because the number of sets is 2^V.
    """
    p, q = p.cpu().double(), q.cpu().double()
    size = len(p)
    if size > 12:
        raise InputError(f"Theorem 1's bound over {size} tokens: 2^{size} sets are too many; take at most 12")
    each = torch.minimum(p, 1 - (1 - q) ** k).numpy()
    # Ordered draws of one multiset all have the same product and the same set of tokens.
    multisets = list(combinations_with_replacement(q.nonzero().flatten().tolist(), k))
    orders, probabilities = np.array([orders_and_probability(multiset, q) for multiset in multisets]).T
    members = np.zeros((len(multisets), size))
    for i, multiset in enumerate(multisets):
        members[i, list(set(multiset))] = 1
    best = np.inf
    for subset in range(2**size):
        inside = np.array([subset >> v & 1 for v in range(size)], dtype=bool)
        outside = members @ np.where(inside, 0.0, p.numpy())
        best = min(best, float(each[inside].sum() + (orders * np.minimum(probabilities, outside)).sum()))
    return best
