"""All outcomes of a random procedure with their exact probabilities, so that tests of losslessness need no samples."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar
from unittest.mock import patch

import pytest
import torch
from hypothesis import strategies as st
from specpilot.controllers.sampling import SamplingParams
from specpilot.controllers.truncation import nucleus
from specpilot.infer.core import Generation, TokenDistribution
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.random_source import RandomSource
from specpilot.infer.verify.k_seq import division_factor, k_seq
from specpilot.infer.verify.otm import optimal_transport
from specpilot.models import CausalLM, LanguageModel, RaggedKVCache, Read, TextReader
from specpilot.models.longrope import TokenKVCache
from torch import Tensor
from transformers import PreTrainedModel

T = TypeVar("T")
PROMPT = [1, 0, 2]
DEPTH = 3


class Script(RandomSource):
    """A random source that follows a list of choices, and takes the first possible outcome after its end.

    Attributes:
        options: number of outcomes of each draw.
        uniforms: for each draw a uniform number with which other sources take the same outcome.
    """

    def __init__(self, choices: list[int]) -> None:
        self.choices = choices
        self.options: list[int] = []
        self.uniforms: list[float] = []
        self.probability = 1.0

    def _draw(self, probabilities: list[float]) -> int:
        possible = [i for i, p in enumerate(probabilities) if p > 0]
        turn = len(self.options)
        choice = self.choices[turn] if turn < len(self.choices) else 0
        if turn >= len(self.choices):
            self.choices.append(0)
        self.options.append(len(possible))
        self.probability *= probabilities[possible[choice]]
        return possible[choice]

    def pick(self, weights: list[float]) -> int:
        shares = [w / sum(weights) for w in weights]
        choice = self._draw(shares)
        self.uniforms.append(sum(shares[:choice]) + shares[choice] / 2)
        return choice

    def sample(self, weights: Tensor) -> int:
        return self.pick(weights.tolist())

    def accept(self, probabilities: list[float]) -> list[bool]:
        accepted = [self._draw([1 - min(1, p), min(1, p)]) == 1 for p in probabilities]
        self.uniforms += [p / 2 if kept else (1 + p) / 2 for p, kept in zip(probabilities, accepted, strict=True)]
        return accepted


def outcomes(procedure: Callable[[RandomSource], T]) -> Iterator[tuple[float, T]]:
    """Yield (probability, result) of ``procedure`` for every sequence of draws."""
    choices: list[int] = []
    while True:
        script = Script(choices)
        result = procedure(script)
        yield script.probability, result
        choices = script.choices
        while choices and choices[-1] + 1 == script.options[len(choices) - 1]:
            choices.pop()
        if not choices:
            return
        choices[-1] += 1


def once(function: Callable[..., T]) -> Callable[..., T]:
    """Cache the results of ``function`` by its tensors and numbers, because enumeration repeats most calls."""
    computed_before: dict[tuple[Any, ...], T] = {}

    def computed(*arguments: Any) -> T:
        key = tuple(
            (argument.shape, argument.dtype, argument.numpy().tobytes()) if isinstance(argument, Tensor) else argument
            for argument in arguments
        )
        if key not in computed_before:
            computed_before[key] = function(*arguments)
        return computed_before[key]

    return computed


def output_distribution(procedure: Callable[[RandomSource], T]) -> dict[T, float]:
    """Return the distribution of the result of ``procedure``. Computations that outcomes share are cached."""
    total: dict[T, float] = {}
    with (
        patch.dict(optimal_transport.__globals__, optimal_transport=once(optimal_transport)),
        patch.dict(k_seq.__globals__, division_factor=once(division_factor)),
        patch.dict(SamplingParams.top.__globals__, nucleus=once(nucleus)),
    ):
        for probability, result in outcomes(procedure):
            total[result] = total.get(result, 0.0) + probability
    return total


def rounds(
    decoder: SpeculativeDecoder, prompt: list[int], sampling: SamplingParams, budget: int, rng: RandomSource
) -> tuple[Generation, Iterator[list[int]]]:
    """Start the decoder's own loop for one prompt.

    Returns:
        The output, which the loop fills, and an iterator that runs a round and yields its new tokens.
    """
    request = decoder.new_request(list(prompt), sampling, budget, rng)
    return request.output, decoder.scheduler.tokens(request)


class Remembering(CausalLM):
    """A model that caches the logits after each prefix, because enumeration repeats most prefixes."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self.results: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

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
                columns = [*range(column + 1)]
                if tree is not None and column >= nodes:
                    columns = [*range(tree.trunk), *tree.above[column - nodes], column]
                rows.append(self.after(tuple(tokens[c] for c in columns)))
            results += rows[-read.keep :]
        return torch.stack([logits for logits, _ in results]), torch.stack([hidden for _, hidden in results])

    def after(self, prefix: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        if prefix not in self.results:
            cache = super().new_cache()
            cache.add(0, len(prefix))
            logits, hidden = super().forward(cache, [Read(0, prefix)])
            self.results[prefix] = logits[0], hidden[0]
        return self.results[prefix]


def target_distribution(
    target: LanguageModel, sampling: SamplingParams, prompt: Sequence[int] = PROMPT
) -> dict[tuple[int, ...], float]:
    """Return Π p(x_i | prompt, x_<i) for all sequences of DEPTH tokens."""
    result = {}
    for tokens in itertools.product(range(target.vocab_size), repeat=DEPTH):
        probability = 1.0
        for i in range(DEPTH):
            reader, start = TextReader.begin(target, prompt)
            logits, _ = reader.read([*start, *tokens[:i]], keep=1)
            probability *= float(sampling(logits[-1])[tokens[i]])
        if probability > 0:
            result[tokens] = probability
    return result


def distribution_by_steps(target: LanguageModel, sampling: SamplingParams) -> dict[tuple[int, ...], float]:
    """:func:`target_distribution` by the forwards that decoding runs: in a cache that has been used, token by token."""
    cache = target.new_cache()
    target.begin(cache, "earlier", PROMPT, DEPTH)
    target.forward(cache, [Read("earlier", PROMPT)])
    cache.remove("earlier")
    result = {}
    for tokens in itertools.product(range(target.vocab_size), repeat=DEPTH):
        probability, unread = 1.0, target.begin(cache, tokens, PROMPT, DEPTH)
        for token in tokens:
            logits, _ = target.forward(cache, [Read(tokens, unread)])
            probability *= float(sampling(logits[-1])[token])
            unread = [token]
        cache.remove(tokens)
        if probability > 0:
            result[tokens] = probability
    return result


def decoder_distribution(
    decoder: SpeculativeDecoder, sampling: SamplingParams, budget: int, prompt: Sequence[int] = PROMPT
) -> dict[tuple[int, ...], float]:
    """The distribution of the first DEPTH tokens of the decoder's own loop."""

    def run(rng: RandomSource) -> tuple[int, ...]:
        generation, loop = rounds(decoder, list(prompt), sampling, budget, rng)
        for _ in loop:
            if len(generation.tokens) >= DEPTH:
                break
        return tuple(generation.tokens[:DEPTH])

    return output_distribution(run)


def assert_same(
    actual: dict[tuple[int, ...], float], expected: dict[tuple[int, ...], float], tolerance: float = 1e-9
) -> None:
    assert sum(actual.values()) == pytest.approx(1, abs=1e-9)
    for tokens in actual.keys() | expected.keys():
        assert actual.get(tokens, 0.0) == pytest.approx(expected.get(tokens, 0.0), abs=tolerance), tokens


def distribution(size: int) -> st.SearchStrategy[list[float]]:
    """Draw random distributions over ``size`` tokens, some with zeros and some one-hot."""
    weights = st.lists(st.one_of(st.just(0.0), st.floats(0.01, 1.0)), min_size=size, max_size=size)
    return weights.filter(any).map(lambda w: [x / sum(w) for x in w])


def as_distribution(rows: Tensor, lists: bool = False) -> TokenDistribution:
    """Return the distributions ``rows`` (N, V), with ``lists`` as lists of the tokens that have a probability."""
    if not lists:
        return TokenDistribution(rows, None, rows.shape[1])
    tokens = rows.any(0).nonzero().squeeze(1).flip(0)
    return TokenDistribution(rows[:, tokens], tokens.expand(len(rows), -1), rows.shape[1])
