"""One token from several proposals: output distribution, optimality, bounds and closed forms, by enumeration."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.common.errors import InputError
from specpilot.infer.random_source import RandomSource
from specpilot.infer.verify.k_seq import acceptance, division_factor, k_seq
from specpilot.infer.verify.otm import optimal_transport, otm, upper_bound
from torch import Tensor

from .enumeration import distribution, output_distribution

SOLVER = 1e-7  # the linear program's tolerance: what "optimal" means here


def simplex(size: int) -> st.SearchStrategy[Tensor]:
    return distribution(size).map(lambda row: torch.tensor(row, dtype=torch.float64))


pairs = st.integers(3, 5).flatmap(lambda size: st.tuples(simplex(size), simplex(size)))


def outcomes(
    rule: Callable[[Tensor, list[int], Tensor, RandomSource], int], p: Tensor, q: Tensor, k: int
) -> dict[tuple[int, bool], float]:
    """The distribution of (output, whether it is one of the k proposals)."""

    def run(rng: RandomSource) -> tuple[int, bool]:
        proposals = [rng.sample(q) for _ in range(k)]
        token = rule(p, proposals, q.expand(k, -1), rng)
        return token, token in proposals

    return output_distribution(run)


@pytest.mark.parametrize("rule", [k_seq, otm])
@settings(max_examples=60)
@given(pair=pairs, k=st.integers(1, 3))
def test_output_has_the_targets_distribution(
    rule: Callable[[Tensor, list[int], Tensor, RandomSource], int], pair: tuple[Tensor, Tensor], k: int
) -> None:
    p, q = pair
    found = outcomes(rule, p, q, k)
    for token in range(len(p)):
        assert found.get((token, True), 0.0) + found.get((token, False), 0.0) == pytest.approx(
            float(p[token]), abs=1e-9
        )
    kept = sum(probability for (_, proposed), probability in found.items() if proposed)
    best = optimal_transport(p, q, k).acceptance
    if rule is otm:
        assert kept == pytest.approx(best, abs=SOLVER)
    else:
        promised = acceptance(p, q, k, division_factor(p, q, k))[1]
        assert promised - 1e-9 <= kept <= best + SOLVER
        assert promised >= (1 - 1 / math.e) * best - SOLVER
        if k == 1:
            assert promised == pytest.approx(float(torch.minimum(p, q).sum()))


@settings(max_examples=60)
@given(pair=pairs)
def test_more_proposals_never_hurt_and_theorem_1_bounds_them(pair: tuple[Tensor, Tensor]) -> None:
    p, q = pair
    sequential = [acceptance(p, q, k, division_factor(p, q, k))[1] for k in (1, 2, 3, 4)]
    optimal = [optimal_transport(p, q, k).acceptance for k in (1, 2, 3, 4)]
    for values in (sequential, optimal):
        assert all(a <= b + SOLVER for a, b in itertools.pairwise(values))
    for k, value in enumerate(optimal, 1):
        assert value <= upper_bound(p, q, k) + SOLVER
    assert upper_bound(p, q, 1) == pytest.approx(float(torch.minimum(p, q).sum()))


def test_supports_too_large_are_refused() -> None:
    q = torch.full((100,), 0.01)
    with pytest.raises(InputError, match="OTM with k=4 over 100 tokens: too many unknowns"):
        optimal_transport(q, q, 4)
    with pytest.raises(InputError, match="take at most 12"):
        upper_bound(q, q, 2)
    one, none = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    assert optimal_transport(one, none, 2).acceptance == 0
