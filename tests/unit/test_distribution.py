"""Distributions of several requests at once equal those of each request alone."""

from collections.abc import Sequence

import pytest
import torch
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.core import TokenDistribution
from specpilot.infer.distribution import RowwiseDistribution, distributions, draw_unread, on_host
from specpilot.infer.random_source import RandomSource, SharedNoise
from torch import Tensor

SIZE = 7
SAMPLINGS = [SamplingParams(1.0, 3), SamplingParams(0.7, None), SamplingParams(1.0, 3), SamplingParams(1.5, None, 0.6)]


def logits(count: int, width: int = SIZE) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(count))


def assert_equal(actual: TokenDistribution, expected: TokenDistribution) -> None:
    """Check that probabilities, tokens, numbers of tokens and types are equal."""
    assert actual.size == expected.size
    assert actual.probabilities.dtype == expected.probabilities.dtype
    assert torch.equal(actual.probabilities, expected.probabilities)
    assert (actual.tokens is None) == (expected.tokens is None)
    if actual.tokens is not None and expected.tokens is not None:
        assert actual.tokens.dtype == torch.long
        assert torch.equal(actual.tokens, expected.tokens)


@pytest.mark.parametrize("counts", [[1, 1, 1, 1], [2, 1, 3, 2], [0, 1, 2, 1]], ids=str)
@pytest.mark.parametrize("several", [False, True], ids=["equal settings", "several settings"])
@pytest.mark.parametrize("kept", [None, torch.tensor([5, 1, 3, 0])], ids=["all tokens", "some tokens"])
def test_distributions_are_those_of_each_request(counts: list[int], several: bool, kept: Tensor | None) -> None:
    """Logits may be padded, and only the first and the third request may have equal sampling parameters."""
    samplings = SAMPLINGS if several else SAMPLINGS[:1] * 4
    rows = logits(sum(counts), SIZE + 2)
    expected = [
        TokenDistribution.from_logits(sampling, piece, SIZE, kept)
        for sampling, piece in zip(samplings, torch.split(rows, counts), strict=True)
    ]
    actual = distributions(samplings, rows, counts, SIZE, kept)
    for first, second in zip(actual, expected, strict=True):
        assert_equal(first, second)
    single = distributions(samplings[:1], rows[: counts[0]], counts[:1], SIZE, kept)
    assert_equal(single[0], expected[0])


def test_requests_with_equal_settings_share_their_lists() -> None:
    """One read by the host is enough for all requests.

    A request with all rows is not a part of a larger distribution.
    """
    first, second = distributions(SAMPLINGS[:1] * 2, logits(3), [1, 2])
    assert first.parent is not None
    assert second.parent is not None
    assert first.parent[0] is second.parent[0]
    assert [first.parent[1:], second.parent[1:]] == [(0, 1), (1, 3)]
    (single, other) = distributions(SAMPLINGS[:2], logits(3), [1, 2])
    assert (single.parent, other.parent) == (None, None)


