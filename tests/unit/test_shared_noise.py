"""Noise that target and draft share: a pure function of its arguments, with the law that the rule needs."""

import hashlib
import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from specpilot.common.errors import InputError
from specpilot.controllers.sampling import SamplingParams, draw_by
from specpilot.controllers.shared_noise import (
    _STEP,
    _mixed,
    _negative_exponentials,
    _words,
    choose,
    exponentials,
    position_key,
    scores,
    seed_key,
)
from specpilot.data_gen.rollout import expected_acceptance
from specpilot.infer.core import Draft, TokenDistribution
from specpilot.infer.random_source import RandomSource, SharedNoise
from specpilot.infer.verify import invariant
from specpilot.models import ancestors_of
from torch import Tensor

from ..helpers.enumeration import as_distribution, distribution

WORD = (1 << 64) - 1


def mixed(z: int) -> int:
    """SplitMix64's mixing function, by its definition with unsigned numbers."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & WORD
    return z ^ (z >> 31)


def noise(seed: int, position: int, token: int) -> float:
    """Return -log(1 - u) by exact integers."""
    digest = hashlib.sha256(f"shared noise\0{seed}".encode()).digest()[:8]
    key = mixed(int.from_bytes(digest, "little") + position * 0x5851F42D4C957F2D & WORD)
    number = mixed(key + token * 0x9E3779B97F4A7C15 & WORD) >> 11
    return -math.log1p(-(number + 0.5) / 2**53)


@given(
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**40),
    tokens=st.lists(st.integers(0, 2**31), min_size=2, max_size=5),
)
def test_the_noise_is_a_function_of_seed_position_and_token(seed: int, position: int, tokens: list[int]) -> None:
    """NumPy, as on a CPU, and torch, as on other devices, give the same noise."""
    expected = pytest.approx([noise(seed, position, token) for token in tokens], rel=1e-12)
    keys = keys_of(seed, [position])
    assert exponentials(keys.unsqueeze(-1), torch.tensor([tokens]))[0].tolist() == expected
    by_numpy = _negative_exponentials(_mixed(np.array(tokens).view(np.uint64) * _STEP + _words(keys.tolist())))
    assert (-by_numpy).tolist() == expected


def keys_of(seed: int, positions: Sequence[int]) -> Tensor:
    return torch.tensor([position_key(seed_key(seed), position) for position in positions])


def numbers(seeds: Sequence[int], positions: Sequence[int], tokens: int) -> np.ndarray:
    """Return u in (0, 1), (S, P, V), of each seed, position and token."""
    rows = [exponentials(keys_of(seed, positions).unsqueeze(-1), torch.arange(tokens)) for seed in seeds]
    return np.exp(-torch.stack(rows).numpy())


def test_the_noise_is_uniform() -> None:
    u = numbers(range(20), range(50), 200)
    for values in (u.ravel(), u[0].ravel(), u[:, 7].ravel(), u[..., 11].ravel()):
        assert stats.kstest(values, "uniform").pvalue > 1e-4
        low = (values * 2**32 % 1 * 256).astype(int)  # the lowest bits that a float32 would not hold
        assert stats.chisquare(np.bincount(low, minlength=256)).pvalue > 1e-4


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["seeds", "positions", "tokens"])
def test_neighbouring_noise_is_independent(axis: int) -> None:
    """Values and low bits of neighbours at distances 1 to 4 have no correlation and the right joint counts."""
    u = numbers(range(24), range(64), 128)
    for apart in (1, 2, 3, 4):
        values_before = np.take(u, range(u.shape[axis] - apart), axis).ravel()
        values_after = np.take(u, range(apart, u.shape[axis]), axis).ravel()
        for values in ((values_before, values_after), (values_before * 2**20 % 1, values_after * 2**20 % 1)):
            assert abs(np.corrcoef(*values)[0, 1]) * math.sqrt(len(values_before)) < 4
            cells = np.histogram2d(*values, bins=16, range=[[0, 1], [0, 1]])[0]
            assert stats.chisquare(cells.ravel()).pvalue > 1e-4


def test_tokens_and_positions_are_not_interchangeable() -> None:
    """The noise of a position is not that of another position with shifted tokens."""
    u = numbers([0], range(40), 400)[0]
    values, counts = np.unique(u, return_counts=True)
    assert counts.max() == 1
    assert len(values) == u.size


P = [0.45, 0.3, 0.2, 0.05, 0.0]
Q = [0.1, 0.5, 0.0, 0.3, 0.1]


def drawn(rows: Sequence[float], seed: int, count: int) -> Tensor:
    """Return tokens (count,) of one distribution at ``count`` positions."""
    p = torch.tensor([rows]).double().expand(count, -1)
    return torch.tensor(choose(p, torch.arange(5).expand(count, -1), keys_of(seed, range(count)).tolist())[0])


def test_tokens_have_the_laws_of_their_distributions() -> None:
    for rows in (P, Q):
        counts = torch.bincount(drawn(rows, 3, 40_000), minlength=5).numpy()
        expected = np.array(rows) * 40_000
        assert counts[expected == 0].sum() == 0
        assert stats.chisquare(counts[expected > 0], expected[expected > 0]).pvalue > 1e-4


def test_the_closed_form_of_acceptance() -> None:
    """P(y = x = i) = 1 / Σ_j max(p_j/p_i, q_j/q_i)."""
    y, x = drawn(P, 11, 60_000), drawn(Q, 11, 60_000)
    for i in range(5):
        both = int(((x == i) & (y == i)).sum())
        expected = 0.0
        if P[i] and Q[i]:
            expected = 1 / sum(max(p / P[i], q / Q[i]) for p, q in zip(P, Q, strict=True))
        assert stats.binomtest(both, 60_000, expected).pvalue > 1e-4 if expected else both == 0


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_the_closed_form_with_a_power_of_the_draft(exponent: float) -> None:
    """A draft that takes the largest λ·log q + g samples from q^λ, and agrees as often as the closed form says."""
    count = 40_000
    noise_of = exponentials(keys_of(5, range(count)).unsqueeze(-1), torch.arange(5).expand(count, -1))
    y = (torch.tensor(P).log() - noise_of.log()).argmax(-1)
    x = (exponent * torch.tensor(Q).log() - noise_of.log()).argmax(-1)
    p, logits = (TokenDistribution(torch.tensor([row]).double(), None, 5) for row in (P, Q))
    q = TokenDistribution.from_logits(SamplingParams(1.0, None).to_power(exponent), logits.probabilities.log())
    powers = torch.tensor(Q).double() ** exponent
    torch.testing.assert_close(q.probabilities[0], powers / powers.sum())
    expected = sum(
        1 / sum(max(P[j] / P[i], float(q.probabilities[0, j] / q.probabilities[0, i])) for j in range(5))
        for i in range(5)
        if P[i] and Q[i]
    )
    assert float(expected_acceptance(p, q, "invariant")) == pytest.approx(expected, rel=1e-6)
    assert stats.binomtest(int((x == y).sum()), count, expected).pvalue > 1e-4


@settings(max_examples=50)
@given(data=st.data(), size=st.integers(2, 6), seed=st.integers(0, 1000), position=st.integers(0, 1000))
def test_draws_are_in_the_order_of_the_noise(data: st.DataObject, size: int, seed: int, position: int) -> None:
    """The first draw is the sampled token. The order and the form of a distribution do not matter."""
    row = data.draw(distribution(size))
    scores = {i: noise(seed, position, i) / p for i, p in enumerate(row) if p > 0}
    expected = sorted(scores, key=scores.__getitem__)
    order = torch.tensor(data.draw(st.permutations(range(size))))
    source = SharedNoise(seed).at(position - 1)
    for p in (
        TokenDistribution(torch.tensor([row]).double(), None, size),
        TokenDistribution(torch.tensor([row]).double()[:, order], order[None], size),
    ):
        assert [p.token(0, place) for place in source.draws(p, 0, 1)] == expected
        assert source.token(p, 0, 1) == expected[0]
        assert source.chain(p, 1) == expected[:1]
        keys = torch.tensor([source.number(1)])
        assert p.token(0, int(draw_by(p.probabilities, p.tokens, keys))) == expected[0]


KEYS = [905272950052678742, -7676074247915198586]  # of seed 0, and of its position 17
EXPONENTIALS = [1.307046405713056, 0.2815611199816002, 0.6717096083507853]  # of three tokens
CHOSEN = {  # by the number of tokens: those of four positions
    50: [41, 24, 40, 24],
    5_000: [90, 4527, 629, 81],
    50_000: [11113, 24121, 14882, 8143],
}


def test_texts_of_seeds_stay_the_same() -> None:
    """Noise and tokens are those of the rule's first version, so that a seed gives one text in all versions."""
    assert [seed_key(0), position_key(seed_key(0), 17)] == KEYS
    assert exponentials(keys_of(7, [3]).unsqueeze(-1), torch.tensor([[0, 1, 49_151]]))[0].tolist() == pytest.approx(
        EXPONENTIALS, rel=1e-15
    )
    for size, chosen in CHOSEN.items():
        weights = torch.arange(size).remainder(97).add(1).double()
        p, keys = (weights / weights.sum()).expand(4, -1), keys_of(11, range(4)).tolist()
        assert choose(p, None, keys)[0] == chosen


