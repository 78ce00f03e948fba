"""One text of a response while it grows: tokens become text, log probabilities go along."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..controllers.length import MAX_DRAFT
from ..infer.core import Request
from ..infer.recorder import DraftedToken, RoundRecorder, TokenLogprob
from ..infer.text_stream import TextStream
from .worker import News


@dataclass
class Delta:
    """What a choice gained.

    Attributes:
        text: new text, certain not to change.
        tokens: new tokens.
        logprobs: theirs, if they were asked for.
        places: the characters of the choice's text before each of them, if log probabilities were asked for.
        rounds: of each round that gave them, if a trace was asked for, the draft's tokens, those that it added to the
            text, and why the draft was not longer: ``"controller"``, ``"end of text"``, ``"max_tokens"``,
            ``"longest draft"``, or ``"prompt"`` for the round that reads the prompt and drafts nothing.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    rounds: list[tuple[list[DraftedToken], list[int], str]] = field(default_factory=list)


class Choice:
    """One text of a response.

    Args:
        index: its number in the response.
        stream: turns its tokens into text.
        recorder: records its rounds; None if the response has no log probabilities and no drafts.

    Attributes:
        finish_reason: ``"stop"`` (an end token or stop string) or ``"length"``; None while it grows.
    """

    def __init__(self, index: int, request: Request, stream: TextStream, recorder: RoundRecorder | None = None) -> None:
        self.index, self.request, self.stream, self.recorder = index, request, stream, recorder
        self.tokens = 0
        self.finish_reason: str | None = None

    def push(self, news: News) -> Delta:
        """Take in new rounds; after ``finish_reason`` is set there is nothing more to push."""
        delta = Delta(tokens=[token for round in news.rounds for token in round.emitted])
        if self.recorder is not None:
            self._add_recorded(delta, news, self.recorder)
        delta.text = self.stream.push(delta.tokens)
        delta.places = self.stream.places[self.tokens :]
        self.tokens += len(delta.tokens)
        if news.finished:
            delta.text += self.stream.flush()
            self.finish_reason = "stop" if self.request.output.finish_reason in ("eos", "stop") else "length"
        return delta

    def _add_recorded(self, delta: Delta, news: News, recorder: RoundRecorder) -> None:
        if recorder.top_logprobs is not None:
            delta.logprobs = recorder.logprobs[self.tokens : self.tokens + len(delta.tokens)]
        if recorder.drafts:
            before = self.tokens
            for number, round in enumerate(news.rounds, start=news.first):
                drafted = recorder.drafted[number]
                delta.rounds.append((drafted, round.emitted, self._stopped_by(number, drafted, before)))
                before += len(round.emitted)

    def _stopped_by(self, number: int, drafted: list[DraftedToken], before: int) -> str:
        """Why round ``number``, after ``before`` tokens, did not draft more."""
        if number == 0:
            return "prompt"  # its forward reads the prompt
        depth = 1 + max((one.position for one in drafted), default=-1)
        last = [one.token for one in drafted if one.position == depth - 1]
        if last and self.request.stop_tokens.issuperset(last):
            return "end of text"
        if depth >= self.request.budget - before - 1:
            return "max_tokens"
        return "longest draft" if depth == MAX_DRAFT else "controller"
