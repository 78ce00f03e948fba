"""The output has the target's distribution, exactly: every outcome of the decoder's own loop is enumerated."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.controllers.acceptance.acceptance_head import AcceptanceHead
from specpilot.controllers.length import (
    AcceptanceLength,
    CumulativeConfidence,
    Fixed,
    HeadPredictor,
    LengthController,
    RateOptimal,
)
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.distribution import TokenDistribution
from specpilot.infer.draft import Draft
from specpilot.infer.models import CausalLM, RaggedKVCache, Read, TextReader, ancestors_of
from specpilot.infer.models.longrope import TokenKVCache
from specpilot.infer.random_source import RandomSource
from specpilot.infer.verify import LOSSY, SELECTIONS, VERIFIERS, verify_tree
from specpilot.infer.verify.mcss import without
from torch import Tensor
from transformers import PreTrainedModel

from .enumeration import output_distribution, rounds
from .tiny import make

PROMPT = [1, 0, 2]
DEPTH = 3


class Remembering(CausalLM):
    """A model that computes the logits after each prefix once: enumeration meets the same ones all the time."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self.known: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def new_cache(self) -> TokenKVCache:
        return TokenKVCache(0)

    def forward(self, cache: RaggedKVCache, reads: Sequence[Read]) -> tuple[Tensor, Tensor]:
        assert isinstance(cache, TokenKVCache)
        results = []
        for read in reads:
            past = cache.length(read.text)
            cache.start_forward([read.text], [len(read.tokens)])
            cache.note(read.text, read.tokens, long=False)
            cache.end_forward()
            tokens, tree = cache.tokens[read.text], read.tree
            nodes = len(tokens) if tree is None else len(tokens) - len(tree.above)
            rows = []
            for column in range(past, len(tokens)):
                seen = [*range(column + 1)]
                if tree is not None and column >= nodes:
                    seen = [*range(tree.trunk), *tree.above[column - nodes], column]
                rows.append(self.after(tuple(tokens[c] for c in seen)))
            results += rows[-read.keep :]
        return torch.stack([logits for logits, _ in results]), torch.stack([hidden for _, hidden in results])

    def after(self, prefix: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        if prefix not in self.known:
            cache = super().new_cache()
            cache.add(0, len(prefix))
            logits, hidden = super().forward(cache, [Read(0, prefix)])
            self.known[prefix] = logits[0], hidden[0]
        return self.known[prefix]


def target_distribution(target: CausalLM, sampling: SamplingParams) -> dict[tuple[int, ...], float]:
    """Π p(x_i | prompt, x_<i) for all sequences of DEPTH tokens."""
    result = {}
    for tokens in itertools.product(range(target.vocab_size), repeat=DEPTH):
        probability = 1.0
        for i in range(DEPTH):
            reader, prompt = TextReader.begin(target, PROMPT)
            logits, _ = reader.read([*prompt, *tokens[:i]], keep=1)
            probability *= float(sampling(logits[-1])[tokens[i]])
        if probability > 0:
            result[tokens] = probability
    return result


def decoder_distribution(
    decoder: SpeculativeDecoder, sampling: SamplingParams, budget: int
) -> dict[tuple[int, ...], float]:
    """The distribution of the first DEPTH tokens of the decoder's own loop."""

    def run(rng: RandomSource) -> tuple[int, ...]:
        generation, loop = rounds(decoder, PROMPT, sampling, budget, rng)
        for _ in loop:
            if len(generation.tokens) >= DEPTH:
                break
        return tuple(generation.tokens[:DEPTH])

    return output_distribution(run)


def pair(vocab: int, draft_vocab: int, seed: int, remember: bool) -> SpeculativeDecoder:
    sizes = {"layers": 1, "hidden": 8, "context": 32}
    target = make(seed=seed, vocab=vocab, sharpness=6.0, **sizes).double()
    draft = make(seed=seed + 1000, vocab=draft_vocab, sharpness=6.0, **sizes).double()
    if remember:
        return SpeculativeDecoder(Remembering(target), Remembering(draft))
    return SpeculativeDecoder(target, draft)


def lengths(name: str, seed: int) -> LengthController:
    if name == "fixed-2":
        return Fixed(2)
    if name == "fixed-3":
        return Fixed(3)
    if name == "confidence":
        return CumulativeConfidence(0.35)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = AcceptanceHead(8, depth=1).double()
    with torch.no_grad():
        head.out.weight *= 4  # sharp enough to stop at some prefixes and go on at others
    if name == "rate-optimal":  # dear enough that some rounds draft nothing
        return RateOptimal(HeadPredictor(head, mean=0.7), CostModel(0.5, 1.0, 0.05))
    return AcceptanceLength(HeadPredictor(head), 0.55)


def assert_same(found: dict[tuple[int, ...], float], expected: dict[tuple[int, ...], float]) -> None:
    assert sum(found.values()) == pytest.approx(1, abs=1e-9)
    for tokens in found.keys() | expected.keys():
        assert found.get(tokens, 0.0) == pytest.approx(expected.get(tokens, 0.0), abs=1e-9), tokens


SAMPLINGS = [
    SamplingParams(1.0, None),
    SamplingParams(0.7, 2),
    SamplingParams(1.5, None, 0.8),
    SamplingParams(0.0, None),
]


@pytest.mark.parametrize("length", ["fixed-2", "confidence", "head", "rate-optimal"])
@settings(max_examples=12)
@given(seed=st.integers(0, 500), vocab=st.integers(3, 4), sampling=st.sampled_from(SAMPLINGS))
def test_distribution_of_three_tokens(length: str, seed: int, vocab: int, sampling: SamplingParams) -> None:
    decoder = pair(vocab, vocab, seed, remember=True)
    decoder.config = replace(decoder.config, length=lengths(length, seed))
    assert_same(decoder_distribution(decoder, sampling, budget=4), target_distribution(decoder.target, sampling))


def test_distribution_with_long_drafts_and_vocabulary_of_five() -> None:
    decoder = pair(5, 5, seed=3, remember=True)
    decoder.config = replace(decoder.config, length=lengths("fixed-3", 3))
    sampling = SamplingParams(1.0, 3)
    assert_same(decoder_distribution(decoder, sampling, budget=5), target_distribution(decoder.target, sampling))


@pytest.mark.parametrize("draft_vocab", [3, 6])
def test_distribution_when_the_draft_pads_its_vocabulary_otherwise(draft_vocab: int) -> None:
    decoder = pair(4, draft_vocab, seed=5, remember=True)
    decoder.config = replace(decoder.config, length=Fixed(2))
    sampling = SamplingParams(1.0, None)
    assert_same(decoder_distribution(decoder, sampling, budget=4), target_distribution(decoder.target, sampling))


@pytest.mark.parametrize("length", ["fixed-2", "head"])
def test_distribution_through_the_real_kv_cache(length: str) -> None:
    decoder = pair(3, 3, seed=7, remember=False)
    decoder.config = replace(decoder.config, length=lengths(length, 7))
    sampling = SamplingParams(1.0, 2)
    assert_same(decoder_distribution(decoder, sampling, budget=4), target_distribution(decoder.target, sampling))


def distribution(size: int) -> st.SearchStrategy[list[float]]:
    """Random points of the simplex, zeros and one-hot vectors among them."""
    weights = st.lists(st.one_of(st.just(0.0), st.floats(0.01, 1.0)), min_size=size, max_size=size)
    return weights.filter(any).map(lambda w: [x / sum(w) for x in w])


def as_distribution(rows: Tensor, lists: bool = False) -> TokenDistribution:
    """``rows`` (N, V) kept as lists, without the zeros wherever another row has one there too, or as they are."""
    if not lists:
        return TokenDistribution(rows, None, rows.shape[1])
    tokens = rows.any(0).nonzero().squeeze(1).flip(0)
    return TokenDistribution(rows[:, tokens], tokens.expand(len(rows), -1), rows.shape[1])


@pytest.mark.parametrize("name", sorted(VERIFIERS.keys() - LOSSY))
@settings(max_examples=200)
@given(data=st.data(), vocab=st.integers(3, 5), k=st.integers(0, 2), lists=st.booleans())
def test_verifier_emits_the_target_distribution(
    name: str, data: st.DataObject, vocab: int, k: int, lists: bool
) -> None:
    """One step of context: row i of p and q holds whatever came before, so tokens are independent under the target."""
    rows = [torch.tensor(data.draw(distribution(vocab)), dtype=torch.float64) for _ in range(2 * k + 1)]
    p, q = torch.stack(rows[: k + 1]), rows[k + 1 :]

    def run(rng: RandomSource) -> tuple[int, ...]:
        proposals = [as_distribution(row[None], lists) for row in q]
        draft = Draft.chain([x.sample(0, rng) for x in proposals], proposals)
        verdict = VERIFIERS[name](as_distribution(p, lists), draft, rng)
        tokens = [*draft.tokens[: verdict.accepted], verdict.token]
        while len(tokens) < k + 1:  # what later rounds would add
            tokens.append(rng.sample(p[len(tokens)]))
        return tuple(tokens)

    found = output_distribution(run)
    for tokens in itertools.product(range(vocab), repeat=k + 1):
        expected = float(torch.stack([p[i, token] for i, token in enumerate(tokens)]).prod())
        assert found.get(tokens, 0.0) == pytest.approx(expected, abs=1e-9)


def draw_tree(
    expansions: tuple[int, ...], q: dict[tuple[int, ...], Tensor], replacement: bool, rng: RandomSource
) -> Draft:
    """A tree whose nodes are drawn from the table ``q``: what comes after each path."""
    tokens: list[int] = []
    parents: list[int] = []
    rows: list[Tensor] = []
    level = [(-1, ())]
    for factor in expansions:
        coming = []
        for node, path in level:
            left = q[path]
            for _ in range(factor):
                if not bool(left.any()):
                    break
                token = rng.sample(left)
                coming.append((len(tokens), (*path, token)))
                tokens.append(token)
                parents.append(node)
                rows.append(q[path])
                left = left if replacement else without(left, token)
        level = coming
    return Draft(tokens, [as_distribution(torch.stack(rows))], parents, len(expansions))


@pytest.mark.parametrize(("expansions", "vocab"), [((3,), 4), ((2, 1), 3), ((1, 2), 3), ((2, 2), 2)])
@pytest.mark.parametrize("name", list(SELECTIONS))
@settings(max_examples=12)
@given(data=st.data())
def test_tree_verification_emits_the_target_distribution(
    name: str, expansions: tuple[int, ...], vocab: int, data: st.DataObject
) -> None:
    """Distributions that depend on the path; what a round does not emit later rounds would, drawn from p."""
    depth = len(expansions)
    paths = [path for n in range(depth + 1) for path in itertools.product(range(vocab), repeat=n)]
    p, q = (
        {path: torch.tensor(data.draw(distribution(vocab)), dtype=torch.float64) for path in paths} for _ in range(2)
    )

    def run(rng: RandomSource) -> tuple[int, ...]:
        draft = draw_tree(expansions, q, name != "mcss", rng)
        above = [()] + [
            tuple(draft.tokens[n] for n in [*ancestors_of(draft.parents, node), node])
            for node in range(len(draft.tokens))
        ]
        verdict = verify_tree(as_distribution(torch.stack([p[path] for path in above])), draft, rng, SELECTIONS[name])
        assert all(parent == draft.parents[node] for parent, node in itertools.pairwise([-1, *verdict.path]))
        tokens = [*(draft.tokens[node] for node in verdict.path), verdict.token]
        while len(tokens) < depth + 1:
            tokens.append(rng.sample(p[tuple(tokens)]))
        return tuple(tokens)

    found = output_distribution(run)
    for tokens in itertools.product(range(vocab), repeat=depth + 1):
        expected = float(torch.stack([p[tokens[:i]][token] for i, token in enumerate(tokens)]).prod())
        assert found.get(tokens, 0.0) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", list(SELECTIONS))
@pytest.mark.parametrize(
    ("tree", "sampling"),
    [((2, 1), SamplingParams(0.7, 2)), ((2, 2), SamplingParams(0.0)), (None, SamplingParams(1.0, 2))],
)
def test_distribution_of_tree_drafts(name: str, tree: tuple[int, ...] | None, sampling: SamplingParams) -> None:
    """The decoder's own loop, through caches in which a tree's path has closed up."""
    decoder = pair(3, 3, seed=11, remember=True)
    length = None if tree else Fixed(2)
    decoder = SpeculativeDecoder(decoder.target, decoder.drafts, verifier=name, tree=tree, length=length)
    assert_same(decoder_distribution(decoder, sampling, budget=4), target_distribution(decoder.target, sampling))


@pytest.mark.parametrize(
    ("tree", "sampling"),
    [((1, 1), SamplingParams(0.7, 2)), ((2,), SamplingParams(1.0, None)), ((1, 1), SamplingParams(0.0))],
)
def test_distribution_of_trees_of_two_drafts(tree: tuple[int, ...], sampling: SamplingParams) -> None:
    one, other = pair(3, 3, seed=17, remember=False), pair(3, 3, seed=18, remember=False)
    models = [Remembering(one.drafts[0].model), Remembering(other.drafts[0].model)]
    decoder = SpeculativeDecoder(Remembering(one.target.model), models, verifier="spec-infer", tree=tree)
    assert_same(decoder_distribution(decoder, sampling, budget=4), target_distribution(decoder.target, sampling))


@settings(max_examples=100)
@given(data=st.data(), vocab=st.integers(3, 5), k=st.integers(1, 3))
def test_block_verification_keeps_at_least_as_many(data: st.DataObject, vocab: int, k: int) -> None:
    """Expected tokens a round: block ≥ token-wise, which they equal for one token (Sun et al. 2024, Theorem 2)."""
    vocab = 3 if k == 3 else vocab
    rows = [torch.tensor(data.draw(distribution(vocab)), dtype=torch.float64) for _ in range(2 * k + 1)]
    p, proposals = as_distribution(torch.stack(rows[: k + 1])), [as_distribution(row[None]) for row in rows[k + 1 :]]
    kept = {}
    for name in ("token-wise", "block"):

        def run(rng: RandomSource, name: str = name) -> int:
            draft = Draft.chain([q.sample(0, rng) for q in proposals], proposals)
            return VERIFIERS[name](p, draft, rng).accepted

        kept[name] = sum(probability * accepted for accepted, probability in output_distribution(run).items())
    assert kept["block"] >= kept["token-wise"] - 1e-9
    assert k > 1 or kept["block"] == pytest.approx(kept["token-wise"], abs=1e-9)


@settings(max_examples=40)
@given(data=st.data(), vocab=st.integers(3, 4), name=st.sampled_from(["k-seq", "spec-infer", "mcss", "otm"]))
def test_more_proposals_keep_no_fewer_tokens(data: st.DataObject, vocab: int, name: str) -> None:
    """Expected accepted tokens of one level by its number of children."""
    p, q = (torch.tensor(data.draw(distribution(vocab)), dtype=torch.float64) for _ in range(2))

    def kept(k: int) -> float:
        def run(rng: RandomSource) -> int:
            draft = draw_tree((k,), {(): q}, name != "mcss", rng)
            rows = torch.stack([p] * (1 + len(draft.tokens)))
            return verify_tree(as_distribution(rows), draft, rng, SELECTIONS[name]).accepted

        return sum(probability * accepted for accepted, probability in output_distribution(run).items())

    few, more, most = (kept(k) for k in (1, 2, 3))
    assert few <= more + 1e-8
    assert more <= most + 1e-8
