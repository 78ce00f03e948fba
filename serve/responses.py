"""Responses of OpenAI's completions API, whole or as server-sent events."""

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
    """Return ``content`` as a server-sent event."""
    return f"data: {json_line(content, (',', ':'))}\n\n"


def usage(prompt_tokens: int, choices: list[Choice]) -> dict[str, int]:
    """Return the token counts of a response, by OpenAI's names. A prompt with several choices counts once.

    Args:
        prompt_tokens: number of tokens of all prompts.
        choices: the texts of the response.
    """
    completion = sum(choice.tokens for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": prompt_tokens + completion,
    }


class Format(ABC):
    """The format of a kind of response: chat completions or text completions.

    Args:
        id: unique part of the response's id.
        model: name of the model.
        created: time of the request, in seconds since 1970.
        texts: texts of single tokens.

    Attributes:
        prefix: beginning of ids.
        object, chunk_object: types of whole responses and of chunks of a stream.
        opening: content of the first chunk of each choice; None without such a chunk.
    """

    prefix: ClassVar[str]
    object: ClassVar[str]
    chunk_object: ClassVar[str]
    opening: ClassVar[JsonObject | None] = None

    def __init__(self, id: str, model: str, created: int, texts: TokenTexts) -> None:
        self.id, self.texts = f"{self.prefix}-{id}", texts
        self.head = {"id": self.id, "object": self.object, "created": created, "model": model}
        self.lengths: Counter[int] = Counter()  # number of characters so far by choice

    @abstractmethod
    def content(self, delta: Delta, *, whole: bool) -> JsonObject:
        """Return the new text of a choice.

        Args:
            delta: the new text; for a whole response, all of it.
            whole: whether the result is for a whole response, otherwise for a chunk of a stream.
        """

    @abstractmethod
    def logprobs(self, choice: Choice, delta: Delta) -> JsonObject:
        """Return the log probabilities of the tokens in ``delta``, which are new tokens of ``choice``."""

    def entry(self, choice: Choice, delta: Delta, *, whole: bool) -> JsonObject:
        """Return the entry of a choice in a response, with its finish reason.

        A choice that has ended has the seed of its text and the verification rule, also if the request has no seed.

        Args:
            choice: the choice.
            delta: its new text, tokens and rounds; for a whole response, all of them.
            whole: whether the result is for a whole response, otherwise for a chunk of a stream.
        """
        has_logprobs = choice.recorder is not None and choice.recorder.top_logprobs is not None
        logprobs = {"logprobs": self.logprobs(choice, delta) if has_logprobs else None}
        content = {"index": choice.index, **self.content(delta, whole=whole), **logprobs}
        content["finish_reason"] = choice.finish_reason
        if choice.finish_reason is not None:
            content |= {"seed": choice.request.output.seed, "verifier": choice.request.output.verifier}
        return content | trace(delta, choice, self.texts)


class ChatFormat(Format):
    """The format of ``chat.completion``."""

    prefix, object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"
    opening: ClassVar[JsonObject | None] = {"delta": {"role": "assistant", "content": ""}, "logprobs": None}

    def content(self, delta: Delta, *, whole: bool) -> JsonObject:
        if whole:
            return {"message": {"role": "assistant", "content": delta.text, "refusal": None}}
        return {"delta": {"content": delta.text}}

    def logprobs(self, choice: Choice, delta: Delta) -> JsonObject:
        entries = [
            self._token(entry.token, entry.logprob) | {"top_logprobs": [self._token(*pair) for pair in entry.top]}
            for entry in delta.logprobs
        ]
        return {"content": entries, "refusal": None}

    def _token(self, token: int, logprob: float) -> JsonObject:
        """Return a token with its text, log probability and bytes."""
        return {"token": self.texts.text(token), "logprob": logprob, "bytes": self.texts.bytes(token)}


class TextFormat(Format):
    """The format of ``text_completion``."""

    prefix, object, chunk_object = "cmpl", "text_completion", "text_completion"

    def content(self, delta: Delta, *, whole: bool) -> JsonObject:
        return {"text": delta.text}

    def logprobs(self, choice: Choice, delta: Delta) -> JsonObject:
        self.lengths[choice.index] += len(delta.text)
        return {
            "tokens": [self.texts.text(entry.token) for entry in delta.logprobs],
            "token_logprobs": [entry.logprob for entry in delta.logprobs],
            "top_logprobs": [self._top(entry) for entry in delta.logprobs],
            "text_offset": [min(offset, self.lengths[choice.index]) for offset in delta.places],
        }

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """Return the log probabilities of the best tokens by text.

        Of tokens with the same text, such as parts of characters, the most probable one counts.
        """
        logprobs: dict[str, float] = {}
        for token, logprob in entry.top:
            logprobs.setdefault(self.texts.text(token), logprob)
        return logprobs


def whole_response(style: Format, choices: list[Choice], deltas: list[Delta], prompt_tokens: int) -> JsonObject:
    """Return a whole response.

    Args:
        style: the format.
        choices: the texts, which have ended.
        deltas: the whole growth of each of ``choices``.
        prompt_tokens: number of tokens of all prompts.
    """
    return {
        **style.head,
        "choices": [style.entry(choice, delta, whole=True) for choice, delta in zip(choices, deltas, strict=True)],
        "usage": usage(prompt_tokens, choices),
        "metrics": {"speculative_decoding": speculation_report([choice.request.output for choice in choices])},
    }


def chunk(style: Format, choices: list[JsonObject]) -> JsonObject:
    """Return a chunk of a stream in the format ``style``; ``choices`` are results of :meth:`Format.entry`."""
    return {**style.head, "object": style.chunk_object, "choices": choices}


def trace(delta: Delta, choice: Choice, texts: TokenTexts) -> JsonObject:
    """Return the new rounds of a choice; empty if the request does not ask for a trace."""
    if choice.recorder is None or not choice.recorder.drafts:
        return {}

    def token_object(token: int) -> JsonObject:
        text = texts.text(token)
        return {"text": text, "bytes": texts.bytes(token)} if INCOMPLETE in text else {"text": text}

    rounds = [
        {
            "drafted": [vars(token) | token_object(token.token) for token in drafted],
            "emitted": [{"token": token} | token_object(token) for token in emitted],
            "stopped_by": stopped_by,
        }
        for drafted, emitted, stopped_by in delta.rounds
    ]
    return {"rounds": rounds}
