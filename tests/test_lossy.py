"""Lossy rules, which trade the target's distribution for speed: each against its formula, and exact where greedy."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.draft import Draft
from specpilot.infer.random_source import RandomSource
from specpilot.infer.verify.bild import bild
from specpilot.infer.verify.typical import typical

from .enumeration import output_distribution
from .test_lossless import as_distribution, distribution
from .tiny import make


@settings(max_examples=100)
@given(
    data=st.data(),
    vocab=st.integers(2, 5),
    count=st.integers(0, 3),
    rollback=st.floats(0, 5),
)
def test_longest_prefix_that_passes_then_one_token_of_the_targets(
    data: st.DataObject, vocab: int, count: int, rollback: float
) -> None:
    rows = [data.draw(distribution(vocab)) for _ in range(count + 1)]
    tokens = data.draw(st.lists(st.integers(0, vocab - 1), min_size=count, max_size=count))
    p = torch.tensor(rows, dtype=torch.float64)
    draft = Draft.chain(tokens, [as_distribution(torch.full((1, vocab), 1 / vocab))] * count)

    def is_typical(row: list[float], token: int) -> bool:
        entropy = -sum(x * math.log(x) for x in row if x > 0)
        return row[token] > min(0.09, 0.3 * math.exp(-entropy))

    def is_likely(row: list[float], token: int) -> bool:
        return row[token] > 0 and -math.log(row[token]) <= rollback

    for rule, passes in ((typical, is_typical), (lambda *a: bild(*a, rollback=rollback), is_likely)):
        expected = 0
        while expected < count and passes(rows[expected], tokens[expected]):
            expected += 1

        def run(rng: RandomSource, rule=rule) -> tuple[int, int]:  # type: ignore[no-untyped-def]
            verdict = rule(as_distribution(p), draft, rng)
            return verdict.accepted, verdict.token

        found = output_distribution(run)
        assert {accepted for accepted, _ in found} == {expected}
        for token in range(vocab):
            assert found.get((expected, token), 0.0) == pytest.approx(rows[expected][token], abs=1e-9)


@pytest.mark.parametrize("verifier", ["typical", "bild"])
def test_greedy_is_the_targets_own(verifier: str) -> None:
    """A point mass rejects all but the arg-max, whatever the thresholds."""
    decoder = SpeculativeDecoder(make(), make(layers=1), verifier=verifier)
    plain = SpeculativeDecoder(make(), None)
    settings = {"max_new_tokens": 30, "temperature": 0.0}
    assert decoder.generate([1, 2, 3], **settings).tokens == plain.generate([1, 2, 3], **settings).tokens


@pytest.mark.parametrize(("row", "accepted"), [([1 / 12] * 12, 1), ([0.08, 0.92] + [0.0] * 10, 0)])
def test_an_unsure_target_finds_less_probable_tokens_typical(row: list[float], accepted: int) -> None:
    p = torch.tensor([row, row], dtype=torch.float64)
    draft = Draft.chain([0], [as_distribution(torch.full((1, 12), 1 / 12))])
    assert typical(as_distribution(p), draft, RandomSource(0)).accepted == accepted
