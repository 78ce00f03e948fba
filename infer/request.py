"""One request: a prompt being continued, with everything that is its own.

Nothing of a request lives on a model or a decoder, so any number of them may share a forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..controllers.acceptance.ngram_index import NgramIndex
from ..controllers.length import LengthController
from ..controllers.sampling import SamplingParams
from .draft import Draft
from .generation import Generation
from .random_source import RandomSource
from .verify import Verdict, Verifier

if TYPE_CHECKING:
    from torch import Tensor

    from .drafters import Drafter
    from .recorder import RoundRecorder


@dataclass(frozen=True)
class Arm:
    """A way to draft: what proposes, and what decides when it stops."""

    drafter: Drafter
    length: LengthController


@dataclass(eq=False)
class Request:
    """A prompt and its continuation so far.

    Attributes:
        prompt: token ids the target is given.
        sampling: how both models' logits become distributions.
        rng: the source of every random decision of this request.
        budget: tokens to generate at most.
        stop_tokens: ids that end the text.
        verify: the verification rule.
        arms: the ways to draft; one is chosen when the prompt has been read.
        output: the tokens generated, the trace and the counters.
        text: what the target reads: prompt and output, for an encoder-decoder start token and output.
        ngrams: an index of ``text``.
        drafter, length: the chosen arm's drafter, and this request's own copy of its length controller.
        shared_length: the length controller that ``length`` is a copy of.
        embedding: (d,) what a router chose the arm by; None where there was one arm.
        drafting: the drafter has read the prompt.
        ended: the text has its last token: the budget is spent, or a stop token came.
        error: why the request failed; None while it has not.
        cancelled: nobody waits for it any longer.
        recorder: keeps log probabilities and drafts of the rounds; None keeps neither.
    """

    prompt: list[int]
    sampling: SamplingParams
    rng: RandomSource
    budget: int
    stop_tokens: frozenset[int]
    verify: Verifier
    arms: Sequence[Arm]
    output: Generation
    text: list[int] = field(default_factory=list)
    embedding: Tensor | None = None
    drafting: bool = False
    ended: bool = False
    error: BaseException | None = None
    cancelled: bool = False
    recorder: RoundRecorder | None = None

    def begin(self, text: list[int]) -> None:
        """The target's text begins with ``text``."""
        self.text = text
        self.ngrams = NgramIndex(self.text)

    def choose(self, arm: int) -> None:
        """Draft by this arm from now on."""
        self.drafter, self.shared_length = self.arms[arm].drafter, self.arms[arm].length
        self.length = copy(self.shared_length)
        self.length.start_text()

    @property
    def remaining(self) -> int:
        """Tokens that the budget leaves."""
        return self.budget - len(self.output.tokens)

    @property
    def max_draft(self) -> int:
        """How deep a draft may be: the token after it is the target's own."""
        return self.remaining - 1

    @property
    def finished(self) -> bool:
        return self.ended or self.cancelled or self.error is not None

    def append(self, draft: Draft, verdict: Verdict) -> None:
        """What a round kept of its draft, and the token after it."""
        steered = len(draft.tokens) - draft.copied
        if steered and verdict.accepted >= draft.copied and not draft.from_target:
            self.length.end_round(steered, verdict.accepted - draft.copied)
        emitted = self.output.record_verdict(draft, verdict, self.stop_tokens)
        self.text += emitted
        if emitted[-1] in self.stop_tokens:
            self.output.finish_reason = "eos"
            self.ended = True
        elif len(self.output.tokens) >= self.budget:
            self.ended = True
