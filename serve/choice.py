"""One text of a response while it grows: tokens become text, stop strings end it, log probabilities go along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from ..controllers.length import MAX_DRAFT
from ..infer.recorder import DraftedToken, RoundRecorder, TokenLogprob
from ..infer.request import Request
from ..infer.text_stream import TextStream
from .worker import News


@dataclass(frozen=True)
class DraftedRound:
    """A round as the trace of a response reports it.

    Attributes:
        drafted: the draft's tokens.
        emitted: the tokens the round added to the text.
        stopped_by: why the draft was not longer: ``"controller"``, ``"end of text"``, ``"max_tokens"``,
            ``"longest draft"``, or ``"prompt"`` for the round that reads the prompt and drafts nothing.
    """

    drafted: list[DraftedToken]
    emitted: list[int]
    stopped_by: str


@dataclass
class Delta:
    """What a choice gained.

    Attributes:
        text: new text, certain not to change.
        tokens: new tokens.
        logprobs: theirs, if they were asked for.
        rounds: the rounds that gave them, if a trace was asked for.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    rounds: list[DraftedRound] = field(default_factory=list)


class Choice:
    """One text of a response.

    Args:
        index: its number in the response.
        stops: strings that end the text; they are not part of it.

    Attributes:
        finish_reason: ``"stop"`` (end token or stop string) or ``"length"``; None while it grows.
    """

    def __init__(self, index: int, request: Request, tokenizer: PreTrainedTokenizerBase, stops: Sequence[str]) -> None:
        self.index, self.request, self.stops = index, request, list(stops)
        self.stream = TextStream(tokenizer)
        self.pending = ""  # the end of the text so far, which may turn out to begin a stop string
        self.tokens = 0
        self.finish_reason: str | None = None

    @property
    def recorder(self) -> RoundRecorder | None:
        recorder = self.request.recorder
        return recorder if isinstance(recorder, RoundRecorder) else None

    def push(self, news: News) -> Delta:
        """Take in new rounds; after ``finish_reason`` is set there is nothing more to push."""
        delta = Delta(tokens=[token for round in news.rounds for token in round.emitted])
        if self.recorder is not None:
            self._add_recorded(delta, news, self.recorder)
        self.tokens += len(delta.tokens)
        text = self.pending + self.stream.push(delta.tokens)
        if news.finished:
            text += self.stream.flush()
        cut = first_stop(text, self.stops)
        if cut is not None:
            delta.text, self.pending, self.finish_reason = text[:cut], "", "stop"
            return delta
        held = 0 if news.finished else held_back(text, self.stops)
        delta.text, self.pending = text[: len(text) - held], text[len(text) - held :]
        if news.finished:
            self.finish_reason = "stop" if self.request.output.finish_reason == "eos" else "length"
        return delta

    def _add_recorded(self, delta: Delta, news: News, recorder: RoundRecorder) -> None:
        if recorder.top_logprobs is not None:
            delta.logprobs = recorder.logprobs[self.tokens : self.tokens + len(delta.tokens)]
        if recorder.drafts:
            before = self.tokens
            for number, round in enumerate(news.rounds, start=news.first):
                drafted = recorder.drafted[number]
                delta.rounds.append(DraftedRound(drafted, round.emitted, self._stopped_by(number, drafted, before)))
                before += len(round.emitted)

    def _stopped_by(self, number: int, drafted: list[DraftedToken], before: int) -> str:
        """Why round ``number``, after ``before`` tokens, did not draft more."""
        if number == 0:
            return "prompt"  # its forward reads the prompt
        if drafted and drafted[-1].token in self.request.stop_tokens:
            return "end of text"
        if len(drafted) >= self.request.budget - before - 1:
            return "max_tokens"
        return "longest draft" if len(drafted) == MAX_DRAFT else "controller"


def first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the earliest of ``stops`` begins in ``text``; None if none is there."""
    found = [place for place in (text.find(stop) for stop in stops) if place >= 0]
    return min(found, default=None)


def held_back(text: str, stops: Sequence[str]) -> int:
    """How many of the last characters of ``text`` may begin one of ``stops``."""
    longest = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:length]):
                longest = length
                break
    return longest
