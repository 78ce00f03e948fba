"""Verification keeps the target's distribution, exactly: every outcome of the rules is enumerated."""

import itertools
import math
from collections.abc import Callable, Sequence
from zlib import crc32

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from specpilot.common.errors import InputError
from specpilot.infer.core import Draft, Drawn, TokenDistribution, Verdict, Verifier, residual
from specpilot.infer.random_source import RandomSource, SharedNoise, without
from specpilot.infer.verify import RULES as ALL_RULES
from specpilot.infer.verify import Selection, candidates, parse_verifier
from specpilot.infer.verify.invariant import invariant
from specpilot.infer.verify.k_seq import acceptance, division_factor, k_seq
from specpilot.infer.verify.on_device import RULES, Drafted, verify_drawn
from specpilot.infer.verify.otm import optimal_transport, orders_and_probability, otm
from specpilot.infer.verify.rule import Rule, Threshold
from specpilot.infer.verify.spec_infer import spec_infer
from specpilot.models import ancestors_of
from torch import Tensor

from experiments.spectr_bound import upper_bound

from ..helpers.enumeration import Script, as_distribution, distribution, output_distribution
from ..helpers.thoroughness import examples

Path = tuple[int, ...]
Table = dict[Path, Tensor]  # what comes after each path


def draw_tree(expansions: Path, q: Table, replacement: bool, rng: RandomSource, lists: bool = False) -> Draft:
    """Return a tree whose nodes are drawn from the table ``q``, the distributions after each path."""
    tokens: list[int] = []
    parents: list[int] = []
    rows: list[Tensor] = []
    level: list[tuple[int, Path]] = [(-1, ())]
    for factor in expansions:
        coming = []
        for node, path in level:
            remaining = q[path]
            for _ in range(factor):
                if not bool(remaining.any()):
                    break
                token = rng.sample(remaining)
                coming.append((len(tokens), (*path, token)))
                tokens.append(token)
                parents.append(node)
                rows.append(q[path])
                remaining = remaining if replacement else without(remaining, token)
        level = coming
    return Draft(tokens, [as_distribution(row[None], lists) for row in rows], parents, len(expansions))


def draw_dynamic_tree(q: Table, depth: int, shape: Callable[..., int], rng: RandomSource) -> Draft:
    """Return a tree in which ``shape``, a function of all tokens so far, decides on further children and candidates."""
    tokens: list[int] = []
    parents: list[int] = []
    rows: list[TokenDistribution] = []
    level: list[tuple[int, Path]] = [(-1, ())]
    for _ in range(depth):
        coming = []
        for node, path in level:
            remaining, drawn = q[path], set[int]()
            # Even the first token may not be drawn.
            while bool(remaining.any()) and shape(path, sorted(drawn), tokens) % 3:
                token = rng.sample(remaining)
                drawn.add(token)
                coming.append((len(tokens), (*path, token)))
                tokens.append(token)
                parents.append(node)
                rows.append(as_distribution(remaining[None]))
                remaining = without(remaining, token)
            for token in range(len(remaining)):
                if token not in drawn and shape(path, token, tokens) % 2:
                    coming.append((len(tokens), (*path, token)))
                    tokens.append(token)
                    parents.append(node)
                    rows.append(TokenDistribution(torch.ones(1, 1).double(), torch.tensor([[token]]), len(remaining)))
        level = [(node, path) for node, path in coming if shape(path, tokens) % 4]  # the others get no children
    return Draft(tokens, rows, parents, depth)


