"""Rollouts, and labels of their tokens by target and draft.

A rollout is the continuation of a prompt by a model, with random numbers of its own. The decoder's loop runs without
drafts: prompts start as others finish, and a prompt's tokens depend on its random numbers, not on the batch. Then a
forward of each model gives:

* Labels (SpecDec++, Huang et al. 2024, §3.3): at each position of a target rollout X, Y_i ~ q(·|prompt, X_<i) is drawn,
  and P_i is the probability that the verification rule accepts Y_i (:func:`acceptance`).
* Overlap (Leviathan et al. 2023): the probability that the rule accepts a token drawn from q_i
  (:func:`expected_acceptance`).

Models with the same tokenizer may be padded to different sizes. The target may then emit a token without an embedding
in the draft. From that token on the draft has no state: data ends before it, and a decoder continues without drafts.
Shapes: N tokens of several texts, V tokens of a vocabulary, k ≤ V of them with positive probability.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..controllers.acceptance.step import FEW
from ..controllers.checkpoints.provenance import INVARIANT, TOKEN_WISE
from ..controllers.length import Fixed
from ..controllers.sampling import SamplingParams, require_finite
from ..infer.core import Draft, DraftingArm, Generation, Request, TokenDistribution, Verdict
from ..infer.drafters.base import Autoregressive
from ..infer.engine import Engine
from ..infer.random_source import RandomSource, draw
from ..infer.scheduler import Scheduler
from ..infer.verify.token_wise import token_wise
from ..models import LanguageModel, Read

# Maximum number of logits, N·V, that are computed at once. On a CPU, larger pieces are slower because of memory
# allocation. On an accelerator, a forward of few tokens takes as long as one of many; these logits take 2 GiB in
# float32.
MAX_SCORES, MAX_SCORES_OF_ACCELERATOR = 1 << 22, 1 << 29


@dataclass(frozen=True)
class Rollout:
    """The continuation of a prompt.

    Attributes:
        tokens: x_1 … x_T.
        p: the distributions from which the tokens were drawn, if greedy or top-k sampling makes them small; else None.
    """

    tokens: list[int]
    p: TokenDistribution | None = None

    def first(self, count: int) -> Rollout:
        """Return the first ``count`` tokens."""
        return Rollout(self.tokens[:count], None if self.p is None else self.p.part(0, count))


class Recording:
    """A verification rule without drafts that records the distribution of each token."""

    def __init__(self) -> None:
        self.distributions: list[TokenDistribution] = []

    def __call__(self, p: TokenDistribution, draft: Draft, rng: RandomSource) -> Verdict:
        """Record ``p``, and verify token-wise."""
        self.distributions.append(
            TokenDistribution(p.probabilities, p.tokens, p.size)
        )  # a copy without the lists of the whole batch
        return token_wise(p, draft, rng)


def roll_out(
    model: LanguageModel,
    prompts: Sequence[list[int]],
    uniforms: Sequence[Tensor],
    sampling: SamplingParams,
    stop_tokens: frozenset[int],
    *,
    batch_size: int,
    on_done: Callable[[int], None] = lambda tokens: None,
) -> list[Rollout]:
    """Continue every prompt until a stop token (included) or its budget.

    Args:
        model: the model.
        prompts: N lists of token ids; the encoder's input for an encoder-decoder.
        uniforms: N tensors of numbers in [0, 1). Number t of a prompt determines its token t, and the count of numbers
            is the budget.
        sampling: the sampling parameters.
        stop_tokens: tokens that end a continuation.
        batch_size: number of prompts that run together.
        on_done: called with the length of every finished continuation.
    """
    engine = Engine(model)
    scheduler = Scheduler(engine, batch_size)
    arms = [DraftingArm(Autoregressive(engine.target, engine.cache), Fixed(0))]
    # A target that draws on its device keeps no distributions, because another forward is faster than copying them.
    small = sampling.support is not None and sampling.support <= FEW and not model.reads_drawn
    verifiers = [Recording() if small else token_wise for _ in prompts]
    requests = []
    for prompt, row, verifier in zip(prompts, uniforms, verifiers, strict=True):
        rng, output = RandomSource(0), Generation(prompt)
        rng.give_back(row.tolist())
        requests.append(Request(prompt, sampling, rng, len(row), stop_tokens, verifier, arms, output))
    for request in scheduler.as_finished(requests):
        on_done(len(request.output.tokens))
    return [
        Rollout(
            request.output.tokens,
            TokenDistribution.joined(verifier.distributions) if isinstance(verifier, Recording) else None,
        )
        for request, verifier in zip(requests, verifiers, strict=True)
    ]


def can_read(tokens: Sequence[int], vocab_size: int) -> bool:
    """Return true if a model with ``vocab_size`` embeddings can read all of ``tokens``."""
    return max(tokens, default=0) < vocab_size


def readable(tokens: Sequence[int], vocab_size: int) -> int:
    """Return the number of ``tokens`` before the first that a model with ``vocab_size`` embeddings cannot read."""
    return next((index for index, token in enumerate(tokens) if token >= vocab_size), len(tokens))


def acceptance(p: TokenDistribution, q: TokenDistribution, tokens: Tensor, verifier: str) -> Tensor:
    """Return the probability that a drafted token is accepted, given the token.

    ``token-wise`` verification accepts the token i with probability ``min(1, p_i / q_i)``. Under the rule ``invariant``
    target and draft share their noise, and the token i that the draft chose is also the target's with probability
    ``1 / Σ_j max(q_j, p_j·q_i / p_i)`` (Daliri, Musco and Suresh 2024). This is 0 if p_i is 0. The sum is over all
    tokens: p and q may list different ones, and those that only p lists count with p_j.

    With p and q exchanged both formulas give the probability that the draft's token was i, given that the target's is.

    Args:
        p, q: N distributions of target and draft each.
        tokens: (N,) the drafted tokens, on the device of ``q``.
        verifier: the rule's name, ``"token-wise"`` or ``"invariant"``.

    Returns:
        Probabilities (N,) on the device of ``q``; under ``invariant`` in float64.
    """
    p = moved(p, q.probabilities.device)
    if verifier != INVARIANT:
        return (_of(p, tokens) / _of(q, tokens)).clamp(max=1.0)
    pieces = []
    for rows in _rows_at_once(p, q):
        p_j, q_j, outside_mass = _on_support(p.part(*rows), q.part(*rows))
        of_rows = tokens[slice(*rows)]
        p_i, q_i = (_of(distribution.part(*rows), of_rows).double().to(q_j.device) for distribution in (p, q))
        largest = torch.maximum(p_i, q_i)
        a, b = p_i / largest, q_i / largest  # 0 to 1, so that nothing overflows
        total = torch.maximum(q_j * a.unsqueeze(-1), p_j * b.unsqueeze(-1)).sum(-1) + outside_mass * b
        pieces.append((a / total).where((p_i > 0) & (q_i > 0), 0.0))
    return torch.cat(pieces).clamp(max=1.0).to(tokens.device)


def expected_acceptance(p: TokenDistribution, q: TokenDistribution, verifier: str) -> Tensor:
    """Return the probability that a token drawn from q is accepted.

    This is ``Σ_i min(p_i, q_i)`` under ``token-wise`` verification and ``Σ_i 1 / Σ_j max(p_j / p_i, q_j / q_i)`` under
    the rule ``invariant``.

    Args:
        p, q: N distributions of target and draft each; the draft's vocabulary may be smaller.
        verifier: as for :func:`acceptance`.

    Returns:
        Probabilities (N,) on the device of ``q``; under ``invariant`` in float64.
    """
    device = q.probabilities.device
    p = moved(p, device)
    if verifier != INVARIANT:
        return torch.minimum(p.dense[:, : q.size], q.dense).sum(-1).clamp(max=1.0)
    pieces = []
    for rows in _rows_at_once(p, q):
        p_j, q_j, outside_mass = _on_support(p.part(*rows), q.part(*rows))
        # Of the two ratios that of p is the larger one for tokens whose p_j / q_j is larger than p_i / q_i, so that in
        # this order the inner sums are cumulative.
        order = (p_j / q_j).where(q_j > 0, torch.inf).argsort(-1)
        p_i, q_i = p_j.gather(-1, order), q_j.gather(-1, order)
        larger = outside_mass.unsqueeze(-1) + p_i.flip(-1).cumsum(-1).flip(-1)
        smaller = q_i.cumsum(-1) - q_i
        shares = p_i * q_i / (larger * q_i + smaller * p_i)
        pieces.append(shares.where((p_i > 0) & (q_i > 0), 0.0).sum(-1))
    return torch.cat(pieces).clamp(max=1.0).to(device)


def moved(distribution: TokenDistribution, device: torch.device) -> TokenDistribution:
    """Return ``distribution`` on ``device``."""
    probabilities, tokens = distribution.probabilities, distribution.tokens
    if probabilities.device == device:
        return distribution
    return TokenDistribution(probabilities.to(device), None if tokens is None else tokens.to(device), distribution.size)


def _of(distribution: TokenDistribution, tokens: Tensor) -> Tensor:
    """Return the probability (N,) of a token in each of N distributions."""
    probabilities, listed = distribution.probabilities, distribution.tokens
    if listed is not None:
        return probabilities.where(listed == tokens.unsqueeze(-1), 0.0).sum(-1)
    count = probabilities.shape[-1]  # may be smaller than the vocabulary
    return probabilities.gather(-1, tokens.clamp(max=count - 1).unsqueeze(-1)).squeeze(-1).where(tokens < count, 0.0)


def _rows_at_once(p: TokenDistribution, q: TokenDistribution) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of pieces of rows that are computed at once."""
    count = len(q.probabilities)
    together = max(1, MAX_SCORES // max(p.size, q.probabilities.shape[-1]))
    return ((start, min(start + together, count)) for start in range(0, count, together))


def _on_support(p: TokenDistribution, q: TokenDistribution) -> tuple[Tensor, Tensor, Tensor]:
    """Return probabilities in p and in q (N, k) of q's tokens, and p's probability (N,) of all others, in float64."""
    device = (
        torch.device("cpu") if q.probabilities.device.type == "mps" else q.probabilities.device
    )  # MPS has no float64
    p, q = moved(p, device), moved(q, device)
    q_j, dense = q.probabilities.double(), p.dense
    p_j = dense[:, : q_j.shape[-1]] if q.tokens is None else dense.gather(-1, q.tokens)
    if p_j.shape[-1] < q_j.shape[-1]:
        p_j = torch.nn.functional.pad(p_j, (0, q_j.shape[-1] - p_j.shape[-1]))
    p_j = p_j.double().where(q_j > 0, 0.0)  # a token may be listed again with probability zero
    return p_j, q_j, (p.probabilities.double().sum(-1) - p_j.sum(-1)).clamp(min=0.0)


@torch.inference_mode()
def label(
    target: LanguageModel,
    draft: LanguageModel,
    prompts: list[list[int]],
    rollouts: list[Rollout],
    uniforms: Tensor,
    sampling: SamplingParams,
    verifier: str = TOKEN_WISE,
) -> list[tuple[list[int], list[float]]]:
    """Return the drafted tokens Y and their acceptance probabilities P for every rollout.

    Args:
        target: the target.
        draft: the draft.
        prompts, rollouts: B prompts and the target's B rollouts X, at least one token each.
        uniforms: (B, T) in [0, 1), T at least the longest rollout's length; number i determines Y_i.
        sampling: sampling parameters of both models.
        verifier: the rule that P is for, see :func:`acceptance`.

    Returns:
        A pair (Y, P) of lists for each rollout, with an entry for each token before the rollout's first token outside
        the draft's vocabulary. Both lists are empty if the prompt has such a token.
    """
    labels: list[tuple[list[int], list[float]]] = [([], []) for _ in prompts]
    size = target.vocab_size
    for batch in _batches(target, draft, prompts, rollouts, extra_tokens=0):
        drafted = scores(draft, batch.prompts, batch.texts, size)
        q = TokenDistribution.from_logits(sampling, drafted, kept_tokens=draft.kept_tokens_below(size))  # (N, k)
        points = torch.cat([uniforms[row, :count] for row, count in zip(batch.rows, batch.counts, strict=True)])
        choice = draw(q.probabilities, points.to(drafted.device)).unsqueeze(-1)  # (N, 1)
        y = (choice if q.tokens is None else q.tokens.gather(-1, choice)).squeeze(-1)
        del drafted
        accepted = acceptance(batch.p(target, sampling), q, y, verifier)
        parts = zip(*(torch.split(values, batch.counts) for values in (y, accepted)), strict=True)
        for row, (tokens, accept) in zip(batch.rows, parts, strict=True):
            labels[row] = tokens.tolist(), accept.tolist()
    return labels


@torch.inference_mode()
def overlap(
    target: LanguageModel,
    draft: LanguageModel,
    prompts: list[list[int]],
    rollouts: list[Rollout],
    sampling: SamplingParams,
    verifier: str = TOKEN_WISE,
) -> list[list[float]]:
    """Return :func:`expected_acceptance` at every token of every rollout, with the sampling parameters.

    The result is 0 after a token outside the draft's vocabulary, where nothing can be drafted. The position of that
    token can still be drafted, from the tokens before it.

    Args:
        target: the target.
        draft: the draft.
        prompts, rollouts: B prompts and the target's outputs under ``sampling``, at least one token each.
        sampling: sampling parameters of both models.
        verifier: the rule that verifies drafts.
    """
    result = [[0.0] * len(rollout.tokens) for rollout in rollouts]
    size = target.vocab_size
    for batch in _batches(target, draft, prompts, rollouts, extra_tokens=1):
        q = TokenDistribution.from_logits(sampling, scores(draft, batch.prompts, batch.texts, size))
        require_finite(float(q.probabilities.sum()))
        shared = expected_acceptance(batch.p(target, sampling), q, verifier)
        for row, shares in zip(batch.rows, torch.split(shared, batch.counts), strict=True):
            result[row][: len(shares)] = shares.tolist()
    return result


@torch.inference_mode()
def acceptance_by_exponent(
    target: LanguageModel,
    draft: LanguageModel,
    prompts: list[list[int]],
    rollouts: list[Rollout],
    sampling: SamplingParams,
    exponents: Sequence[float],
) -> list[float]:
    """Return the mean :func:`expected_acceptance` under ``invariant`` for each power of the draft's probabilities.

    With shared noise a draft that chooses ``argmax λ·log q + g`` chooses a sample of q^λ, normalised, so that the
    closed form holds with this distribution instead of q.

    Args:
        target: the target.
        draft: the draft.
        prompts, rollouts: B prompts and the target's outputs under ``sampling``, at least one token each.
        sampling: sampling parameters of both models.
        exponents: the powers λ.

    Returns:
        The mean over all tokens that the draft can read, for each of ``exponents``; 0 if there are none.
    """
    sums, count = torch.zeros(len(exponents), dtype=torch.float64), 0
    size = target.vocab_size
    for batch in _batches(target, draft, prompts, rollouts, extra_tokens=0):
        drafted, p = scores(draft, batch.prompts, batch.texts, size), batch.p(target, sampling)
        count += len(drafted)
        for index, exponent in enumerate(exponents):
            q = TokenDistribution.from_logits(
                sampling.to_power(exponent), drafted, kept_tokens=draft.kept_tokens_below(size)
            )
            sums[index] += expected_acceptance(p, q, INVARIANT).sum().cpu()
    return (sums / max(count, 1)).tolist()


class _Batch(NamedTuple):
    """Some of the prompts, which are read together.

    Attributes:
        rows: indices of the prompts.
        prompts: the prompts.
        rollouts: their rollouts, up to the last token that is read.
    """

    rows: list[int]
    prompts: list[list[int]]
    rollouts: list[Rollout]

    @property
    def texts(self) -> list[list[int]]:
        return [rollout.tokens for rollout in self.rollouts]

    @property
    def counts(self) -> list[int]:
        return [len(rollout.tokens) for rollout in self.rollouts]

    def p(self, target: LanguageModel, sampling: SamplingParams) -> TokenDistribution:
        """Return the target's N distributions along the texts: the recorded ones, or those of a forward."""
        recorded = [rollout.p for rollout in self.rollouts if rollout.p is not None]
        if len(recorded) == len(self.rollouts):
            return TokenDistribution.joined(recorded)
        return TokenDistribution.from_logits(sampling, scores(target, self.prompts, self.texts, target.vocab_size))


def _batches(
    target: LanguageModel, draft: LanguageModel, prompts: list[list[int]], rollouts: list[Rollout], extra_tokens: int
) -> Iterator[_Batch]:
    """Yield batches of the prompts that the draft can read, with at most :func:`scores_at_once` logits each.

    Args:
        extra_tokens: number of tokens that are kept of a rollout after the last token that the draft can read.
    """
    size = draft.vocab_size
    read = {
        row: rollout.first(readable(rollout.tokens, size) + extra_tokens)
        for row, (prompt, rollout) in enumerate(zip(prompts, rollouts, strict=True))
        if can_read(prompt, size)
    }
    rows = [row for row, rollout in read.items() if rollout.tokens]
    longest = max((len(read[row].tokens) for row in rows), default=1)
    together = max(1, scores_at_once(target.device) // (longest * target.vocab_size))
    for start in range(0, len(rows), together):
        some = rows[start : start + together]
        yield _Batch(some, [prompts[row] for row in some], [read[row] for row in some])


def scores_at_once(device: torch.device) -> int:
    """Return the largest number of logits that a forward on ``device`` should compute."""
    return MAX_SCORES if device.type == "cpu" else MAX_SCORES_OF_ACCELERATOR


def scores(model: LanguageModel, prompts: Sequence[list[int]], texts: Sequence[list[int]], size: int) -> Tensor:
    """Return the logits (N, V') that predict each token of ``texts``, text by text, in a single forward.

    Args:
        prompts: the prompt of each text; for an encoder-decoder the encoder's input.
        texts: texts of at least one token; the last token is scored and not read.
        size: the target's vocabulary size V, to which longer rows are cut.
    """
    cache = model.new_cache()
    reads = [
        Read(row, [*model.begin(cache, row, prompt, len(text)), *text[:-1]], len(text))
        for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True))
    ]
    logits, _ = model.forward(cache, reads)
    return logits[:, :size]
