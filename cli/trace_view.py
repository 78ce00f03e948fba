"""A generation's trace as coloured text: accepted, rejected and target tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from .infer.generation import Generation
    from .infer.text_stream import TextStream

ACCEPTED = "green"
OWN = "bold"
REJECTED = "red strike"
MARKS = {ACCEPTED: ("", ""), OWN: ("[", "]"), REJECTED: ("~~", "~~")}  # where there are no styles


def render(generation: Generation, stream: TextStream) -> Text:
    """The text round by round: accepted draft tokens, rejected ones struck out, then the target's own token.

    Without the struck-out tokens it equals `generation.text`. ``stream`` has not yet been given any tokens.
    """
    from rich.text import Text

    from .infer.text_stream import TokenTexts

    text = Text()
    texts = TokenTexts(stream.tokenizer)
    for round_ in generation.rounds:
        # The budget or an end token may cut a round: `emitted` holds the remaining tokens.
        kept = round_.emitted[: round_.accepted]
        for token in kept:
            text.append(stream.push([token]), ACCEPTED)
        lost = [token for node, token in enumerate(round_.drafted) if node not in round_.path]
        rejected = texts.joined(lost)
        text.append(rejected.replace("\n", "⏎"), REJECTED)
        for token in round_.emitted[len(kept) :]:
            text.append(stream.push([token]), OWN)
    text.append(stream.flush(), OWN)
    return text


def legend() -> Text:
    """One line that explains the styles of `render`."""
    from rich.text import Text

    return Text.assemble(
        ("accepted draft", ACCEPTED), "  ", ("the target's own", OWN), "  ", ("rejected draft", REJECTED)
    )


def marked(text: Text) -> Text:
    """A text of `render` or `legend` with marks in place of styles: ``[own]`` and ``~~rejected~~``."""
    from rich.text import Text

    words, end = [], 0
    for span in text.spans:
        before, after = MARKS[str(span.style)]
        words += [text.plain[end : span.start], before, text.plain[span.start : span.end], after]
        end = span.end
    return Text("".join([*words, text.plain[end:]]))


def show_trace(console: Console, generation: Generation, stream: TextStream) -> None:
    """Print `render` in a frame, and `legend`: in colour or, on a console without styles, with marks."""
    from rich.panel import Panel

    text, words = render(generation, stream), legend()
    if console.color_system is None:
        text, words = marked(text), marked(words)
    console.print(Panel(text, title="answer", title_align="left"))
    console.print(words)
