"""A generation's trace as coloured text: accepted, rejected and target tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from ..infer.core import Generation
    from ..infer.text_stream import TextStream

ACCEPTED = "green"
OWN = "bold"
REJECTED = "red strike"


def render(generation: Generation, stream: TextStream, *, rejected: bool = True) -> Text:
    """The text round by round: accepted draft tokens, rejected ones struck out, then the target's own token.

    Without the struck-out tokens it equals `generation.text`. ``stream`` has not yet been given any tokens.

    Args:
        rejected: show rejected tokens.
    """
    from rich.text import Text

    from ..infer.authors import pieces_by_author

    text = Text()
    for by, piece in pieces_by_author(generation.rounds, stream):
        if by != "rejected":
            text.append(piece, OWN if by == "target" else ACCEPTED)
        elif rejected:
            text.append(piece.replace("\n", "⏎"), REJECTED)
    return text


def legend(*, rejected: bool = True) -> Text:
    """One line that explains the styles of `render`."""
    from rich.text import Text

    styles = [("accepted draft", ACCEPTED), ("the target's own", OWN), ("rejected draft", REJECTED)]
    return Text("  ").join(Text.assemble(style) for style in styles[: 3 if rejected else 2])


def show_trace(console: Console, generation: Generation, stream: TextStream, *, rejected: bool = True) -> None:
    """Print `render` in a frame, and `legend`. Without styles own tokens are marked, and rejected ones left out."""
    from rich.panel import Panel

    styled = console.color_system is not None
    text, words = render(generation, stream, rejected=rejected and styled), legend(rejected=rejected and styled)
    if not styled:
        text, words = _marked(text), _marked(words)
    console.print(Panel(text, title="answer", title_align="left"))
    console.print(words)


def _marked(text: Text) -> Text:
    """The text with the target's own tokens in brackets, for a console without styles."""
    from rich.text import Text

    words, end = [], 0
    for span in text.spans:
        if span.style == OWN:
            token = text.plain[span.start : span.end]
            space = token[: len(token) - len(token.lstrip())]
            words += [text.plain[end : span.start], f"{space}[{token.lstrip()}]" if token.strip() else token]
            end = span.end
    return Text("".join([*words, text.plain[end:]]))
