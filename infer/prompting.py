"""Converts prompts to token ids: text, ids in any container, chat messages, or a tokenizer's result."""

from __future__ import annotations

import json
import reprlib
import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import date
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..common.errors import InputError
from ..common.json_file import JsonObject, check_characters, parse_object
from .options import Auto

Message: TypeAlias = JsonObject
# One prompt in plain form, the result of `as_prompts`.
Prompt: TypeAlias = str | list[int] | list[Message]
# User input that is one prompt by its type, and that is several.
SinglePrompt: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, Any]]
SeveralPrompts: TypeAlias = (
    list[str] | tuple[str, ...] | Sequence[Sequence[int]] | Sequence[Sequence[Mapping[str, Any]]]
)
# User input: one prompt or several, in any of these containers.
PromptLike: TypeAlias = str | Sequence[Any] | Mapping[str, Any] | Tensor | np.ndarray[Any, Any]

PLAIN_TEXT = "plain text is continued with chat=False (--no-chat)"
INTEGERS = (torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64)


def as_prompts(prompt: Any, name: str = "prompt") -> tuple[list[Prompt], bool]:
    """Return the prompts in plain form, and true if ``prompt`` is a single prompt.

    One prompt is text; a sequence, 1-D tensor or 1-D array of token ids; a list of chat messages; or a tokenizer's
    result for one text. Several prompts are a sequence of these, such as a list or a column of a ``datasets.Dataset``,
    all of one kind; a 2-D tensor or array with one prompt per row; or a tokenizer's result for several texts. With
    ``return_tensors`` a tokenizer's result always counts as several. With an ``attention_mask``, padding on the left or
    right is removed.

    Args:
        prompt: one prompt or several.
        name: the name of the argument, for messages.

    Raises:
        InputError: the prompt is empty, has ids that are not integers ≥ 0, or has another type.
    """
    if isinstance(prompt, str):
        check_characters(prompt, name)
        return [prompt], True
    if isinstance(prompt, Tensor | np.ndarray):
        return _from_array(prompt, name)
    if isinstance(prompt, Mapping):
        return _from_encoding(prompt, name)
    if not _is_list(prompt):
        raise InputError(
            f"{name}: of type {type(prompt).__name__}; give text, token ids, chat messages, or a list of these"
        )
    if not len(prompt):
        raise InputError(f"{name}=[]: empty; give at least one token")
    kinds = {_kind(element) for element in prompt}
    if len(kinds) > 1:
        raise InputError(f"{name}: a list that mixes {' and '.join(sorted(kinds))}; give prompts of one kind")
    kind = kinds.pop()
    if kind == "token ids":
        return [[_token(element, f"{name}[{i}]") for i, element in enumerate(prompt)]], True
    if kind == "messages":
        return [[_message(element, f"{name}[{i}]") for i, element in enumerate(prompt)]], True
    return _several(prompt, name), False


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase | None,
    prompt: PromptLike,
    *,
    chat: bool | Auto = False,
    system: str | None = None,
    vocab_size: int | None = None,
    day: str | None = None,
    encoder: bool = False,
) -> list[int]:
    """Return the token ids of one prompt.

    Args:
        tokenizer: the tokenizer, which text and messages need.
        prompt: one prompt in any form of :func:`as_prompts`. Messages always use the chat template.
        chat: whether the tokenizer's chat template is applied to text, as one user message; see :func:`uses_template`.
        system: a system message before text or messages.
        vocab_size: the model's vocabulary size; ids must be below it.
        day: the date, as YYYY-MM-DD, that the chat template uses as today's date; see :func:`day_of`.
        encoder: whether an encoder reads the prompt. If not, an end token that some tokenizers append to text is left
            out, because the answer continues the text.

    Raises:
        InputError: the prompt is empty or malformed, several prompts are given, an id is out of range, or a required
            chat template or tokenizer is missing.
    """
    prompts, single = as_prompts(prompt)
    if not single:
        raise InputError(f"prompt: {len(prompts)} prompts in a batch, where one is needed; give one of them")
    ids = _encode(tokenizer, prompts[0], chat, system, day, encoder)
    if vocab_size is not None:
        for position, token in enumerate(ids):
            if token >= vocab_size:
                raise InputError(
                    f"prompt: the id {token} at position {position} is outside the model's vocabulary of {vocab_size} "
                    f"tokens; use its own tokenizer, and ids from 0 to {vocab_size - 1}"
                )
    return ids


