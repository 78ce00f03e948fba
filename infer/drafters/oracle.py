"""Chains for the length rule ``oracle``, which knows where the draft agrees with the target's greedy text."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...controllers.length import Oracle
from ...models import LanguageModel, TextReader
from ..core import Request
from .chain import ChainDrafter


class OracleDrafter(ChainDrafter):
    """Sets ``agrees`` of each request's :class:`~specpilot.controllers.length.Oracle` when it joins."""

    def __init__(self, model: LanguageModel, vocab_size: int, target: LanguageModel) -> None:
        super().__init__(model, vocab_size)
        self.target = target

    def start(self, requests: Sequence[Request]) -> None:
        for request in requests:
            assert isinstance(request.length, Oracle)
            request.length.agrees = greedy_agreement(
                self.target, self.model, request.prompt, request.budget, request.stop_tokens
            )


@torch.inference_mode()
def greedy_agreement(
    target: LanguageModel, draft: LanguageModel, prompt: list[int], budget: int, stop_tokens: frozenset[int]
) -> list[bool]:
    """Return for each i whether both models choose the same token after i tokens of the target's greedy text.

    The list is shorter than the text if the draft's context ends earlier. It is empty if the text has a token outside
    the draft's vocabulary.
    """
    reader, text = TextReader.begin(target, prompt, budget)
    unread, greedy_tokens = text, list[int]()
    while len(greedy_tokens) < budget and not (greedy_tokens and greedy_tokens[-1] in stop_tokens):
        logits, _ = reader.read(unread, keep=1)
        greedy_tokens.append(int(logits[-1].argmax()))
        unread = greedy_tokens[-1:]
    if max([*prompt, *text, *greedy_tokens]) >= draft.vocab_size:
        return []  # a token is outside the draft's vocabulary: nothing will be drafted
    greedy_tokens = greedy_tokens[: None if draft.context is None else max(0, draft.context - len(text) + 1)]
    if not greedy_tokens:
        return []
    reader, text = TextReader.begin(draft, prompt, len(greedy_tokens))
    logits, _ = reader.read([*text, *greedy_tokens[:-1]], keep=len(greedy_tokens))
    guesses: list[int] = logits[:, : target.vocab_size].argmax(-1).tolist()
    return [guess == token for guess, token in zip(guesses, greedy_tokens, strict=True)]
