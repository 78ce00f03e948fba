"""The author of each piece of a text: the target, a draft model, or a copy of the text."""

from __future__ import annotations

from collections.abc import Iterable

from .core import Round
from .text_stream import TextStream, TokenTexts

TARGET, DRAFT, COPY, REJECTED = "target", "draft", "copy", "rejected"  # authors of a piece of a text


def pieces_by_author(rounds: Iterable[Round], stream: TextStream) -> list[tuple[str, str]]:
    """Split a text into pieces by their authors, in order; all pieces except rejected ones joined are the text.

    Args:
        rounds: the rounds of the text.
        stream: a stream that has received none of the text's tokens.

    Returns:
        Pairs of an author, ``TARGET``, ``DRAFT``, ``COPY`` or ``REJECTED``, and a piece.
    """
    texts, pieces = TokenTexts(stream.tokenizer), []
    for round_ in rounds:
        # The budget or an end token may cut a round: `emitted` holds the remaining tokens.
        for node, token in zip(round_.path, round_.emitted, strict=False):
            pieces.append((COPY if node < round_.copied else DRAFT, stream.push([token])))
        rejected = [token for node, token in enumerate(round_.drafted) if node not in round_.path]
        pieces.append((REJECTED, texts.joined(rejected)))
        pieces += [(TARGET, stream.push([token])) for token in round_.emitted[round_.accepted :]]
    return [*pieces, (TARGET, stream.flush())]