def _encode(
    tokenizer: PreTrainedTokenizerBase | None,
    prompt: Prompt,
    chat: bool | Auto,
    system: str | None,
    day: str | None,
    encoder: bool,
) -> list[int]:
    if _is_ids(prompt):
        return prompt
    if tokenizer is None:
        raise InputError("prompt: text needs a tokenizer; pass one to SpeculativeDecoder, or give token ids")
    messages: list[Message] = [] if system is None else [_message({"role": "system", "content": system}, "system")]
    if not isinstance(prompt, str):
        messages += prompt  # type: ignore[arg-type]  # neither text nor ids: messages
    elif not prompt.strip():
        raise InputError(f"prompt={prompt!r}: empty; give some text")
    elif system is not None or uses_template(tokenizer, chat):
        if chat == "auto":
            _warn_of_special_token(tokenizer, prompt)
        messages += [{"role": "user", "content": prompt}]
    ids = _apply_template(tokenizer, messages, day) if messages else _text_ids(tokenizer, str(prompt), encoder)
    if not ids and messages:
        name = tokenizer.name_or_path or type(tokenizer).__name__
        raise InputError(f"{name}: the chat template gives no tokens for the messages; {PLAIN_TEXT}")
    if not ids:
        raise InputError(f"prompt={reprlib.repr(prompt)}: the tokenizer gives no tokens; give other text")
    return ids


def uses_template(tokenizer: PreTrainedTokenizerBase | None, chat: bool | Auto) -> bool:
    """Return true if text is a user message of the chat template: ``chat``, or for "auto" if there is a template."""
    return tokenizer is not None and tokenizer.chat_template is not None if chat == "auto" else chat


