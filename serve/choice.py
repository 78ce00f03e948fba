"""A growing text of a response, with its log probabilities and rounds."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..controllers.length import MAX_DRAFT
from ..infer.core import Request
from ..infer.recorder import DraftedToken, RoundRecorder, TokenLogprob
from ..infer.text_stream import TextStream
from .worker import Update


@dataclass
class Delta:
    """The growth of a choice.

    Attributes:
        text: new text, which will not change any more.
        tokens: new tokens.
        logprobs: log probabilities of the new tokens, if requested.
        places: number of characters of the choice's text before each new token, if log probabilities are requested.
        rounds: the new rounds, if a trace is requested. Each has the tokens of the draft, the tokens that it added to
            the text, and the reason why the draft ended: ``"controller"``, ``"end of text"``, ``"max_tokens"``,
            ``"longest draft"``, or ``"prompt"`` for the round that reads the prompt and drafts nothing.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    rounds: list[tuple[list[DraftedToken], list[int], str]] = field(default_factory=list)


class Choice:
    """A text of a response.

    Args:
        index: the number of the text in the response.
        request: the request that decodes the text.
        stream: converts the tokens to text.
        recorder: records the rounds; None if the response has neither log probabilities nor drafts.

    Attributes:
        tokens: number of tokens so far.
        finish_reason: ``"stop"`` (an end token or stop string) or ``"length"``; None while the text grows.
    """

    def __init__(self, index: int, request: Request, stream: TextStream, recorder: RoundRecorder | None = None) -> None:
        self.index, self.request, self.stream, self.recorder = index, request, stream, recorder
        self.tokens = 0
        self.finish_reason: str | None = None

    def push(self, update: Update) -> Delta:
        """Add new rounds and return the growth. Not to be called after ``finish_reason`` is set."""
        delta = Delta(tokens=[token for round in update.rounds for token in round.emitted])
        if self.recorder is not None:
            self._add_recorded(delta, update, self.recorder)
        delta.text = self.stream.push(delta.tokens)
        delta.places = self.stream.places[self.tokens :]
        self.tokens += len(delta.tokens)
        if update.finished:
            delta.text += self.stream.flush()
            self.finish_reason = "stop" if self.request.output.finish_reason in ("eos", "stop") else "length"
        return delta

    def _add_recorded(self, delta: Delta, update: Update, recorder: RoundRecorder) -> None:
        """Add the log probabilities and the rounds that ``recorder`` recorded to ``delta``."""
        if recorder.top_logprobs is not None:
            delta.logprobs = recorder.logprobs[self.tokens : self.tokens + len(delta.tokens)]
        if recorder.drafts:
            before = self.tokens
            for number, round in enumerate(update.rounds, start=update.first):
                drafted = recorder.drafted[number]
                delta.rounds.append((drafted, round.emitted, self._stopped_by(number, drafted, before)))
                before += len(round.emitted)

    def _stopped_by(self, number: int, drafted: list[DraftedToken], before: int) -> str:
        """Return the reason why the draft of a round ended.

        Args:
            number: index of the round.
            drafted: tokens of the draft.
            before: number of tokens of the text before the round.
        """
        if number == 0:
            return "prompt"  # its forward reads the prompt
        depth = 1 + max((token.position for token in drafted), default=-1)
        last = [token.token for token in drafted if token.position == depth - 1]
        if last and self.request.stop_tokens.issuperset(last):
            return "end of text"
        if depth >= self.request.budget - before - 1:
            return "max_tokens"
        return "longest draft" if depth == MAX_DRAFT else "controller"
