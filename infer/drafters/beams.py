"""Beam-sampled drafts (Qin et al. 2025, §2.1, eq. 2): the most probable of W sequences drawn jointly.

At every step the candidates are pairs of a beam and a next token. A candidate's weight is the product of the beam's and
the token's probabilities. W candidates are drawn without replacement, or the W candidates of largest weight are taken.
Probabilities are those after the sampling parameters, so that a beam's weight is the probability of its tokens in
decoding. A beam with a stop token ends and remains a candidate.

One forward reads all beams, as branches of a tree in one cache, so that a beam that forks copies nothing. At the end
the best beam's columns are moved to follow the text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ...common.errors import InputError
from ...controllers.sampling import SamplingParams, require_finite
from ...models import LanguageModel, TextCache, TextReader, TreeMask
from ..core import NO_DRAFT, Draft, Drafter, Request, TokenDistribution
from ..random_source import RandomSource
from .base import ModelDrafter

MAX_BEAMS = 64


@dataclass(frozen=True)
class Beams:
    """Settings of the beam search.

    Attributes:
        width: number of beams W.
        argmax: take the W candidates of largest weight instead of drawing W candidates.

    Raises:
        InputError: the width is not from 1 to ``MAX_BEAMS``.
    """

    width: int = 4
    argmax: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.width <= MAX_BEAMS:
            raise InputError(f"beams={self.width}: give 1 to {MAX_BEAMS}")

    def check_sampling(self, sampling: SamplingParams, vocab_size: int) -> None:
        """Check that ``sampling`` keeps as many tokens as there are beams.

        Raises:
            InputError: ``sampling`` keeps fewer tokens than there are beams.
        """
        support = min(sampling.support or vocab_size, vocab_size)
        if self.width > support:
            reason = (
                "temperature 0 leaves one token" if sampling.temperature == 0 else f"top_k and vocabulary: {support}"
            )
            raise InputError(
                f"beams={self.width}: wider than the support ({reason}); take fewer beams, or keep more tokens"
            )


@dataclass(frozen=True)
class Beam:
    """A sequence that is being drafted.

    Attributes:
        tokens: the drafted tokens.
        distributions: the distribution that each token was drawn from, with one row.
        columns: the cache columns of the tokens except the last.
        log_q: the log probability of the tokens, in nats.
    """

    tokens: list[int]
    distributions: list[TokenDistribution]
    columns: list[int]
    log_q: float


def draft_beams(
    reader: TextReader,
    unread: list[int],
    beams: Beams,
    length: int,
    sampling: SamplingParams,
    rng: RandomSource,
    *,
    vocab_size: int,
    stop_tokens: frozenset[int],
) -> Draft:
    """Return the beam of the largest joint probability, as a chain of at most ``length`` tokens up to a stop token.

    Args:
        reader: a reader of the draft model, or of the target for MTJD. It has read the text except its last tokens,
            ``unread``. Afterwards it has also read the tokens of the returned draft except the last.
        unread: the tokens to read first.
        beams: settings of the beam search.
        length: maximum length of the draft.
        sampling: the sampling parameters.
        rng: the source of random numbers.
        vocab_size: the target's vocabulary size V.
        stop_tokens: the token ids that end a beam.
    """
    if length < 1:
        return NO_DRAFT
    candidates = [Beam([], [], [], 0.0)]
    trunk, n_forwards = 0, 0
    while True:
        live = [beam for beam in candidates if not _has_ended(beam, stop_tokens)]
        if not live or n_forwards == length:
            break
        if n_forwards == 0:
            logits, _ = reader.read(unread, keep=1)
            trunk = reader.length
        else:
            branches = TreeMask(trunk, [beam.columns for beam in live])
            first = reader.length
            logits, _ = reader.read([beam.tokens[-1] for beam in live], tree=branches)
            live = [
                Beam(beam.tokens, beam.distributions, [*beam.columns, first + row], beam.log_q)
                for row, beam in enumerate(live)
            ]
        n_forwards += 1
        ended = [beam for beam in candidates if _has_ended(beam, stop_tokens)]
        candidates = _extend(live, ended, TokenDistribution.from_logits(sampling, logits, vocab_size), beams, rng)
    best = max(candidates, key=lambda beam: beam.log_q)
    reader.keep(trunk, best.columns)
    return Draft.chain(best.tokens, best.distributions, n_forwards)


def _has_ended(beam: Beam, stop_tokens: frozenset[int]) -> bool:
    """Return true if ``beam`` ends with a stop token."""
    return bool(beam.tokens) and beam.tokens[-1] in stop_tokens


def _extend(
    live: list[Beam], ended: list[Beam], distribution: TokenDistribution, beams: Beams, rng: RandomSource
) -> list[Beam]:
    """Return the beams of the next step.

    Args:
        live: the B beams that can grow.
        ended: the beams that end with a stop token.
        distribution: B next-token distributions, one for each beam of ``live``.
    """
    max_log_q = max(beam.log_q for beam in (*live, *ended))  # divides all weights, to avoid underflow
    probabilities = distribution.probabilities.cpu().double()  # (B, k)
    beam_weights = probabilities.new_tensor([math.exp(beam.log_q - max_log_q) for beam in live])
    ended_weights = probabilities.new_tensor([math.exp(beam.log_q - max_log_q) for beam in ended])
    weights = torch.cat([(beam_weights[:, None] * probabilities).flatten(), ended_weights])
    require_finite(float(weights.sum()))
    next_beams: list[Beam] = []
    for candidate in _choose(weights, beams, rng):
        row, choice = divmod(candidate, probabilities.shape[1])
        if row >= len(live):
            next_beams.append(ended[candidate - probabilities.numel()])
            continue
        beam = live[row]
        log_q = beam.log_q + math.log(float(probabilities[row, choice]))
        next_beams.append(
            Beam(
                [*beam.tokens, distribution.token(row, choice)],
                [*beam.distributions, distribution.part(row, row + 1)],
                beam.columns,
                log_q,
            )
        )
    return next_beams


def _choose(weights: torch.Tensor, beams: Beams, rng: RandomSource) -> list[int]:
    """Return at most W candidates with positive ``weights`` (C,) float64, by decreasing weight or in drawn order."""
    possible = min(beams.width, int((weights > 0).sum()))
    if beams.argmax:
        return weights.topk(possible).indices.tolist()
    remaining: list[float] = weights.tolist()
    chosen = []
    for _ in range(possible):
        chosen.append(rng.pick(remaining))
        remaining[chosen[-1]] = 0.0
    return chosen


class BeamDrafter(ModelDrafter):
    """MTAD: drafts the beam of the largest joint probability under the draft model.

    Args:
        model: the draft model.
        vocab_size: the target's vocabulary size V.
        beams: settings of the beam search.
        length: the draft length γ, in tokens.
    """

    def __init__(self, model: LanguageModel, vocab_size: int, beams: Beams, length: int) -> None:
        super().__init__(model, vocab_size)
        self.beams, self.length = beams, length

    def columns_needed(self, request: Request) -> int:
        return request.budget + self.beams.width * self.length

    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        return [self._draft(request, self.unread(request)) for request in requests]

    def _draft(self, request: Request, unread: list[int]) -> Draft:
        """Return the request's draft; ``unread`` holds the tokens that the model has not read."""
        length = min(self.length, self.reach(request))
        if not unread or length < 1:
            return NO_DRAFT
        self.read_prompts([request])
        return draft_beams(
            TextReader(self.model, self.cache, request), unread, self.beams, length, request.sampling, request.rng,
            vocab_size=self.vocab_size, stop_tokens=request.stop_tokens,
        )  # fmt: skip


class JointDrafter(Drafter):
    """MTJD: in each step the target chooses K tokens, those of its best beam.

    Args:
        target: the target model.
        cache: the target's cache.
        beams: settings of the beam search.
        length: number of tokens K of a step.
    """

    def __init__(self, target: LanguageModel, cache: TextCache, beams: Beams, length: int) -> None:
        self.target, self.cache, self.beams, self.length = target, cache, beams, length

    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        return [replace(self._step(request), from_target=True) for request in requests]

    def _step(self, request: Request) -> Draft:
        """Return the request's next tokens as a draft."""
        unread = request.text[self.cache.length(request) :]  # several tokens if the cache lacks the end of the beam
        return draft_beams(
            TextReader(self.target, self.cache, request), unread, self.beams,
            min(self.length, request.max_draft + 1), request.sampling, request.rng,
            vocab_size=self.target.vocab_size, stop_tokens=request.stop_tokens,
        )  # fmt: skip
