"""Responses of OpenAI's completions API, in one piece or as server-sent events."""

from __future__ import annotations

import json
from typing import Any, ClassVar, Protocol

from ..infer.recorder import TokenLogprob
from ..infer.text_stream import INCOMPLETE, TokenTexts
from .choice import Choice, Delta
from .metrics import speculation_report

DONE = "data: [DONE]\n\n"


def event(content: dict[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(content, ensure_ascii=False, separators=(',', ':'))}\n\n"


def usage(prompt_tokens: int, choices: list[Choice]) -> dict[str, int]:
    """Token counts; each prompt counts once however many choices it has."""
    completion = sum(choice.tokens for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": prompt_tokens + completion,
    }


class Format(Protocol):
    """How one of the two kinds of response writes a choice."""

    id: str
    texts: TokenTexts
    head: dict[str, Any]
    chunk_object: str
    opening: ClassVar[dict[str, Any] | None]

    def choice(self, choice: Choice, whole: Delta) -> dict[str, Any]:
        """A choice of a response in one piece."""

    def delta(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        """A choice of a chunk, without its finish reason."""


class ChatFormat:
    """``chat.completion``."""

    object, chunk_object = "chat.completion", "chat.completion.chunk"
    opening: ClassVar[dict[str, Any] | None] = {"delta": {"role": "assistant", "content": ""}, "logprobs": None}

    def __init__(self, id: str, model: str, created: int, texts: TokenTexts) -> None:
        self.id, self.texts = f"chatcmpl-{id}", texts
        self.head = {"id": self.id, "object": self.object, "created": created, "model": model}

    def choice(self, choice: Choice, whole: Delta) -> dict[str, Any]:
        message = {"role": "assistant", "content": whole.text, "refusal": None}
        return {"message": message, "logprobs": self._logprobs(choice, whole)}

    def delta(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        return {"delta": {"content": delta.text}, "logprobs": self._logprobs(choice, delta)}

    def _logprobs(self, choice: Choice, delta: Delta) -> dict[str, Any] | None:
        if choice.recorder is None or choice.recorder.top_logprobs is None:
            return None
        return {"content": [self._entry(one) for one in delta.logprobs], "refusal": None}

    def _entry(self, one: TokenLogprob) -> dict[str, Any]:
        return self._token(one.token, one.logprob) | {"top_logprobs": [self._token(*other) for other in one.top]}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        return {"token": self.texts.text(token), "logprob": logprob, "bytes": self.texts.bytes(token)}


class TextFormat:
    """``text_completion``."""

    object = chunk_object = "text_completion"
    opening: ClassVar[dict[str, Any] | None] = None

    def __init__(self, id: str, model: str, created: int, texts: TokenTexts) -> None:
        self.id, self.texts = f"cmpl-{id}", texts
        self.head = {"id": self.id, "object": self.object, "created": created, "model": model}
        self.lengths: dict[int, int] = {}  # characters of each choice so far

    def choice(self, choice: Choice, whole: Delta) -> dict[str, Any]:
        return self.delta(choice, whole)

    def delta(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        return {"text": delta.text, "logprobs": self._logprobs(choice, delta)}

    def _logprobs(self, choice: Choice, delta: Delta) -> dict[str, Any] | None:
        if choice.recorder is None or choice.recorder.top_logprobs is None:
            return None
        length = self.lengths[choice.index] = self.lengths.get(choice.index, 0) + len(delta.text)
        return {
            "tokens": [self.texts.text(one.token) for one in delta.logprobs],
            "token_logprobs": [one.logprob for one in delta.logprobs],
            "top_logprobs": [self._top(one) for one in delta.logprobs],
            "text_offset": [min(place, length) for place in delta.places],
        }

    def _top(self, one: TokenLogprob) -> dict[str, float]:
        """The best by their texts; of tokens that read the same, such as parts of characters, the most probable."""
        found: dict[str, float] = {}
        for token, logprob in one.top:
            found.setdefault(self.texts.text(token), logprob)
        return found


def whole_response(style: Format, choices: list[Choice], deltas: list[Delta], prompt_tokens: int) -> dict[str, Any]:
    """The response in one piece."""
    entries = [
        {"index": choice.index, **style.choice(choice, whole), "finish_reason": choice.finish_reason}
        | trace(whole, choice, style.texts)
        for choice, whole in zip(choices, deltas, strict=True)
    ]
    return {
        **style.head,
        "choices": entries,
        "usage": usage(prompt_tokens, choices),
        "metrics": {"speculative_decoding": speculation_report([choice.request.output for choice in choices])},
    }


def chunk(style: Format, choices: list[dict[str, Any]]) -> dict[str, Any]:
    """A chunk of a stream."""
    return {**style.head, "object": style.chunk_object, "choices": choices}


def delta_chunk(style: Format, choice: Choice, delta: Delta) -> dict[str, Any]:
    """A chunk with what one choice gained, and why it ended where it has."""
    entry = {"index": choice.index, **style.delta(choice, delta), "finish_reason": choice.finish_reason}
    return chunk(style, [entry | trace(delta, choice, style.texts)])


def trace(delta: Delta, choice: Choice, texts: TokenTexts) -> dict[str, Any]:
    """The rounds of a choice, if its request asked for them."""
    if choice.recorder is None or not choice.recorder.drafts:
        return {}

    def shown(token: int) -> dict[str, Any]:
        text = texts.text(token)
        return {"text": text, "bytes": texts.bytes(token)} if INCOMPLETE in text else {"text": text}

    rounds = [
        {
            "drafted": [vars(one) | shown(one.token) for one in round.drafted],
            "emitted": [{"token": token} | shown(token) for token in round.emitted],
            "stopped_by": round.stopped_by,
        }
        for round in delta.rounds
    ]
    return {"rounds": rounds}
