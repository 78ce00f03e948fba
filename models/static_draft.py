"""Steps of fixed shapes: forward, distribution and sampling of a token without the host.

A step samples the next token of every text and makes it the input of the next step, so that a chain of K tokens is K
replays of a CUDA graph. The host sends the random numbers once and reads nothing. Such steps are used for drafts whose
length does not depend on their tokens, and for a target that decodes without drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..controllers.sampling import draw_by
from .kv_cache import RaggedKVCache, size_above
from .masks import lay_out
from .read import Read, Results, put_drawn
from .sampled import DraftedTokens, Sampled
from .static_forward import MAX_TOKENS, Shape, StaticForward

LONGEST_READ = 8  # maximum number of tokens that the first step reads of a text
LARGEST_SUPPORT = 1024  # maximum number of tokens of a distribution; the device stores the distributions of all steps


class Draws:
    """Samples the tokens of up to S steps of B texts.

    Args:
        model: a :class:`.causal_lm.CausalLM`.
        cache: the cache of the texts.
        rows: B.
        steps: S.
        sampled: the sampling parameters.

    Attributes:
        kept_tokens: (M,) the only tokens that can be sampled, for a trimmed vocabulary; None for all.
        numbers: (B, S) the random number of each step, as in :func:`~specpilot.controllers.sampling.draw_by`.
        step: (1,) the number of steps so far.
        drafted: the results of the steps.
        bounds: (5,) maximum of each input of the next step.
    """

    def __init__(self, model: Any, cache: RaggedKVCache, rows: int, steps: int, sampled: Sampled) -> None:
        self.sampled, device = sampled, model.device
        kept_tokens = model.kept_tokens_below(sampled.size)
        self.kept_tokens = None if kept_tokens is None else kept_tokens.to(device)
        width = min(sampled.size, model.vocab_size) if self.kept_tokens is None else len(self.kept_tokens)
        k = min(sampled.sampling.support or width, width) if sampled.distributions else 0
        precision = torch.float64 if model.model.dtype == torch.float64 else torch.float32
        numbers = torch.long if sampled.shared else torch.float64
        self.numbers = torch.zeros(rows, steps, dtype=numbers, device=device)
        self.step = torch.zeros(1, dtype=torch.long, device=device)
        self.drafted = DraftedTokens(
            torch.zeros(steps, rows, k, dtype=precision, device=device),
            torch.zeros(steps, rows, k, dtype=torch.long, device=device),
            torch.zeros(steps, rows, dtype=torch.long, device=device),
            torch.zeros(steps, rows, dtype=precision, device=device),
        )
        # The last column is for padding, and no position lies beyond the model's context.
        last = cache.n_columns - 1
        most_positions = last if model.context is None else min(last, model.context - 1)
        self.bounds = torch.tensor([model.vocab_size - 1, most_positions, last, last, last], device=device)

    def take(self, logits: Tensor, inputs: Tensor, following: Tensor) -> None:
        """Sample a token from each row of ``logits`` (B, V), and make it the input of the next step.

        Args:
            logits: (B, V) logits.
            inputs: (B, 5) inputs of the last tokens, as in :func:`.masks.lay_out`.
            following: (B, 1, 5) inputs of the next step, which are overwritten.
        """
        logits = logits[:, : self.sampled.size] if self.kept_tokens is None else logits[:, self.kept_tokens]
        probabilities, tokens = self.sampled.sampling.top(logits)
        if tokens is not None and self.kept_tokens is not None:
            tokens = self.kept_tokens[tokens]
        ids = self.kept_tokens if tokens is None else tokens
        numbers = self.numbers.index_select(1, self.step).squeeze(1)
        places = draw_by(probabilities, None if ids is None else ids.expand(probabilities.shape), numbers).unsqueeze(-1)
        drawn = self._tokens_at(places) if tokens is None else tokens.gather(-1, places)
        chosen = probabilities.gather(-1, places)
        self.drafted.drawn.index_copy_(0, self.step, drawn.T)
        self.drafted.chosen.index_copy_(0, self.step, chosen.T)
        if self.sampled.distributions:
            assert tokens is not None
            self.drafted.probabilities.index_copy_(0, self.step, probabilities.unsqueeze(0))
            self.drafted.tokens.index_copy_(0, self.step, tokens.unsqueeze(0))
        self.step.add_(1)
        advanced = torch.cat([drawn, inputs[:, 1:] + 1], -1)
        following.copy_(torch.minimum(advanced, self.bounds).unsqueeze(1))

    def _tokens_at(self, places: Tensor) -> Tensor:
        """Return the tokens at ``places`` of a distribution of all tokens in order."""
        return places if self.kept_tokens is None else self.kept_tokens[places]


class StepChain:
    """The steps for one number of rows on the buffers of one cache.

    Attributes:
        draws: samples the tokens of all steps.
        forwards: the step for each number of tokens that it reads.
    """

    def __init__(
        self, model: Any, strategy: Any, cache: RaggedKVCache, rows: int, steps: int, sampled: Sampled
    ) -> None:
        self.model, self.strategy, self.rows = model, strategy, rows
        self.draws = Draws(model, cache, rows, steps, sampled)
        self.forwards: dict[int, DraftStep] = {}

    def step_for(self, cache: RaggedKVCache, tokens: int) -> DraftStep:
        """Return the step that reads ``tokens`` tokens of each text."""
        if tokens not in self.forwards:
            shape = Shape(self.rows, tokens, 1, self.model.layers, self.model.state_layers)
            self.forwards[tokens] = DraftStep(self.model, self.strategy, cache, shape, self)
        return self.forwards[tokens]


class DraftStep(StaticForward):
    """A forward of fixed shape that also samples each text's next token."""

    def __init__(self, model: Any, strategy: Any, cache: RaggedKVCache, shape: Shape, chain: StepChain) -> None:
        super().__init__(model, strategy, cache, shape, keep=1)
        self.draws = chain.draws
        self.following = self.inputs if shape.tokens == 1 else chain.step_for(cache, 1).inputs

    def _compute(self, cache: RaggedKVCache) -> Results:
        logits, hidden = super()._compute(cache)
        self.draws.take(logits[:, -1], self.inputs[:, -1], self.following)
        return logits, hidden


