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
    unread, written = text, list[int]()
    while len(written) < budget and not (written and written[-1] in stop_tokens):
        logits, _ = reader.read(unread, keep=1)
        written.append(int(logits[-1].argmax()))
        unread = written[-1:]
    if max([*prompt, *text, *written]) >= draft.vocab_size:
        return []  # a token is outside the draft's vocabulary: nothing will be drafted
    written = written[: None if draft.context is None else max(0, draft.context - len(text) + 1)]
    if not written:
        return []
    reader, text = TextReader.begin(draft, prompt, len(written))
    logits, _ = reader.read([*text, *written[:-1]], keep=len(written))
    guesses: list[int] = logits[:, : target.vocab_size].argmax(-1).tolist()
    return [guess == token for guess, token in zip(guesses, written, strict=True)]
