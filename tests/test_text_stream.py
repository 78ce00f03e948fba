"""Incremental text against the text of the whole, and the coloured trace."""

from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specpilot.infer.generation import Generation, Round
from specpilot.infer.text_stream import TextStream
from specpilot.trace_view import ACCEPTED, OWN, REJECTED, legend, render

from .tiny import byte_tokenizer

TEXT = "naïve 🙂 日本語 e\u0301 – ok"


@dataclass
class Bytes:
    """A tokenizer whose tokens are bytes; like many, it drops the space before a text's first word."""

    drops_space: bool = False

    def decode(self, tokens: list[int], skip_special_tokens: bool = False) -> str:
        text = bytes(tokens).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self.drops_space else text


def stream_of(drops_space: bool = False) -> TextStream:
    return TextStream(cast(Any, Bytes(drops_space)))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("drops_space", [False, True])
def test_pieces_are_the_text(size: int, drops_space: bool) -> None:
    tokens, stream = list(TEXT.encode()), stream_of(drops_space)
    pieces = [stream.push(tokens[start : start + size]) for start in range(0, len(tokens), size)]
    assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) + stream.flush() == TEXT


@given(st.lists(st.binary(max_size=6), max_size=8))
def test_any_bytes(chunks: list[bytes]) -> None:
    stream = stream_of()
    text = "".join(stream.push(list(chunk)) for chunk in chunks) + stream.flush()
    assert text == b"".join(chunks).decode("utf-8", errors="replace")
    assert stream.flush() == ""


@given(tokens=st.lists(st.integers(0, 300), max_size=40), size=st.integers(1, 5))
@pytest.mark.parametrize("cleans_up", [False, True])
def test_real_tokenizers(cleans_up: bool, tokens: list[int], size: int) -> None:
    """Of any tokens, characters cut in pieces and special tokens among them."""
    tokenizer = byte_tokenizer(extra=44)
    tokenizer.clean_up_tokenization_spaces = cleans_up
    stream = TextStream(tokenizer)
    pieces = [stream.push(tokens[start : start + size]) for start in range(0, len(tokens), size)]
    assert "".join(pieces) + stream.flush() == tokenizer.decode(tokens, skip_special_tokens=True)
    assert stream.flush() == ""


def test_certain_text_is_not_held_back() -> None:
    stream = stream_of()
    assert stream.push([*b"ok ", 0xF0, 0x9F]) == "ok "
    assert stream.push([0x99, 0x82]) == "🙂"


def test_trace() -> None:
    rounds = [
        Round([], [], list(b"A")),
        Round(list(b"bcX\n"), [0, 1], list(b"bcd")),
        Round([0xC3], [0], [0xC3, 0xA9]),  # one character over two tokens
        Round(list(b"ef"), [0, 1], list(b"e")),  # cut short by the end
    ]
    generation = Generation([], tokens=[token for r in rounds for token in r.emitted], rounds=rounds, text="Abcdée")
    text = render(generation, cast(Any, Bytes()))
    assert text.plain == "AbcX⏎dée"
    assert [(text.plain[s.start : s.end], s.style) for s in text.spans] == [
        ("A", OWN),
        ("b", ACCEPTED),
        ("c", ACCEPTED),
        ("X⏎", REJECTED),
        ("d", OWN),
        ("é", OWN),
        ("e", ACCEPTED),
    ]
    assert {span.style for span in legend().spans} == {OWN, ACCEPTED, REJECTED}