def assert_lossless(
    data: st.DataObject,
    depth: int,
    vocab: int,
    draw: Callable[[Table, RandomSource], Draft],
    verify: Verifier,
    *,
    lists: bool = False,
    tolerance: float = 1e-9,
) -> None:
    """The law of depth + 1 tokens is the target's: those of one round, then what later rounds would add, drawn from p.

    p and q depend on the path.
    """
    paths = [path for n in range(depth + 1) for path in itertools.product(range(vocab), repeat=n)]
    p, q = ({x: torch.tensor(data.draw(distribution(vocab)), dtype=torch.float64) for x in paths} for _ in range(2))

    def run(rng: RandomSource) -> Path:
        draft = draw(q, rng)
        above = [
            tuple(draft.tokens[n] for n in [*ancestors_of(draft.parents, node), node])
            for node in range(len(draft.tokens))
        ]
        verdict = verify(as_distribution(torch.stack([p[path] for path in [(), *above]]), lists), draft, rng)
        assert all(parent == draft.parents[node] for parent, node in itertools.pairwise([-1, *verdict.path]))
        tokens = [*(draft.tokens[node] for node in verdict.path), verdict.token]
        while len(tokens) < depth + 1:
            tokens.append(rng.sample(p[tuple(tokens)]))
        return tuple(tokens)

    actual = output_distribution(run)
    for tokens in itertools.product(range(vocab), repeat=depth + 1):
        expected = float(torch.stack([p[tokens[:i]][token] for i, token in enumerate(tokens)]).prod())
        assert actual.get(tokens, 0.0) == pytest.approx(expected, abs=tolerance)


def by_tensors(rule: Verifier) -> Verifier:
    """Return ``rule`` as on an accelerator, with random numbers that give each outcome of the rule on the host."""

    def verify(p: TokenDistribution, draft: Draft, rng: RandomSource) -> Verdict:
        assert isinstance(rng, Script)
        earlier = len(rng.uniforms)
        expected = rule(p, draft, rng)
        if not draft.tokens:
            return expected
        source = RandomSource(0)
        source.give_back(rng.uniforms[earlier:])
        tokens = torch.tensor(draft.tokens)
        q = torch.cat(
            [distribution.row(0)[[y]] for distribution, y in zip(draft.distributions, draft.tokens, strict=True)]
        )
        (verdict,) = verify_drawn([Drafted(p, draft, Drawn(tokens, q, []), rule, source, frozenset())])
        assert isinstance(verdict, tuple)
        return verdict[1]

    return verify


@pytest.mark.parametrize("rule", RULES)
def test_chains_are_verified_together_as_each_alone(rule: Verifier) -> None:
    """Chains of different lengths, with stop tokens and unread numbers, and one whose probabilities are not finite."""
    numbers = torch.Generator().manual_seed(5)

    def chain(index: int, unread: bool, stops: bool) -> Drafted:
        length = 1 + index % 3
        p, q = (torch.rand(n, 3, generator=numbers, dtype=torch.float64) + 0.02 for n in (length + 1, length))
        p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
        if index == 4:
            p = p * math.nan
        tokens = q.argmax(-1)
        draft = Draft.chain(tokens.tolist(), [as_distribution(row[None]) for row in q])
        drawn = Drawn(tokens, q.gather(-1, tokens[:, None]).squeeze(-1), [0.99] * length if unread else [])
        source = SharedNoise(index) if rule is invariant else RandomSource(index)
        return Drafted(as_distribution(p), draft, drawn, rule, source, frozenset({index % 5} if stops else ()))

    def results(chains: list[list[int]], *, unread: Sequence[int], stops: bool = True) -> list[object]:
        numbers.manual_seed(5)
        drawn_chains = [chain(index, index in unread, stops) for index in range(9)]
        verified = [result for each in chains for result in verify_drawn([drawn_chains[index] for index in each])]
        return [str(result) if isinstance(result, InputError) else (result[0].tokens, result[1]) for result in verified]

    single_indices = [[index] for index in range(9)]
    together = results([[*range(9)]], unread=(1, 2, 3))
    assert together == results(single_indices, unread=(1, 2, 3))
    assert ["finite" in str(result) for result in together] == [index == 4 for index in range(9)]
    assert len({str(result) for result in together}) > 3
    # The numbers that drew the tokens do not verify them.
    assert results(single_indices, unread=(), stops=False) == results(single_indices, unread=range(9), stops=False)


