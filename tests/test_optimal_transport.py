"""One token from several proposals: output distribution, optimality, bounds and closed forms, by enumeration."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.common.errors import InputError
from specpilot.infer.random_source import RandomSource
from specpilot.infer.verify.k_seq import acceptance, division_factor, k_seq
from specpilot.infer.verify.otm import optimal_transport, otm, upper_bound
from torch import Tensor

from experiments.micro.otm import (
    acceptance_of_pair,
    coin,
    coin_optimum,
    coins,
    compressed,
    k_seq_acceptance,
    plot_otm,
    uniforms,
)

from .enumeration import output_distribution

SOLVER = 1e-7  # the linear program's tolerance: what "optimal" means here


def simplex(size: int) -> st.SearchStrategy[Tensor]:
    """Random distributions, zeros and one-hot vectors among them."""
    weights = st.lists(st.one_of(st.just(0.0), st.floats(0.01, 1.0)), min_size=size, max_size=size)
    return weights.filter(any).map(lambda w: torch.tensor([x / sum(w) for x in w], dtype=torch.float64))


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
        promised = k_seq_acceptance(p, q, k)
        assert promised - 1e-9 <= kept <= best + SOLVER
        assert promised >= (1 - 1 / math.e) * best - SOLVER
        if k == 1:
            assert promised == pytest.approx(float(torch.minimum(p, q).sum()))


@settings(max_examples=60)
@given(pair=pairs)
def test_more_proposals_never_hurt_and_theorem_1_bounds_them(pair: tuple[Tensor, Tensor]) -> None:
    p, q = pair
    sequential = [k_seq_acceptance(p, q, k) for k in (1, 2, 3, 4)]
    optimal = [optimal_transport(p, q, k).acceptance for k in (1, 2, 3, 4)]
    for values in (sequential, optimal):
        assert all(a <= b + SOLVER for a, b in itertools.pairwise(values))
    for k, value in enumerate(optimal, 1):
        assert value <= upper_bound(p, q, k) + SOLVER
    assert upper_bound(p, q, 1) == pytest.approx(float(torch.minimum(p, q).sum()))


@settings(max_examples=60)
@given(pair=pairs, k=st.integers(2, 8))
def test_division_factor_solves_equation_6(pair: tuple[Tensor, Tensor], k: int) -> None:
    p, q = pair
    rho = division_factor(p, q, k)
    assert 1 <= rho <= k
    beta, accepted = acceptance(p, q, k, rho)
    assert accepted <= rho * beta + 1e-12
    if rho > 1:
        assert accepted == pytest.approx(rho * beta)


def test_closed_forms_of_the_paper() -> None:
    for row in uniforms():
        assert row["k_seq"] == pytest.approx(row["closed_form"]), row  # Appendix D.1: optimal there
    for row in coins():
        assert row["otm"] == pytest.approx(row["closed_form"], abs=SOLVER), row
        assert row["bound"] == pytest.approx(row["closed_form"]), row
        assert row["k_seq"] <= row["closed_form"] + 1e-12
    assert coin_optimum(0.25, 0.25, 3) == 1
    p = torch.tensor([1 / 3, 1 / 3, 1 / 3, 0, 0, 0], dtype=torch.float64)
    q = torch.full((6,), 1 / 6, dtype=torch.float64)
    assert optimal_transport(p, q, 3).acceptance == pytest.approx(1 - 0.5**3, abs=SOLVER)


def test_picture_and_models(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    p, q = torch.rand(2, 40, generator=generator).double().pow(6)
    small_p, small_q = compressed(p / p.sum(), q / q.sum())
    assert 10 <= len(small_p) == len(small_q) <= 20
    assert float(small_p.sum()) == pytest.approx(1)
    rows = acceptance_of_pair(p / p.sum(), q / q.sum(), most=3)
    assert rows[0]["otm"] == pytest.approx(rows[0]["k_seq"], abs=SOLVER)
    assert rows[-1]["otm"] >= rows[-1]["k_seq"]
    plot_otm({"uniforms": uniforms(), "coins": coins(), "models": rows, "pair": "a + b"}, tmp_path / "otm.png")
    assert (tmp_path / "otm.png").stat().st_size > 10_000


def test_supports_too_large_are_refused() -> None:
    q = torch.full((100,), 0.01)
    with pytest.raises(InputError, match="OTM with k=4 over 100 tokens: too many unknowns"):
        optimal_transport(q, q, 4)
    with pytest.raises(InputError, match="take at most 12"):
        upper_bound(q, q, 2)
    assert optimal_transport(coin(1.0), coin(0.0), 2).acceptance == 0
