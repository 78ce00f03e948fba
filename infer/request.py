"""A request: a prompt, its continuation and all its state; and the interface of drafters, which propose its tokens.

Models and decoders hold no state of a request, so any number of requests may share a forward.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from ..controllers.acceptance.ngram_index import NgramIndex
from ..controllers.length import LengthController
from ..controllers.sampling import SamplingParams
from .distribution import TokenDistribution
from .draft import Draft
from .generation import Generation, Round
from .random_source import RandomSource
from .text_stream import PLAIN, TextStream, TextStyle
from .verify import Verdict, Verifier


class Drafter(ABC):
    """Proposes drafts, using each request's random source, length controller and sampling parameters.

    It owns the caches of its draft models, and serves all requests of an engine together, which share its forwards.

    Attributes:
        reads_states: whether it reads ``Request.states``, the target's hidden states.
    """

    reads_states = False

    def start(self, requests: Sequence[Request]) -> None:  # noqa: B027 — not every drafter prepares something
        """Add requests whose prompts the target has read."""

    @abstractmethod
    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        """A draft for each request, at most ``max_draft`` tokens deep."""

    def commit(self, request: Request, draft: Draft, path: list[int]) -> None:  # noqa: B027 — not every one has a cache
        """Called when the nodes ``path`` of ``draft`` were accepted; ``request.text`` does not include them yet."""

    def timed(self, tokens: int, forwards: int, seconds: float) -> None:  # noqa: B027 — most do not go by time
        """Called after a round with its wall time; its drafts had so many tokens and forwards at most."""

    def release(self, request: Request) -> None:  # noqa: B027 — not every one holds something
        """Remove a request."""

    def room(self, request: Request) -> int:
        """Number of cache columns needed after a request's prompt."""
        return request.budget

    def clear(self) -> None:  # noqa: B027 — not every drafter holds something
        """Remove all requests, also after an interrupted round."""


class Recorder(Protocol):
    """Records the rounds of one request, such as :class:`~specpilot.infer.recorder.RoundRecorder`."""

    def record(
        self, request: Request, draft: Draft, verdict: Verdict, p: TokenDistribution, logits: Tensor
    ) -> None: ...


@dataclass(frozen=True)
class DraftingArm:
    """A drafter and a length controller."""

    drafter: Drafter
    length: LengthController


@dataclass(eq=False)
class Request:
    """A prompt and its continuation so far.

    Attributes:
        prompt: token ids of the prompt.
        sampling: sampling parameters of both models.
        rng: random source of this request.
        budget: maximum number of new tokens.
        stop_tokens: ids that end the text.
        style: what of the tokens its text has; its stop strings end the output as well.
        stopping: looks for them; None without any.
        verify: the verification rule.
        arms: the arms; one is chosen when the prompt has been read.
        output: generated tokens, trace and counters.
        text: tokens that the target reads: prompt and output; for an encoder-decoder start token and output.
        ngrams: an n-gram index of ``text``.
        drafter, length: the chosen arm's drafter, and this request's copy of its length controller.
        shared_length: the length controller that ``length`` is a copy of.
        embedding: (d,) the prompt's embedding for the router; None with a single arm.
        drafting: whether the drafter has been started.
        ended: whether the text is complete, by its budget or a stop token.
        error: the exception by which the request failed, or None.
        cancelled: whether the caller no longer waits for it.
        states: the target's hidden states that a drafter which reads them has not read yet, (n, d) of each round.
        recorder: records log probabilities and drafts of the rounds; None records nothing.
    """

    prompt: list[int]
    sampling: SamplingParams
    rng: RandomSource
    budget: int
    stop_tokens: frozenset[int]
    verify: Verifier
    arms: Sequence[DraftingArm]
    output: Generation
    text: list[int] = field(default_factory=list)
    embedding: Tensor | None = None
    drafting: bool = False
    ended: bool = False
    error: BaseException | None = None
    cancelled: bool = False
    states: list[Tensor] = field(default_factory=list)
    recorder: Recorder | None = None
    style: TextStyle = PLAIN
    stopping: TextStream | None = None

    def begin(self, text: list[int]) -> None:
        """Set the first tokens of the target's text."""
        self.text = text
        self.ngrams = NgramIndex(self.text)

    def choose(self, arm: int) -> None:
        """Use the arm with index ``arm``."""
        self.drafter, self.shared_length = self.arms[arm].drafter, self.arms[arm].length
        self.length = copy(self.shared_length)
        self.length.start_text()

    @property
    def reads_states(self) -> bool:
        """Whether the drafter of an arm reads the target's hidden states."""
        return any(arm.drafter.reads_states for arm in self.arms)

    def add_states(self, states: Tensor, draft: Draft, path: list[int]) -> None:
        """Add the states (n, d) of tokens that the target has read: new ones of the text, and ``path`` of ``draft``."""
        new = len(states) - len(draft.tokens)
        self.states.append(torch.cat([states[:new], states[new:][path]]))  # a copy: ``states`` are part of a batch's

    @property
    def remaining(self) -> int:
        """Number of tokens left in the budget."""
        return self.budget - len(self.output.tokens)

    @property
    def max_draft(self) -> int:
        """Maximum depth of a draft, which leaves room for the target's own token."""
        return self.remaining - 1

    @property
    def finished(self) -> bool:
        return self.ended or self.cancelled or self.error is not None

    def append(self, draft: Draft, verdict: Verdict) -> None:
        """Append the accepted tokens of a draft and the target's own token."""
        steered = len(draft.tokens) - draft.copied
        if steered and verdict.accepted >= draft.copied and not draft.from_target:
            self.length.end_round(steered, verdict.accepted - draft.copied)
        emitted = self._record(draft, verdict)
        self.text += emitted
        if len(self.output.tokens) >= self.budget:
            self.ended = True

    def _ends(self, token: int) -> bool:
        """Whether ``token``, the next of the output, ends it."""
        if self.stopping is not None:
            self.stopping.push([token])
        if (self.stopping is not None and self.stopping.ended) or token in self.style.stop_token_ids:
            self.output.finish_reason = "stop"
        elif token in self.stop_tokens:
            self.output.finish_reason = "eos"
        else:
            return False
        self.ended = True
        return True

    def _record(self, draft: Draft, verdict: Verdict) -> list[int]:
        """Add the round of a verified draft to the output and count its forwards; returns the round's tokens."""
        emitted, stats = [*(draft.tokens[node] for node in verdict.path), verdict.token], self.output.stats
        if draft.from_target:  # its forwards read one token per beam
            stats.n_target_forwards += draft.n_forwards
            return self.output.record(Round([], [], emitted), self._ends)
        stats.n_draft_forwards += draft.n_forwards
        stats.n_target_forwards += 1
        if self.output.rounds:  # the first token comes from the prefill
            stats.n_verified_tokens += len(draft.tokens) + 1
        round = Round(draft.tokens, verdict.path, emitted, verdict.ratios, draft.parents, draft.copied)
        return self.output.record(round, self._ends)