def parts() -> list[TokenDistribution]:
    """Return distributions of several widths and precisions, with listed tokens and with all tokens."""
    samplings = [SAMPLINGS[0], SAMPLINGS[1], SamplingParams(1.0, 2), SAMPLINGS[0], SAMPLINGS[1], SAMPLINGS[0]]
    rows = [logits(1 + i % 3, SIZE) for i in range(len(samplings))]
    return [TokenDistribution.from_logits(sampling, row) for sampling, row in zip(samplings, rows, strict=True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_distributions_in_the_hosts_memory_are_the_same(dtype: torch.dtype) -> None:
    """The test includes tokens above 2^24, which single precision cannot represent."""
    originals = [
        TokenDistribution(
            part.probabilities.to(dtype), None if part.tokens is None else part.tokens + 2**24, 2**24 + SIZE
        )
        for part in parts()
    ]
    moved = on_host(originals)
    assert len(moved) == len(originals)
    for copy, original in zip(moved, originals, strict=True):
        assert_equal(copy, original)
    first, fourth = moved[0].parent, moved[3].parent
    assert first is not None
    assert fourth is not None
    assert first[0] is fourth[0]  # of equal widths: one read


@pytest.mark.parametrize("shared", [[False] * 6, [True] * 6, [False, True, True, False, False, True]], ids=str)
def test_tokens_drawn_without_a_read_are_those_that_the_host_draws(shared: Sequence[bool]) -> None:
    """The distributions have several widths, and numbers of both types."""
    for seed in range(20):
        rows = [part.part(0, 1) for part in parts()]
        sources = [SharedNoise(seed + i) if flag else RandomSource(seed + i) for i, flag in enumerate(shared)]
        drawn = draw_unread(rows, [source.number(2) for source in sources])
        places = [i for group, *_ in drawn for i in group]
        assert sorted(places) == [*range(6)]
        for group, joined, tokens, chosen in drawn:
            assert len({(rows[i].probabilities.shape, rows[i].tokens is None, shared[i]) for i in group}) == 1
            assert joined.probabilities.shape == (len(group), rows[group[0]].probabilities.shape[1])
            assert tokens.shape == chosen.shape == (len(group),)
            for place, i in enumerate(group):
                source = SharedNoise(seed + i) if shared[i] else RandomSource(seed + i)
                assert int(tokens[place]) == source.token(rows[i], 0, 2)
                assert float(chosen[place]) == float(rows[i].row(0)[int(tokens[place])])
                assert torch.equal(joined.row(place), rows[i].row(0))
        assert len(drawn) == len({(*part.probabilities.shape, part.tokens is None, flag) for part, flag in
                                  zip(rows, shared, strict=True)})  # fmt: skip


@pytest.mark.parametrize("sampling", SAMPLINGS[:2] + SAMPLINGS[3:], ids=str)
def test_rows_of_trees_are_those_of_all_nodes_at_once(sampling: SamplingParams) -> None:
    """Rows equal those of all nodes at once, and each row is computed once."""
    rows = logits(4)
    whole, rowwise = TokenDistribution.from_logits(sampling, rows), RowwiseDistribution(sampling, rows)
    assert_equal(RowwiseDistribution(sampling, rows), whole)
    for row in range(4):
        expected_row = TokenDistribution.from_logits(sampling, rows[row : row + 1])
        assert_equal(rowwise.part(row, row + 1), expected_row)
        assert torch.equal(rowwise.row(row), whole.row(row))
        for actual, expected in zip(rowwise.support(row), expected_row.support(0), strict=True):
            assert torch.equal(actual, expected)
        for seed in range(10):
            assert rowwise.sample(row, RandomSource(seed)) == whole.sample(row, RandomSource(seed))
        assert rowwise.compute_row(row) is rowwise.compute_row(row)
    assert_equal(rowwise.part(1, 3), whole.part(1, 3))
    assert_equal(rowwise.part(0, 4), whole)


class SinglePrecision(Tensor):
    """A tensor of a device without float64, as Apple's GPUs are, in the host's memory."""

    device = torch.device("mps")

    def double(self, *arguments: object, **settings: object) -> Tensor:
        raise TypeError("the device has no float64")

    def cpu(self, *arguments: object, **settings: object) -> Tensor:
        return self.as_subclass(Tensor)


def test_distributions_of_a_device_without_double_precision() -> None:
    """Probabilities and tokens are read one after the other."""
    originals = [part for part in parts() if part.tokens is not None]
    on_device = [
        TokenDistribution(
            part.probabilities.as_subclass(SinglePrecision), part.tokens.as_subclass(SinglePrecision), part.size
        )
        for part in originals
        if part.tokens is not None
    ]
    for copy, original in zip(on_host(on_device), originals, strict=True):
        assert type(copy.probabilities) is type(copy.tokens) is Tensor
        assert_equal(copy, original)
