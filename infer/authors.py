"""Who wrote each piece of a text: the target, a draft model, or a copy of the text."""

from __future__ import annotations

from collections.abc import Iterable

from .core import Round
from .text_stream import TextStream, TokenTexts

TARGET, DRAFT, COPY, REJECTED = "target", "draft", "copy", "rejected"  # authors of a piece of a text


def pieces_by_author(rounds: Iterable[Round], stream: TextStream) -> list[tuple[str, str]]:
    """Who wrote each piece of a text, in order; the pieces without rejected drafts joined are the text.

    Args:
        stream: has not been given any of the text's tokens yet.

    Returns:
        pairs of ``TARGET``, ``DRAFT``, ``COPY`` or ``REJECTED``, and the piece.
    """
    texts, found = TokenTexts(stream.tokenizer), []
    for round_ in rounds:
        # The budget or an end token may cut a round: `emitted` holds the remaining tokens.
        for node, token in zip(round_.path, round_.emitted, strict=False):
            found.append((COPY if node < round_.copied else DRAFT, stream.push([token])))
        lost = [token for node, token in enumerate(round_.drafted) if node not in round_.path]
        found.append((REJECTED, texts.joined(lost)))
        found += [(TARGET, stream.push([token])) for token in round_.emitted[round_.accepted :]]
    return [*found, (TARGET, stream.flush())]
