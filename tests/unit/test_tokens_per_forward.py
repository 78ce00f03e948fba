"""Tokens per target forward have one definition: generated tokens / target forwards, with the one over the prompt."""

import pytest
from specpilot.compare.comparison import by_clock
from specpilot.compare.recorded import Counts, rates
from specpilot.compare.results import DecoderResult, TimedDecoding
from specpilot.infer.core import Generation, Round, Stats

# A prompt's forward and five rounds that accept 17 of 20 drafted tokens.
GENERATED, DRAFTED, ACCEPTED, FORWARDS = 23, 20, 17, 6
ROUNDS = [0, 0, 0, 0, 5, *[0] * 16]  # by number of drafted tokens
STATS = Stats(n_generated=GENERATED, n_drafted=DRAFTED, n_accepted=ACCEPTED, n_target_forwards=FORWARDS)


def test_a_generation() -> None:
    output = Generation([1, 2], stats=Stats(n_target_forwards=FORWARDS))
    output.record(Round([], [], [3]), lambda token: False)
    for accepted in (4, 4, 4, 3, 2):
        output.record(Round([7, 7, 7, 7], [*range(accepted)], [7] * (accepted + 1)), lambda token: False)
    assert (output.stats.n_generated, output.stats.n_accepted) == (GENERATED, ACCEPTED)
    assert output.stats.tokens_per_forward == GENERATED / FORWARDS


def test_a_replay() -> None:
    per_forward, accepted = rates([Counts(GENERATED, ACCEPTED, ROUNDS)])
    assert (per_forward, accepted) == pytest.approx((STATS.tokens_per_forward, STATS.acceptance_rate))


def test_a_timed_decoding() -> None:
    timed = [TimedDecoding(GENERATED, DRAFTED, ACCEPTED, FORWARDS, 1.0, 1.0)] * 2
    result = by_clock(DecoderResult(title="four"), timed, timed)
    assert result.tokens_per_forward == pytest.approx(STATS.tokens_per_forward)
    assert result.accepted == pytest.approx(STATS.acceptance_rate)