def draft_static(
    model: Any, strategy: Any, cache: RaggedKVCache, reads: Sequence[Read], counts: Sequence[int],
    numbers: Sequence[Sequence[float]], sampled: Sampled, steps: int,
) -> DraftedTokens | None:  # fmt: skip
    """Sample ``counts`` tokens after each of ``reads``; return None if the steps cannot have fixed shapes.

    Entries after the last token of a text are meaningless.

    Args:
        model: a :class:`.causal_lm.CausalLM`.
        strategy: its :class:`.forwards.FixedShapes`.
        cache: the cache of the texts.
        reads: the unread tokens.
        counts: number of tokens to sample for each text.
        numbers: the random number of each token.
        sampled: the sampling parameters.
        steps: maximum number of tokens of any chain.
    """
    support = sampled.sampling.support
    longest = max(len(read.tokens) for read in reads)
    if sampled.distributions and (support is None or support > LARGEST_SUPPORT):
        return None
    if longest > LONGEST_READ or not cache.initialized:
        return None
    n, rows = size_above(longest), size_above(max(cache.rows[read.text] for read in reads) + 1)
    if rows * n > MAX_TOKENS or max(counts) > steps:
        return None
    # A step reads the token that the previous step has sampled; the last token is not read.
    cache.start_forward(
        [read.text for read in reads], [len(read.tokens) + count - 1 for read, count in zip(reads, counts, strict=True)]
    )
    cache.fit()
    key = rows, steps, sampled, model.layers, model.state_layers
    chain = cache.forwards.get(key)
    if chain is None:
        chain = cache.forwards[key] = StepChain(model, strategy, cache, rows, steps, sampled)
    first = chain.step_for(cache, n)
    cache_rows = [cache.rows[read.text] for read in reads]
    inputs = lay_out(reads, cache_rows, [cache.lengths[row] for row in cache_rows], (rows, n, 1), cache.n_columns - 1)
    first.inputs.copy_(inputs, non_blocking=True)
    put_drawn(reads, cache_rows, first.inputs[..., 0])
    padding = 0 if sampled.shared else 0.0
    padded: list[list[float]] = [[padding] * steps] * rows
    for row, row_numbers in zip(cache_rows, numbers, strict=True):
        padded[row] = [*row_numbers, *[padding] * (steps - len(row_numbers))]
    chain.draws.numbers.copy_(torch.tensor(padded, dtype=chain.draws.numbers.dtype), non_blocking=True)
    chain.draws.step.zero_()
    first(cache)
    following = chain.step_for(cache, 1)
    for _ in range(max(counts) - 1):
        following(cache)
    cache.end_forward()
    return DraftedTokens(*(_copy_rows(result[: max(counts)], cache_rows) for result in chain.draws.drafted))


def _copy_rows(values: Tensor, rows: list[int]) -> Tensor:
    """Return a copy of ``rows`` of ``values`` (K, B, …), which the next chain overwrites."""
    if rows == list(range(rows[0], rows[-1] + 1)):
        return values[:, rows[0] : rows[-1] + 1].clone()
    return values[:, torch.tensor(rows).to(values.device, non_blocking=True)]
