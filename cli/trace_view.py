"""A generation's trace as coloured text: which tokens the draft proposed, and what became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .infer.text_stream import TextStream, decode

if TYPE_CHECKING:
    from rich.text import Text
    from transformers import PreTrainedTokenizerBase

    from .infer.generation import Generation

ACCEPTED = "green"
OWN = "bold"
REJECTED = "red strike"


def render(generation: Generation, tokenizer: PreTrainedTokenizerBase) -> Text:
    """The text as it came about: accepted draft tokens, then the rejected ones struck out, then the target's own token.

    The unstyled text without the struck-out pieces is `generation.text`.
    """
    from rich.text import Text

    text = Text()
    stream = TextStream(tokenizer)
    for round_ in generation.rounds:
        # The budget or the end of text may cut a round short: `emitted` is what was kept of it.
        kept = round_.emitted[: round_.accepted]
        for token in kept:
            text.append(stream.push([token]), ACCEPTED)
        lost = [token for node, token in enumerate(round_.drafted) if node not in round_.path]
        rejected = decode(tokenizer, lost)
        text.append(rejected.replace("\n", "⏎"), REJECTED)
        for token in round_.emitted[len(kept) :]:
            text.append(stream.push([token]), OWN)
    text.append(stream.flush(), OWN)
    return text


def legend() -> Text:
    """One line that says what the styles of `render` mean."""
    from rich.text import Text

    return Text.assemble(
        ("accepted draft", ACCEPTED), "  ", ("the target's own", OWN), "  ", ("rejected draft", REJECTED)
    )
