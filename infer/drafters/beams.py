"""Beam-sampled drafts (Qin et al. 2025, §2.1, eq. 2): the most probable of W sequences drawn jointly.

At every step the candidates are pairs of a beam and a next token, weighted by the product of their probabilities; W of
them are drawn without replacement, or the W of largest weight taken. Probabilities are those after the sampling
parameters, so a beam's weight is the probability of its tokens in decoding. A beam with a stop token ends and remains a
candidate.

All beams are read in one forward, as branches of a tree in one cache, so that a beam that forks copies nothing. At the
end the best beam's columns are moved to follow the text.
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

MOST_BEAMS = 64


@dataclass(frozen=True)
class Beams:
    """Settings of the beam search.

    Attributes:
        width: number of beams W.
        argmax: take the W candidates of largest weight instead of drawing them.

    Raises:
        InputError: the width is out of range.
    """

    width: int = 4
    argmax: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.width <= MOST_BEAMS:
            raise InputError(f"beams={self.width}: give 1 to {MOST_BEAMS}")

    def check_sampling(self, sampling: SamplingParams, vocab_size: int) -> None:
        """Raise InputError for sampling parameters that keep fewer tokens than there are beams."""
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
    """A sequence being drafted.

    Attributes:
        tokens: its tokens.
        distributions: distribution of each token, N = 1.
        columns: cache columns of its tokens except the last.
        log_q: log-probability of its tokens in nats.
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
    """The beam of the largest joint probability, as a chain of at most ``length`` tokens or up to a stop token.

    Args:
        reader: a reader of the draft, or of MTJD's target, which has read all but the ``unread`` last tokens of the
            text. Afterwards it has also read the draft's tokens except the last.
    """
    if length < 1:
        return NO_DRAFT
    found = [Beam([], [], [], 0.0)]
    trunk, n_forwards = 0, 0
    while True:
        live = [beam for beam in found if not _ended(beam, stop_tokens)]
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
        ended = [beam for beam in found if _ended(beam, stop_tokens)]
        found = _spread(live, ended, TokenDistribution.from_logits(sampling, logits, vocab_size), beams, rng)
    best = max(found, key=lambda beam: beam.log_q)
    reader.keep(trunk, best.columns)
    return Draft.chain(best.tokens, best.distributions, n_forwards)


def _ended(beam: Beam, stop_tokens: frozenset[int]) -> bool:
    return bool(beam.tokens) and beam.tokens[-1] in stop_tokens


def _spread(
    live: list[Beam], ended: list[Beam], distribution: TokenDistribution, beams: Beams, rng: RandomSource
) -> list[Beam]:
    """The next beams, from the ``live`` ones with their next-token ``distribution``, and the ``ended`` ones."""
    most = max(beam.log_q for beam in (*live, *ended))  # divides all weights, to avoid underflow
    each = distribution.probabilities.cpu().double()  # (B, k)
    shares = each.new_tensor([math.exp(beam.log_q - most) for beam in live])
    rest = each.new_tensor([math.exp(beam.log_q - most) for beam in ended])
    weights = torch.cat([(shares[:, None] * each).flatten(), rest])
    require_finite(float(weights.sum()))
    spread: list[Beam] = []
    for candidate in _choose(weights, beams, rng):
        row, choice = divmod(candidate, each.shape[1])
        if row >= len(live):
            spread.append(ended[candidate - each.numel()])
            continue
        beam = live[row]
        log_q = beam.log_q + math.log(float(each[row, choice]))
        spread.append(
            Beam(
                [*beam.tokens, distribution.token(row, choice)],
                [*beam.distributions, distribution.part(row, row + 1)],
                beam.columns,
                log_q,
            )
        )
    return spread


def _choose(weights: torch.Tensor, beams: Beams, rng: RandomSource) -> list[int]:
    """At most W candidates with positive ``weights`` (C,) float64, by decreasing weight or in the order drawn."""
    possible = min(beams.width, int((weights > 0).sum()))
    if beams.argmax:
        return weights.topk(possible).indices.tolist()
    left: list[float] = weights.tolist()
    chosen = []
    for _ in range(possible):
        chosen.append(rng.pick(left))
        left[chosen[-1]] = 0.0
    return chosen


class BeamDrafter(ModelDrafter):
    """MTAD: the beam of the largest joint probability under the draft model, ``length`` tokens long (γ)."""

    def __init__(self, model: LanguageModel, vocab_size: int, beams: Beams, length: int) -> None:
        super().__init__(model, vocab_size)
        self.beams, self.length = beams, length

    def room(self, request: Request) -> int:
        return request.budget + self.beams.width * self.length

    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        return [self._draft(request, self.unread(request)) for request in requests]

    def _draft(self, request: Request, unread: list[int]) -> Draft:
        length = min(self.length, self.reach(request))
        if not unread or length < 1:
            return NO_DRAFT
        self.read_prompts([request])
        return draft_beams(
            TextReader(self.model, self.cache, request), unread, self.beams, length, request.sampling, request.rng,
            vocab_size=self.vocab_size, stop_tokens=request.stop_tokens,
        )  # fmt: skip


class JointDrafter(Drafter):
    """MTJD: in each step the target chooses ``length`` tokens (K), its best beam.

    Args:
        cache: the target's cache.
    """

    def __init__(self, target: LanguageModel, cache: TextCache, beams: Beams, length: int) -> None:
        self.target, self.cache, self.length = target, cache, length
        # A step of one token is sampled, since there is no joint choice (after Definition 3.1).
        self.beams = Beams(1) if length == 1 else beams

    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        return [replace(self._step(request), from_target=True) for request in requests]

    def _step(self, request: Request) -> Draft:
        unread = request.text[self.cache.length(request) :]  # several tokens where the cache has dropped a beam's end
        return draft_beams(
            TextReader(self.target, self.cache, request), unread, self.beams,
            min(self.length, request.max_draft + 1), request.sampling, request.rng,
            vocab_size=self.target.vocab_size, stop_tokens=request.stop_tokens,
        )  # fmt: skip
