"""Acceptance probabilities by verification rule: closed forms against their definitions, and against the rules."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.data_gen import rollout
from specpilot.data_gen.rollout import acceptance, expected_acceptance
from specpilot.infer.core import Draft, TokenDistribution
from specpilot.infer.random_source import SharedNoise
from specpilot.infer.verify.invariant import invariant

from ..helpers.enumeration import as_distribution, distribution

SIZE = 6
RULES = ["token-wise", "invariant"]


def of_one(p: list[float], q: list[float], i: int, verifier: str) -> float:
    """Return P(accepted | drafted i) by its definition."""
    if p[i] == 0 or q[i] == 0:
        return 0.0
    if verifier == "token-wise":
        return min(1.0, p[i] / q[i])
    return 1 / sum(max(q_j, p_j * q[i] / p[i]) for p_j, q_j in zip(p, q, strict=True))


def of_all(p: list[float], q: list[float], verifier: str) -> float:
    """Return P(accepted) by its definition."""
    if verifier == "token-wise":
        return sum(map(min, p, q))
    pairs = [*zip(p, q, strict=True)]
    return sum(1 / sum(max(p_j / p_i, q_j / q_i) for p_j, q_j in pairs) for p_i, q_i in pairs if p_i > 0 and q_i > 0)


def as_rows(rows: list[list[float]], kind: str) -> TokenDistribution:
    """Return distributions of all tokens, of listed tokens, or of lists that repeat a token of probability 0."""
    whole = torch.tensor(rows, dtype=torch.float64)
    if kind == "padded" and not bool(whole.all(-1).any()):
        listed = as_distribution(whole, lists=True)
        assert listed.tokens is not None
        absent = (whole == 0).int().argmax(-1, keepdim=True)
        zeros = torch.zeros(len(rows), 1, dtype=torch.float64)
        tokens, probabilities = torch.cat([listed.tokens, absent], -1), torch.cat([listed.probabilities, zeros], -1)
        return TokenDistribution(probabilities, tokens, SIZE)
    return as_distribution(whole, lists=kind != "whole")


@settings(max_examples=200)
@given(
    pairs=st.lists(st.tuples(distribution(SIZE), distribution(SIZE)), min_size=1, max_size=4),
    kinds=st.tuples(*[st.sampled_from(["whole", "lists", "padded"])] * 2),
    verifier=st.sampled_from(RULES),
    at_once=st.sampled_from([1, 1 << 22]),
)
def test_probabilities_have_their_definitions(
    pairs: list[tuple[list[float], list[float]]], kinds: tuple[str, str], verifier: str, at_once: int
) -> None:
    """The models may list different tokens, and rows may be computed one by one."""
    p, q = ([pair[side] for pair in pairs] for side in (0, 1))
    both = as_rows(p, kinds[0]), as_rows(q, kinds[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollout, "MAX_SCORES", at_once)
        for i in range(SIZE):
            drafted = [row for row in range(len(pairs)) if q[row][i] > 0]
            computed = acceptance(*both, torch.full((len(pairs),), i), verifier)
            for row in drafted:
                assert float(computed[row]) == pytest.approx(of_one(p[row], q[row], i, verifier), abs=1e-12)
        computed = expected_acceptance(*both, verifier)
    assert computed.tolist() == pytest.approx([of_all(*pair, verifier) for pair in pairs], abs=1e-12)


@settings(max_examples=100)
@given(p=distribution(SIZE), q=distribution(SIZE))
def test_the_expectation_is_the_mean_over_drafted_tokens_and_within_its_bounds(p: list[float], q: list[float]) -> None:
    both = as_rows([p] * SIZE, "lists"), as_rows([q] * SIZE, "lists")
    for verifier in RULES:
        each = acceptance(*both, torch.arange(SIZE), verifier).nan_to_num(0.0)
        expected = float(expected_acceptance(*both, verifier)[0])
        assert float((each * torch.tensor(q, dtype=torch.float64)).sum()) == pytest.approx(expected, abs=1e-12)
    tv = sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
    assert (1 - tv) / (1 + tv) - 1e-9 <= expected <= 1 - tv + 1e-9


P = [0.45, 0.3, 0.2, 0.05, 0.0, 0.0]
Q = [0.1, 0.5, 0.0, 0.3, 0.1, 0.0]


def test_probabilities_are_those_of_verification_with_shared_noise() -> None:
    """Both conditional probabilities are tested: of the target's token given the draft's, and the reverse."""
    p, q = as_rows([P], "lists"), as_rows([Q], "lists")
    drafted, emitted, equal = [0] * SIZE, [0] * SIZE, [0] * SIZE
    count = 6000
    for seed in range(count):
        rng = SharedNoise(seed)
        x = rng.token(q, 0, 0)
        verdict = invariant(TokenDistribution(p.probabilities.expand(2, -1), p.tokens.expand(2, -1), SIZE),  # type: ignore[union-attr]
                            Draft.chain([x], [q]), rng)  # fmt: skip
        y = x if verdict.accepted else verdict.token
        drafted[x] += 1
        emitted[y] += 1
        equal[x] += verdict.accepted
    for first, second, counts in ((p, q, drafted), (q, p, emitted)):
        for i, n in enumerate(counts):
            if n:
                share = float(acceptance(first, second, torch.tensor([i]), "invariant"))
                assert abs(equal[i] / n - share) <= 4.5 * math.sqrt(max(share * (1 - share), 1 / n) / n), i
    share = float(expected_acceptance(p, q, "invariant"))
    assert abs(sum(equal) / count - share) <= 4 * math.sqrt(share * (1 - share) / count)


def single(rows: list[list[float]], **kinds: Any) -> TokenDistribution:
    return TokenDistribution(torch.tensor(rows, **kinds), None, len(rows[0]))


@pytest.mark.parametrize("verifier", RULES)
def test_tokens_that_the_other_model_cannot_write(verifier: str) -> None:
    """The draft has a smaller vocabulary, and some probabilities are nearly 0 in single precision."""
    p, q = single([[0.5, 0.25, 0.25]]), TokenDistribution(torch.tensor([[0.5, 0.5]]), None, 2)
    expected = of_all([0.5, 0.25, 0.25], [0.5, 0.5, 0.0], verifier)
    assert float(expected_acceptance(p, q, verifier)) == pytest.approx(expected)
    wide = TokenDistribution(q.probabilities, None, 3)
    assert float(acceptance(wide, p, torch.tensor([2]), verifier)) == 0
    tiny = single([[1e-38, 1.0]])
    for i in range(2):
        computed = acceptance(tiny, single([[0.5, 0.5]]), torch.tensor([i]), verifier)
        assert float(computed) == pytest.approx(of_one([1e-38, 1.0], [0.5, 0.5], i, verifier), abs=1e-30)