LOSSLESS = {name: rule.verifier() for name, rule in sorted(ALL_RULES.items()) if rule.lossless and not rule.takes_trees}


class Dense:
    """Draws distributions without zeros. Distributions that hypothesis draws often have a single token."""

    def __init__(self, seed: int, vocab: int) -> None:
        self.generator, self.vocab = torch.Generator().manual_seed(seed), vocab

    def draw(self, strategy: object) -> list[float]:
        weights = torch.rand(self.vocab, generator=self.generator, dtype=torch.float64) ** 2 + 0.02
        return (weights / weights.sum()).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("form", ["lists", "long lists", "tensors"])
@pytest.mark.parametrize("rule", LOSSLESS)
def test_chains_of_distributions_without_zeros(rule: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each of the three forms that distributions are computed in: short lists, long ones, and all tokens."""
    if form == "long lists":
        monkeypatch.setattr("specpilot.infer.core.FEW", 0)
    draws = Dense(7, vocab=3)
    lists = form != "tensors"
    draw = lambda q, rng: draw_tree((1, 1), q, True, rng, lists)  # noqa: E731
    assert_lossless(draws, 2, 3, draw, LOSSLESS[rule], lists=lists)  # type: ignore[arg-type]


SHAPES = [((), 5), ((1,), 5), ((1, 1), 3)]
FEW_SHAPES = [((1,), 3), ((1, 1), 2)]  # of chains by tensors


@pytest.mark.parametrize(
    ("rule", "shapes"),
    [*((rule, SHAPES) for rule in LOSSLESS.values()), *((by_tensors(rule), FEW_SHAPES) for rule in RULES)],
    ids=[*LOSSLESS, *(f"{rule.__name__} by tensors" for rule in RULES)],
)
@examples(30, 100)
@given(data=st.data(), lists=st.booleans())
def test_chains(rule: Verifier, shapes: list[tuple[Path, int]], data: st.DataObject, lists: bool) -> None:
    chain, vocab = data.draw(st.sampled_from(shapes))
    assert_lossless(data, len(chain), vocab, lambda q, rng: draw_tree(chain, q, True, rng, lists), rule, lists=lists)


@pytest.mark.parametrize(("tree", "vocab"), [((3,), 4), ((2, 1), 3), ((1, 2), 3), ((2, 2), 2)])
@pytest.mark.parametrize("name", [name for name, rule in ALL_RULES.items() if rule.takes_trees])
@examples(6, 20)
@given(data=st.data())
def test_trees(name: str, tree: Path, vocab: int, data: st.DataObject) -> None:
    _, verify = parse_verifier(name)
    assert_lossless(data, len(tree), vocab, lambda q, rng: draw_tree(tree, q, name != "mcss", rng), verify)


@pytest.mark.parametrize(("depth", "vocab"), [(1, 4), (2, 2)])
@examples(12, 40)
@given(data=st.data(), salt=st.integers(0, 1000))
def test_trees_of_any_shape_and_any_candidates(depth: int, vocab: int, data: st.DataObject, salt: int) -> None:
    """The shape is a hash of everything that it may depend on: the path, earlier siblings and other branches."""

    def shape(*state: object) -> int:
        return crc32(repr((salt, state)).encode())

    assert_lossless(
        data, depth, vocab, lambda q, rng: draw_dynamic_tree(q, depth, shape, rng), candidates, tolerance=1e-7
    )


@examples(40, 100)
@given(data=st.data(), vocab=st.integers(3, 5), k=st.integers(1, 3))
def test_block_verification_keeps_at_least_as_many(data: st.DataObject, vocab: int, k: int) -> None:
    """Expected tokens a round: block ≥ token-wise, which they equal for one token (Sun et al. 2024, Theorem 2)."""
    vocab = 3 if k == 3 else vocab
    rows = [torch.tensor(data.draw(distribution(vocab)), dtype=torch.float64) for _ in range(2 * k + 1)]
    p, proposals = as_distribution(torch.stack(rows[: k + 1])), [as_distribution(row[None]) for row in rows[k + 1 :]]
    expected_accepted = {}
    for name in ("token-wise", "block"):

        def run(rng: RandomSource, name: str = name) -> int:
            draft = Draft.chain([q.sample(0, rng) for q in proposals], proposals)
            return ALL_RULES[name].verifier()(p, draft, rng).accepted

        expected_accepted[name] = sum(
            probability * accepted for accepted, probability in output_distribution(run).items()
        )
    assert expected_accepted["block"] >= expected_accepted["token-wise"] - 1e-9
    assert k > 1 or expected_accepted["block"] == pytest.approx(expected_accepted["token-wise"], abs=1e-9)


# Lossy rules, which trade the target's distribution for speed, against their formulas


@examples(40, 100)
@given(
    data=st.data(),
    vocab=st.integers(2, 5),
    count=st.integers(0, 3),
    epsilon=st.sampled_from([0.02, 0.1, 0.4]),
    rollback=st.floats(0, 5),
)
def test_longest_prefix_that_passes_then_one_token_of_the_targets(
    data: st.DataObject, vocab: int, count: int, epsilon: float, rollback: float
) -> None:
    rows = [data.draw(distribution(vocab)) for _ in range(count + 1)]
    tokens = data.draw(st.lists(st.integers(0, vocab - 1), min_size=count, max_size=count))
    p = torch.tensor(rows, dtype=torch.float64)
    draft = Draft.chain(tokens, [as_distribution(torch.full((1, vocab), 1 / vocab))] * count)

    def is_typical(row: list[float], token: int, epsilon: float = 0.09) -> bool:
        entropy = -sum(x * math.log(x) for x in row if x > 0)
        return row[token] > min(epsilon, math.sqrt(epsilon) * math.exp(-entropy))

    def is_likely(row: list[float], token: int) -> bool:
        return row[token] > 0 and -math.log(row[token]) <= rollback

    for spec, passes in (
        ("typical", is_typical),
        (f"typical:{epsilon}", lambda row, token: is_typical(row, token, epsilon)),
        (f"bild:{rollback}", is_likely),
    ):
        expected = 0
        while expected < count and passes(rows[expected], tokens[expected]):
            expected += 1

        _, parsed = parse_verifier(spec)

        def run(rng: RandomSource, rule: Verifier = parsed) -> tuple[int, int]:
            verdict = rule(as_distribution(p), draft, rng)
            return verdict.accepted, verdict.token

        actual = output_distribution(run)
        assert {accepted for accepted, _ in actual} == {expected}
        for token in range(vocab):
            assert actual.get((expected, token), 0.0) == pytest.approx(rows[expected][token], abs=1e-9)


def test_the_threshold_of_a_rule_with_select_reaches_its_function() -> None:
    """A user's rule with ``select`` may have a threshold, as rules of chains may."""

    def select(p: Tensor, proposals: list[int], q: Tensor, rng: RandomSource, least: float = 0.5) -> int:
        return proposals[0] if float(p[proposals[0]]) >= least else int(p.argmax())

    threshold = Threshold(lambda number: {"least": number}, lambda number: 0 <= number <= 1, "0 to 1")
    rule = Rule("at-least", select=select, lossless=False, threshold=threshold)
    p = as_distribution(torch.tensor([[0.6, 0.4], [0.5, 0.5]], dtype=torch.float64))
    draft = Draft.chain([1], [as_distribution(torch.full((1, 2), 0.5))])
    accepted = [verify(p, draft, Script([0])).accepted for verify in (rule.verifier(), rule.verifier(0.3))]
    assert accepted == [0, 1]
    with pytest.raises(InputError, match="verifier='at-least:2': 0 to 1"):
        rule.verifier(2)


# One token from several proposals: optimality, bounds and closed forms


SOLVER = 1e-7  # the linear program's tolerance: what "optimal" means here


def simplex(size: int) -> st.SearchStrategy[Tensor]:
    return distribution(size).map(lambda row: torch.tensor(row, dtype=torch.float64))


pairs = st.integers(3, 5).flatmap(lambda size: st.tuples(simplex(size), simplex(size)))


def outcomes(rule: Selection, p: Tensor, q: Tensor, k: int) -> dict[tuple[int, bool], float]:
    """Return the distribution of (output, whether the output is one of the k proposals)."""

    def run(rng: RandomSource) -> tuple[int, bool]:
        proposals = [rng.sample(q) for _ in range(k)]
        token = rule(p, proposals, q.expand(k, -1), rng)
        return token, token in proposals

    return output_distribution(run)


@pytest.mark.parametrize("rule", [k_seq, otm, spec_infer])
@examples(12, 40)
@given(pair=pairs, k=st.integers(1, 3))
def test_as_many_proposals_are_kept_as_is_promised(rule: Selection, pair: tuple[Tensor, Tensor], k: int) -> None:
    p, q = pair
    shares = [sum(x for (_, proposed), x in outcomes(rule, p, q, n).items() if proposed) for n in (k, k + 1)]
    best = optimal_transport(p, q, k).acceptance
    assert best <= upper_bound(p, q, k) + SOLVER
    assert upper_bound(p, q, 1) == pytest.approx(float(torch.minimum(p, q).sum()))
    assert shares[0] <= shares[1] + SOLVER
    assert shares[0] <= best + SOLVER
    if rule is otm:
        assert shares[0] == pytest.approx(best, abs=SOLVER)
    if rule is k_seq:
        promised = acceptance(p, q, k, division_factor(p, q, k))[1]
        assert promised - 1e-9 <= shares[0]
        assert promised >= (1 - 1 / math.e) * best - SOLVER
    if rule is spec_infer:  # the proposals in turn, each as if alone after those before it
        rejected, remaining = 1.0, p
        for _ in range(k):
            rejected *= 1 - float(torch.minimum(remaining, q).sum())
            remaining = residual(remaining, q)
        assert shares[0] >= 1 - rejected - SOLVER
    if k == 1:
        assert shares[0] == pytest.approx(float(torch.minimum(p, q).sum()), abs=SOLVER)


def test_of_several_optimal_plans_one_is_taken() -> None:
    """Rounding p and q changes the plan only by rounding, because it does not choose between optimal plans."""
    p, q = torch.tensor([[4, 1, 1, 1, 2, 1], [2, 4, 2, 4, 1, 4]], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)

    def flows() -> dict[tuple[tuple[int, ...], int], float]:
        shifted_p, shifted_q = (
            row * (1 + 1e-7 * torch.rand(6, generator=generator, dtype=torch.float64)) for row in (p, q)
        )
        shifted_p, shifted_q = shifted_p / shifted_p.sum(), shifted_q / shifted_q.sum()
        return {
            (multiset, token): share * math.prod(orders_and_probability(multiset, shifted_q))
            for multiset, shares in optimal_transport(shifted_p, shifted_q, 3).plan.items()
            for token, share in shares.items()
        }

    first = flows()
    for _ in range(12):
        assert flows() == pytest.approx(first, abs=1e-5)


def test_supports_too_large_are_refused() -> None:
    q = torch.full((100,), 0.01)
    with pytest.raises(InputError, match="OTM with k=4 over 100 tokens: too many unknowns"):
        optimal_transport(q, q, 4)
    with pytest.raises(InputError, match="take at most 12"):
        upper_bound(q, q, 2)
    first, second = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    assert optimal_transport(first, second, 2).acceptance == 0
