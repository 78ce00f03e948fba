"""Responses of OpenAI's completions API, in one piece or as server-sent events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import ClassVar

from ..common.json_file import JsonObject, json_line
from ..infer.recorder import TokenLogprob
from ..infer.text_stream import INCOMPLETE, TokenTexts
from .choice import Choice, Delta
from .metrics import speculation_report

DONE = "data: [DONE]\n\n"


def event(content: JsonObject) -> str:
    """One server-sent event."""
    return f"data: {json_line(content, (',', ':'))}\n\n"


def usage(prompt_tokens: int, choices: list[Choice]) -> dict[str, int]:
    """Token counts; each prompt counts once however many choices it has."""
    completion = sum(choice.tokens for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": prompt_tokens + completion,
    }


class Format(ABC):
    """How one of the two kinds of response writes a choice.

    Attributes:
        opening: what a stream begins with for each choice, if it does.
    """

    prefix: ClassVar[str]
    object: ClassVar[str]
    chunk_object: ClassVar[str]
    opening: ClassVar[JsonObject | None] = None

    def __init__(self, id: str, model: str, created: int, texts: TokenTexts) -> None:
        self.id, self.texts = f"{self.prefix}-{id}", texts
        self.head = {"id": self.id, "object": self.object, "created": created, "model": model}
        self.lengths: Counter[int] = Counter()  # characters of each choice so far

    @abstractmethod
    def content(self, delta: Delta, *, whole: bool) -> JsonObject:
        """The text of a choice, all of it or what it gained."""

    @abstractmethod
    def logprobs(self, choice: Choice, delta: Delta) -> JsonObject:
        """The log probabilities of a choice that asked for them."""

    def entry(self, choice: Choice, delta: Delta, *, whole: bool) -> JsonObject:
        """A choice of a response in one piece (``whole``) or of a chunk, with the reason why it ended, if it has."""
        wanted = choice.recorder is not None and choice.recorder.top_logprobs is not None
        logprobs = {"logprobs": self.logprobs(choice, delta) if wanted else None}
        told = {"index": choice.index, **self.content(delta, whole=whole), **logprobs}
        return told | {"finish_reason": choice.finish_reason} | trace(delta, choice, self.texts)


class ChatFormat(Format):
    """``chat.completion``."""

    prefix, object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"
    opening: ClassVar[JsonObject | None] = {"delta": {"role": "assistant", "content": ""}, "logprobs": None}

    def content(self, delta: Delta, *, whole: bool) -> JsonObject:
        if whole:
            return {"message": {"role": "assistant", "content": delta.text, "refusal": None}}
        return {"delta": {"content": delta.text}}

    def logprobs(self, choice: Choice, delta: Delta) -> JsonObject:
        entries = [
            self._token(one.token, one.logprob) | {"top_logprobs": [self._token(*other) for other in one.top]}
            for one in delta.logprobs
        ]
        return {"content": entries, "refusal": None}

    def _token(self, token: int, logprob: float) -> JsonObject:
        return {"token": self.texts.text(token), "logprob": logprob, "bytes": self.texts.bytes(token)}


class TextFormat(Format):
    """``text_completion``."""

    prefix, object, chunk_object = "cmpl", "text_completion", "text_completion"

    def content(self, delta: Delta, *, whole: bool) -> JsonObject:
        return {"text": delta.text}

    def logprobs(self, choice: Choice, delta: Delta) -> JsonObject:
        self.lengths[choice.index] += len(delta.text)
        return {
            "tokens": [self.texts.text(one.token) for one in delta.logprobs],
            "token_logprobs": [one.logprob for one in delta.logprobs],
            "top_logprobs": [self._top(one) for one in delta.logprobs],
            "text_offset": [min(place, self.lengths[choice.index]) for place in delta.places],
        }

    def _top(self, one: TokenLogprob) -> dict[str, float]:
        """The best by their texts; of tokens that read the same, such as parts of characters, the most probable."""
        found: dict[str, float] = {}
        for token, logprob in one.top:
            found.setdefault(self.texts.text(token), logprob)
        return found


def whole_response(style: Format, choices: list[Choice], deltas: list[Delta], prompt_tokens: int) -> JsonObject:
    """The response in one piece."""
    return {
        **style.head,
        "choices": [style.entry(*of, whole=True) for of in zip(choices, deltas, strict=True)],
        "usage": usage(prompt_tokens, choices),
        "metrics": {"speculative_decoding": speculation_report([choice.request.output for choice in choices])},
    }


def chunk(style: Format, choices: list[JsonObject]) -> JsonObject:
    """A chunk of a stream."""
    return {**style.head, "object": style.chunk_object, "choices": choices}


def trace(delta: Delta, choice: Choice, texts: TokenTexts) -> JsonObject:
    """The rounds of a choice, if its request asked for them."""
    if choice.recorder is None or not choice.recorder.drafts:
        return {}

    def shown(token: int) -> JsonObject:
        text = texts.text(token)
        return {"text": text, "bytes": texts.bytes(token)} if INCOMPLETE in text else {"text": text}

    rounds = [
        {
            "drafted": [vars(one) | shown(one.token) for one in drafted],
            "emitted": [{"token": token} | shown(token) for token in emitted],
            "stopped_by": stopped_by,
        }
        for drafted, emitted, stopped_by in delta.rounds
    ]
    return {"rounds": rounds}
