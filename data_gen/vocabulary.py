"""Texts for a draft whose vocabulary is smaller than its target's: models of one tokenizer may be padded differently.

The target may emit a token that the draft has no embedding for. The draft then has no state from that token on, and a
decoder continues without drafts. Data ends before that token, see :func:`readable`.
"""

from __future__ import annotations

from collections.abc import Sequence


def can_read(tokens: Sequence[int], vocab_size: int) -> bool:
    """Whether a model of ``vocab_size`` embeddings has one for each of ``tokens``."""
    return max(tokens, default=0) < vocab_size


def readable(tokens: Sequence[int], vocab_size: int) -> int:
    """Number of ``tokens`` before the first that a model of ``vocab_size`` embeddings cannot read."""
    return next((place for place, token in enumerate(tokens) if token >= vocab_size), len(tokens))


def traceable(text: list[int], budget: int, vocab_size: int, stop_tokens: frozenset[int]) -> tuple[list[int], int]:
    """``text`` and ``budget`` as arguments of :func:`~.trace.trace`, where the draft reads all tokens but the last.

    The text is cut after the first token that a draft of ``vocab_size`` embeddings cannot read. If a text is shorter
    than its budget and does not end with a stop token, it was cut, and the budget becomes its length.
    """
    text = text[: readable(text, vocab_size) + 1]
    return text, budget if text[-1] in stop_tokens else len(text)
