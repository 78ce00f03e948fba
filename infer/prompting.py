"""From what a user gives to token ids: plain text, a chat, or ids as they are."""

from __future__ import annotations

from typing import Any, TypeGuard

from transformers import PreTrainedTokenizerBase

from ..controllers.errors import InputError

Prompt = str | list[int] | list[dict[str, str]]


def is_batch(prompt: Any) -> TypeGuard[list[Prompt]]:
    """Whether this is several prompts: a list of texts, of lists of ids, or of chats."""
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list)


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase | None, prompt: Prompt, *, chat: bool = False, system: str | None = None
) -> list[int]:
    """Token ids of ``prompt``.

    Args:
        prompt: text; token ids; or messages ``[{"role": …, "content": …}, …]``, which always use the chat template.
        chat: put text into the tokenizer's chat template as one user message.
        system: a system message before it.

    Raises:
        InputError: the prompt is empty, or a chat template or tokenizer is needed and there is none.
    """
    if isinstance(prompt, list) and (not prompt or isinstance(prompt[0], int)):
        if not prompt:
            raise InputError("prompt=[]: empty; give at least one token")
        return [int(token) for token in prompt]  # type: ignore[arg-type]
    if tokenizer is None:
        raise InputError("prompt: text needs a tokenizer; pass one to SpeculativeDecoder, or give token ids")
    if isinstance(prompt, str):
        if not prompt.strip():
            raise InputError(f"prompt={prompt!r}: empty; give some text")
        if not chat and system is None:
            return list(tokenizer(prompt)["input_ids"])
        messages = [{"role": "user", "content": prompt}]
    else:
        messages = list(prompt)
    if system is not None:
        messages = [{"role": "system", "content": system}, *messages]
    if tokenizer.chat_template is None:
        raise InputError(f"{tokenizer.name_or_path}: the tokenizer has no chat template; give plain text (chat=False)")
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))