def _warn_of_special_token(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    """Warn if text begins with a special token, like text that already has the form of a chat template."""
    special = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    begins = next((token for token in [*special, *tokenizer.all_special_tokens] if text.startswith(token)), None)
    if begins is not None:
        warnings.warn(
            f"prompt: it begins with the special token {begins!r} and the chat template is applied to it; text that is "
            "in the template's form already needs chat=False (--no-chat)",
            stacklevel=2,
        )


def _text_ids(tokenizer: PreTrainedTokenizerBase, text: str, encoder: bool) -> list[int]:
    """Return the ids of plain text, with the special tokens that the tokenizer adds before it.

    Text that already begins with the BOS token, as a chat template writes it, gets no second BOS token. Special tokens
    that the tokenizer appends, such as EOS, are kept for an ``encoder`` only.
    """
    ids = list(tokenizer(text)["input_ids"])
    plain = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    twice = [tokenizer.bos_token_id] * 2
    start = int(ids[:2] == twice and plain[:2] != twice)
    ends = (end for end in range(len(ids), len(plain) - 1, -1) if ids[end - len(plain) : end] == plain)
    return ids[start : len(ids) if encoder else next(ends, len(ids))]


def _is_ids(prompt: Prompt) -> TypeGuard[list[int]]:
    """Return true if ``prompt`` is a list of token ids."""
    return not isinstance(prompt, str) and isinstance(prompt[0], int)


def _apply_template(tokenizer: PreTrainedTokenizerBase, messages: list[Message], day: str | None = None) -> list[int]:
    name = tokenizer.name_or_path or type(tokenizer).__name__
    if tokenizer.chat_template is None:
        raise InputError(f"{name}: the tokenizer has no chat template, which conversations need; {PLAIN_TEXT}")
    fitted = _in_form(messages, _forms(tokenizer, str(tokenizer.chat_template)))
    try:
        dated = None if day is None else _clock(day) + tokenizer.get_chat_template()
        return list(
            tokenizer.apply_chat_template(fitted, chat_template=dated, add_generation_prompt=True, return_dict=False)
        )
    except Exception as error:  # a template is a program and may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        roles = ", ".join(message["role"] for message in messages)
        raise InputError(
            f"{name}: the chat template does not support these messages (roles: {roles}): {reason}"
        ) from error


def as_plain_text(tokenizer: PreTrainedTokenizerBase | None, prompt: Prompt) -> str:
    """Return the text of ``prompt``, which is continued without the chat template.

    Raises:
        InputError: ``prompt`` is a conversation.
    """
    if isinstance(prompt, str):
        return prompt
    none = tokenizer is not None and tokenizer.chat_template is None
    remedy = "give text, since the tokenizer has none" if none else "leave --no-chat out"
    raise InputError(f"a conversation, which needs the chat template; {remedy}")


def _clock(day: str) -> str:
    """Return the beginning of a chat template that sets ``strftime_now`` to the first minute of ``day``."""
    names = [f"%{flag}{letter}" for flag in ("-", "") for letter in "aAbBcdeFGHIjmMpSTuUVwWxXyYZ"]
    values = [(name, date.fromisoformat(day).strftime(name)) for name in names]
    replacements = "".join(f"|replace({json.dumps(name)}, {json.dumps(value)})" for name, value in values)
    return "{%- macro strftime_now(format) -%}{{- format" + replacements + " -}}{%- endmacro +%}"


PROBE = "specpilot"  # content of messages that test templates


@lru_cache(maxsize=16)
def _forms(tokenizer: PreTrainedTokenizerBase, template: str) -> tuple[bool, bool, bool]:
    """Return whether a chat ``template`` supports text as content, a list of parts, and objects as arguments.

    The arguments of a tool call are objects in the form of transformers, and JSON text in the form of OpenAI.
    """
    call = {"id": "123456789", "type": "function", "function": {"name": "f", "arguments": {PROBE: 1}}}
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    is_supported = []
    for content, further_messages in ((PROBE, []), ([{"type": "text", "text": PROBE}], []), ("a", [calling])):
        text = ""
        with suppress(Exception):  # a template is a program and may raise anything
            messages: list[Any] = [{"role": "user", "content": content}, *further_messages]
            text = str(tokenizer.apply_chat_template(messages, tokenize=False))
        printed = [f"'{PROBE}'"] if further_messages else ["'type'", '"type"']  # an object or a list as it prints
        is_supported.append(PROBE in text and not any(form in text for form in printed))
    return is_supported[0], is_supported[1], is_supported[2]


def _in_form(messages: list[Message], forms: tuple[bool, bool, bool]) -> list[Message]:
    """Return ``messages`` in forms that the template supports; newlines join the texts of parts if necessary."""
    takes_text, takes_parts, takes_objects = forms

    def content(value: str | list[JsonObject]) -> str | list[JsonObject]:
        if isinstance(value, str):
            return value if takes_text or not takes_parts else [{"type": "text", "text": value}]
        return value if takes_parts else text_of(value)

    def called(call: Any) -> Any:
        with suppress(InputError, TypeError, KeyError):  # text that is no object stays
            return {**call, "function": {**call["function"], "arguments": parse_object(call["function"]["arguments"])}}
        return call

    def fitted(message: Message) -> Message:
        calls = message.get("tool_calls")
        changes = {"tool_calls": [called(call) for call in calls]} if takes_objects and isinstance(calls, list) else {}
        return {**message, "content": content(message["content"]), **changes}

    return [fitted(message) for message in messages]


def text_of(content: str | list[JsonObject]) -> str:
    """Return the text of a message's content; newlines join the texts of parts."""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def day_of(tokenizer: PreTrainedTokenizerBase, stored: str | None = None) -> str | None:
    """Return today's date for encoding prompts if the chat template writes a date; otherwise None.

    Args:
        tokenizer: the tokenizer with the chat template.
        stored: the date on which interrupted work began, which is returned instead of today's.
    """
    return (stored or date.today().isoformat()) if "strftime_now" in str(tokenizer.chat_template) else None


def turn_end(tokenizer: PreTrainedTokenizerBase, stops: Collection[int], *, chat: bool | Auto) -> list[int]:
    """Return a list with the token that ends an answer; empty if there is none.

    In a chat it is the first token after an answer in the chat template that is special or ends texts
    (``<|im_end|>``, ``<end_of_turn>``, ``<|eot_id|>``). Without a template, or without such a token, it is one of
    ``stops``: the tokenizer's end token if it is one of them, else the smallest id.

    Args:
        tokenizer: the tokenizer.
        stops: the ids that end the target's texts according to its generation_config.
        chat: whether the answer belongs to a chat.
    """
    if chat and tokenizer.chat_template is not None:
        turns = [{"role": "user", "content": PROBE}, {"role": "assistant", "content": PROBE}]
        text = ""
        with suppress(Exception):  # a template is a program and may raise anything
            forms = _forms(tokenizer, str(tokenizer.chat_template))
            text = str(tokenizer.apply_chat_template(_in_form(turns, forms), tokenize=False))
        before, _, after = text.rpartition(PROBE)
        ends = {*stops, *tokenizer.added_tokens_decoder, *tokenizer.all_special_ids}
        for token in tokenizer(after, add_special_tokens=False)["input_ids"] if before else ():
            if token in ends:
                return [token]
    end_token = tokenizer.eos_token_id
    if not stops:
        return [] if end_token is None else [end_token]
    return [end_token if end_token in stops else min(stops)]


def _is_list(value: Any) -> bool:
    """Return true if ``value`` is a sequence of any kind: a list, a tuple, a range, a column of a dataset, …"""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def _kind(element: Any) -> str:
    """Return the kind of a list with this element: ids, messages, or several prompts."""
    if isinstance(element, int):  # the most frequent case first
        return "token ids"
    if isinstance(element, str):
        return "texts"
    if isinstance(element, Mapping):
        return "tokenizer results" if "input_ids" in element else "messages"
    if _is_list(element) or (isinstance(element, Tensor | np.ndarray) and element.ndim > 0):
        return "lists"
    return "token ids"  # or an invalid type, which `_token` refuses


def _several(elements: Sequence[Any], name: str) -> list[Prompt]:
    """Return the prompts of all elements, which must be of one kind.

    Raises:
        InputError: the kinds differ, or an element holds several prompts.
    """
    prompts: list[Prompt] = []
    for i, element in enumerate(elements):
        parsed, single = as_prompts(element, f"{name}[{i}]")
        if not single:
            raise InputError(f"{name}[{i}]: several prompts within several; give a flat list of prompts")
        prompts += parsed
    kinds = {"texts" if isinstance(prompt, str) else _kind(prompt[0]) for prompt in prompts}
    if len(kinds) > 1:
        raise InputError(f"{name}: a list that mixes {' and '.join(sorted(kinds))}; give prompts of one kind")
    return prompts


def _from_array(array: Tensor | np.ndarray[Any, Any], name: str) -> tuple[list[Prompt], bool]:
    integral = array.dtype in INTEGERS if isinstance(array, Tensor) else array.dtype.kind in "iu"
    if not integral:
        raise InputError(f"{name}: ids of type {array.dtype}; give integers")
    if array.ndim not in (1, 2):
        raise InputError(
            f"{name}: an array of shape {tuple(array.shape)}; give one prompt (n,) or several of one length (B, n)"
        )
    if 0 in array.shape:
        raise InputError(f"{name}: empty, of shape {tuple(array.shape)}; give at least one token")
    return as_prompts(array.tolist(), name)


def _from_encoding(encoding: Mapping[str, Any], name: str) -> tuple[list[Prompt], bool]:
    """Return the prompts in a tokenizer's result without their padding, and true for a single prompt."""
    if "input_ids" not in encoding:
        problem = "one message; put it in a list" if "role" in encoding else "a dict without input_ids; give a list"
        raise InputError(f"{name}: {problem}, [{{'role': …, 'content': …}}]")
    prompts, single = as_prompts(encoding["input_ids"], f"{name}['input_ids']")
    if not all(map(_is_ids, prompts)):
        raise InputError(f"{name}['input_ids']: no token ids; give a tokenizer's result for text")
    mask = encoding.get("attention_mask")
    if mask is None:
        return prompts, single
    rows = mask.tolist() if isinstance(mask, Tensor | np.ndarray) else mask
    rows = [rows] if single else rows
    if not isinstance(rows, list | tuple) or len(rows) != len(prompts):
        raise InputError(f"{name}['attention_mask']: must have the shape of input_ids; give one entry for each id")
    names = [f"{name}['attention_mask']" + ("" if single else f"[{i}]") for i in range(len(prompts))]
    return [_unpadded(*row) for row in zip(prompts, rows, names, strict=True)], single


def _unpadded(ids: Prompt, mask: Any, name: str) -> list[int]:
    """Return the ids for which ``mask`` is 1; they must be contiguous."""
    if not isinstance(mask, list | tuple) or len(mask) != len(ids):
        raise InputError(f"{name}: must have the shape of input_ids; give one entry for each id")
    if any(entry not in (0, 1) for entry in mask):
        raise InputError(f"{name}: entries other than 0 and 1; mark padding with 0 and text with 1")
    unpadded: list[Any] = [token for token, real in zip(ids, mask, strict=True) if real]
    if not unpadded:
        raise InputError(f"{name}: 0 everywhere, so the prompt is empty; give at least one token")
    if sum(before != after for before, after in pairwise([0, *map(int, mask), 0])) > 2:
        raise InputError(f"{name}: zeros within the text; only padding on the left or right can be removed")
    return unpadded


def _token(element: Any, name: str) -> int:
    """Return a token id as an int."""
    if isinstance(element, np.generic) or (isinstance(element, Tensor) and element.ndim == 0):
        element = element.item()
    if isinstance(element, bool) or not isinstance(element, int):
        raise InputError(
            f"{name}={reprlib.repr(element)}: of type {type(element).__name__}, not a token id; give integers"
        )
    if element < 0:
        raise InputError(f"{name}={element}: a token id is never negative; remove padding, or give an attention_mask")
    return element


def _message(element: Mapping[str, Any], name: str) -> Message:
    """Return a chat message after checking its fields.

    The role must be text, and the content text or a list of parts. Messages with tool calls need no content.
    """
    if element.get("content") is None and element.get("tool_calls"):
        element = {**element, "content": ""}
    for key in ("role", "content"):
        if key not in element:
            raise InputError(f"{name}: a message without {key!r}; give {{'role': …, 'content': …}}")
    role, content = element["role"], element["content"]
    if not isinstance(role, str):
        raise InputError(
            f"{name}['role']={reprlib.repr(role)}: of type {type(role).__name__}; give text, such as 'user'"
        )
    if not isinstance(content, str | list):
        raise InputError(
            f"{name}['content']={reprlib.repr(content)}: of type {type(content).__name__}; give text or a list of parts"
        )
    for number, part in enumerate(content if isinstance(content, list) else ()):
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise InputError(
                f"{name}['content'][{number}]={reprlib.repr(part)}: only parts of text are read; give "
                "{'type': 'text', 'text': …}"
            )
    check_characters(element, name)
    return dict(element)