@pytest.mark.parametrize("size", [50, 4096, 4097, 16_385, 50_000])
@pytest.mark.parametrize("spread", [0.0, 3.0, 30.0], ids=["flat", "usual", "peaked"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_search_with_a_bound_finds_the_largest(size: int, spread: float, dtype: torch.dtype) -> None:
    """Long distributions are searched in chunks, and most of their tokens are excluded without a logarithm."""
    generator = torch.Generator().manual_seed(size)
    order = torch.randperm(size, generator=generator).expand(3, -1)
    logits = torch.randn(3, size, generator=generator) * spread
    logits[:, ::7] = -math.inf  # probability 0
    p, keys = logits.to(dtype).softmax(-1), keys_of(size, range(3))
    for tokens in (None, order):
        largest, places = scores(p, tokens, keys).max(-1)
        chosen, mass = choose(p, tokens, keys.tolist())
        assert chosen == [place if tokens is None else int(order[0, place]) for place in places.tolist()]
        assert mass == pytest.approx(float(largest.sum()))
    p[1, size // 2] = math.nan
    assert math.isnan(choose(p, None, keys.tolist())[1])


def test_small_probabilities_are_drawn_as_often_as_they_say() -> None:
    """Single precision would have no noise large enough for a token of probability 1e-9."""
    rows = torch.tensor([[1.0 - 1e-9, 1e-9]]).double()
    best = min(noise(0, position, 1) for position in range(2000))
    assert best < 1e-3  # of 2,000 exponential variables the smallest is about 1/2,000
    key = position_key(seed_key(0), 5)
    assert choose(rows, torch.arange(2)[None], [key])[0] == [0]


def test_nan_is_refused() -> None:
    p = TokenDistribution(torch.tensor([[math.nan, 0.5]]), None, 2)
    with pytest.raises(InputError, match="NaN"):
        SharedNoise(0).token(p, 0, 0)
    with pytest.raises(InputError, match="NaN"):
        next(SharedNoise(0).draws(p, 0, 0))


# Verification


Table = dict[tuple[int, ...], Tensor]


def draw_tree(shape: Sequence[int], q: Table, source: RandomSource) -> Draft:
    tokens: list[int] = []
    parents: list[int] = []
    rows: list[TokenDistribution] = []
    level: list[tuple[int, tuple[int, ...]]] = [(-1, ())]
    for depth, children in enumerate(shape):
        coming = []
        for node, path in level:
            row = as_distribution(q[path][None])
            for token in itertools.islice(source.draws(row, 0, depth), children):
                coming.append((len(tokens), (*path, token)))
                tokens.append(token)
                parents.append(node)
                rows.append(row)
        level = coming
    return Draft(tokens, rows, parents, len(shape))


@settings(max_examples=150)
@given(
    data=st.data(),
    shape=st.sampled_from([(), (1,), (1, 1), (2,), (2, 1), (1, 2), (3, 2)]),
    seed=st.integers(0, 10**6),
    start=st.integers(0, 500),
    lists=st.booleans(),
)
def test_the_text_is_the_targets_whatever_is_drafted(
    data: st.DataObject, shape: tuple[int, ...], seed: int, start: int, lists: bool
) -> None:
    """A round emits the first tokens of the text that the target has without drafts, and as many as were drafted."""
    vocab = 3
    paths = [path for n in range(len(shape) + 1) for path in itertools.product(range(vocab), repeat=n)]
    p, q = ({x: torch.tensor(data.draw(distribution(vocab))).double() for x in paths} for _ in range(2))
    source = SharedNoise(seed).at(start)
    text: list[int] = []
    while len(text) <= len(shape):
        text.append(source.token(as_distribution(p[tuple(text)][None]), 0, len(text)))
    draft = draw_tree(shape, q, source)
    branches = [[*ancestors_of(draft.parents, node), node] for node in range(len(draft.tokens))]
    drafted = [tuple(draft.tokens[node] for node in branch) for branch in branches]
    rows = as_distribution(torch.stack([p[path] for path in [(), *drafted]]), lists)
    verdict = invariant(rows, draft, source)
    accepted = [draft.tokens[node] for node in verdict.path]
    assert [*accepted, verdict.token] == text[: len(accepted) + 1]
    assert len(accepted) == max((n for n in range(len(shape) + 1) if n == 0 or tuple(text[:n]) in drafted), default=0)
