"""Generations as coloured text: accepted and rejected tokens of drafts, and tokens of the target."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from ..infer.core import Generation
    from ..infer.text_stream import TextStream

ACCEPTED = "green"
TARGET = "bold"
REJECTED = "red strike"


def render(generation: Generation, stream: TextStream, *, rejected: bool = True) -> Text:
    """Return the text round by round: accepted tokens, rejected tokens struck out, then the target's token.

    Without the rejected tokens the text is `generation.text`.

    Args:
        generation: the generation.
        stream: a new text stream, which has no tokens yet.
        rejected: show rejected tokens.
    """
    from rich.text import Text

    from ..infer.authors import pieces_by_author

    text = Text()
    for by, piece in pieces_by_author(generation.rounds, stream):
        if by != "rejected":
            text.append(piece, TARGET if by == "target" else ACCEPTED)
        elif rejected:
            text.append(piece.replace("\n", "⏎"), REJECTED)
    return text


def legend(*, rejected: bool = True) -> Text:
    """Return a line that explains the styles of `render`; ``rejected`` as there."""
    from rich.text import Text

    styles = [("accepted draft", ACCEPTED), ("token of the target", TARGET), ("rejected draft", REJECTED)]
    return Text("  ").join(Text.assemble(style) for style in styles[: 3 if rejected else 2])


def show_rounds(console: Console, generation: Generation, stream: TextStream, *, rejected: bool = True) -> None:
    """Print a generation in a frame with styles for accepted, rejected and target tokens, and a legend below.

    On a console without styles, tokens of the target are in brackets, and rejected tokens are left out.

    Args:
        console: the console.
        generation: the generation.
        stream: a new text stream, which has no tokens yet.
        rejected: show rejected tokens.
    """
    from rich.panel import Panel

    styled = console.color_system is not None
    text, styles = render(generation, stream, rejected=rejected and styled), legend(rejected=rejected and styled)
    if not styled:
        text, styles = _marked(text), _marked(styles)
    console.print(Panel(text, title="answer", title_align="left"))
    console.print(styles)


def _marked(text: Text) -> Text:
    """Return the text with the target's tokens in brackets, for a console without styles."""
    from rich.text import Text

    words, end = [], 0
    for span in text.spans:
        if span.style == TARGET:
            token = text.plain[span.start : span.end]
            space = token[: len(token) - len(token.lstrip())]
            words += [text.plain[end : span.start], f"{space}[{token.lstrip()}]" if token.strip() else token]
            end = span.end
    return Text("".join([*words, text.plain[end:]]))
