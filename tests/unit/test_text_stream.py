"""Tokens as text: of every family of tokenizers, piece by piece, ended by stop strings, and one by one."""

import io
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from rich.console import Console
from specpilot.cli.trace_view import ACCEPTED, REJECTED, TARGET, render, show_rounds
from specpilot.infer.core import Generation, Round
from specpilot.infer.text_stream import INCOMPLETE, TextStream, TextStyle, TokenTexts, decode
from tokenizers import Tokenizer, decoders, models
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from ..helpers.tiny import GEMMA, byte_tokenizer, sentencepiece_tokenizer

WORDS = ["it", "do", "n", "'", "t", "s", "n't", "'s", "'ve", "re", ".", "?", ",", "dog", "##ing", "##n"]


def wordpiece(**options: Any) -> PreTrainedTokenizerFast:
    ids = {token: index for index, token in enumerate(["[UNK]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(cleanup=options.pop("cleanup", False))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", sep_token="[SEP]", **options)


class Spacing(ByT5Tokenizer):
    """A tokenizer that adds a space before the text in front of a special token, like those of GPT-SW3 and SigLIP."""

    def _decode(self, token_ids: Any, skip_special_tokens: bool = False, **_: Any) -> str:
        text, since = "", list[int]()
        for token in [token_ids] if isinstance(token_ids, int) else token_ids:
            if token not in self.all_special_ids:
                since.append(token)
            elif not skip_special_tokens:
                text += f" {super()._decode(since)}{self.convert_ids_to_tokens(token)}"
                since = []
        return text + str(super()._decode(since))


FAMILIES: dict[str, Any] = {
    "byte-level": byte_tokenizer(extra=44),
    "Llama 2": sentencepiece_tokenizer(),
    "Gemma": sentencepiece_tokenizer(decoders.Sequence(GEMMA)),
    "Metaspace": sentencepiece_tokenizer(decoders.Metaspace()),
    "Unigram": sentencepiece_tokenizer(unigram=True),
    "WordPiece": wordpiece(cleanup=True),
    "WordPiece cleaned": wordpiece(clean_up_tokenization_spaces=True),
    "ByT5": ByT5Tokenizer(),
    "with spaces": Spacing(),
}
LLAMA, BYTE_LEVEL = FAMILIES["Llama 2"], FAMILIES["byte-level"]
CHARACTERS = [byte + 3 for byte in "日é😊 a".encode()]  # of ByT5
TOKENS = st.lists(st.integers(0, 302) | st.sampled_from(CHARACTERS), max_size=40)


def llama(*tokens: str) -> list[int]:
    return LLAMA.convert_tokens_to_ids(list(tokens))  # type: ignore[no-any-return]


def within(tokenizer: Any, tokens: list[int]) -> list[int]:
    """Return ids for ``tokens``: those of the tokenizer, and three ids beyond its vocabulary."""
    return [token % (len(tokenizer) + 3) for token in tokens]


def pieces(stream: TextStream, tokens: list[int], size: int) -> list[str]:
    return [stream.push(tokens[i : i + size]) for i in range(0, len(tokens), size)] + [stream.flush()]


@given(prompt=TOKENS, tokens=TOKENS, size=st.integers(1, 5), skip=st.booleans())
@pytest.mark.parametrize("family", FAMILIES)
def test_pieces_are_the_text(family: str, prompt: list[int], tokens: list[int], size: int, skip: bool) -> None:
    """Any number of tokens may arrive at a time. Prompt and text joined equal the decoded tokens of both."""
    tokenizer, style = FAMILIES[family], TextStyle(skip_special_tokens=skip)
    prompt, tokens = within(tokenizer, prompt), within(tokenizer, tokens)
    text = "".join(pieces(TextStream(tokenizer, prompt, style), tokens, 1000))
    stream = TextStream(tokenizer, prompt, style, by_token=True)
    assert "".join(pieces(stream, tokens, size)) == text
    assert "".join(pieces(TextStream(tokenizer, prompt, style), tokens, size)) == text
    assert stream.flush() == ""
    assert stream.places == sorted(stream.places)
    assert all(place <= len(text) for place in stream.places)
    before = decode(tokenizer, prompt, skip_special_tokens=skip)
    both = decode(tokenizer, prompt + tokens, skip_special_tokens=skip)
    if both.startswith(before):  # not if the answer changes the prompt's text
        assert before + text == both


def test_certain_text_is_not_held_back() -> None:
    stream, tokens = TextStream(BYTE_LEVEL), BYTE_LEVEL("ok 🙂")["input_ids"]
    assert (stream.push(tokens[:-2]), stream.push(tokens[-2:])) == ("ok ", "🙂")


@given(tokens=TOKENS, stop=st.lists(st.sampled_from(["fox", "\n", " n", "a.", "日", "'s", "ing", "é"]), min_size=1))
@pytest.mark.parametrize("family", FAMILIES)
def test_stop_strings(family: str, tokens: list[int], stop: list[str]) -> None:
    """The text ends at the first token after which the text so far, decoded as a whole, has a stop string."""
    tokenizer = FAMILIES[family]
    tokens = within(tokenizer, tokens)
    texts = [decode(tokenizer, tokens[:end], skip_special_tokens=True) for end in range(1, len(tokens) + 1)]
    last = next((i for i, text in enumerate(texts) if any(stop_string in text for stop_string in stop)), None)
    text = texts[-1] if texts else ""
    if last is not None:
        text = texts[last][: min(place for stop_string in stop if (place := texts[last].find(stop_string)) >= 0)]
    stream, streamed = TextStream(tokenizer, [], TextStyle(tuple(stop))), ""
    for i, token in enumerate(tokens):
        streamed += stream.push([token])
        assert stream.ended == (last is not None and i >= last)
        assert text.startswith(streamed)
    assert streamed + stream.flush() == text


@given(tokens=TOKENS, places=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 3), st.integers(1, 5)), min_size=1,
       max_size=3), include=st.booleans(), size=st.integers(1, 4))  # fmt: skip
@pytest.mark.parametrize("family", FAMILIES)
def test_stop_strings_of_the_text_itself(
    family: str, tokens: list[int], places: list[tuple[int, int, int]], include: bool, size: int
) -> None:
    """The stop strings are overlapping parts of the text, within tokens and across several, so most of them end it."""
    tokenizer = FAMILIES[family]
    tokens = within(tokenizer, tokens)
    texts = [decode(tokenizer, tokens[:end], skip_special_tokens=True) for end in range(1, len(tokens) + 1)]
    whole = texts[-1] if texts else ""
    first = places[0][0] % max(1, len(whole))
    parts = [whole[first + shift : first + shift + length] for _, shift, length in places]
    stop = tuple(part for part in parts if part and INCOMPLETE not in part)
    assume(stop)
    last = next(i for i, text in enumerate(texts) if any(stop_string in text for stop_string in stop))
    place, _, longest = min(
        (texts[last].find(stop_string), -len(stop_string), stop_string)
        for stop_string in stop
        if stop_string in texts[last]
    )
    expected = texts[last][:place] + (longest if include else "")
    stream = TextStream(tokenizer, [], TextStyle(stop, include_stop=include))
    assert "".join(pieces(stream, tokens, size)) == expected
    assert stream.ended


FOX_END = llama("▁fox", "<0x0A>", "<|im_end|>", "a")


@pytest.mark.parametrize(
    ("options", "expected", "read"),
    [
        ({"stop": ("<|im_end|>",)}, " fox\n", 3),
        ({"stop": ("\n<|im_end|>",)}, " fox", 3),
        ({"stop": ("<|im_end|>n",)}, " fox\na", None),
        ({"stop": ("<|im_end|>",), "include_stop": True}, " fox\n<|im_end|>", 3),
        ({"stop": ("im_end",), "skip_special_tokens": False}, " fox\n<|", 3),
        ({"stop_token_ids": frozenset(llama("<0x0A>"))}, " fox", 2),
        ({"stop_token_ids": frozenset(llama("<0x0A>")), "include_stop": True}, " fox\n", 2),
        ({"skip_special_tokens": False}, " fox\n<|im_end|>a", None),
    ],
)
def test_ends_of_texts(options: dict[str, Any], expected: str, read: int | None) -> None:
    stream, streamed, ended = TextStream(LLAMA, llama("a"), TextStyle(**options)), "", []
    for token in FOX_END:
        streamed += stream.push([token])
        ended.append(stream.ended)
    assert streamed + stream.flush() == expected
    assert ended.count(False) + 1 == (read or len(FOX_END) + 1)


def test_bytes_of_tokens() -> None:
    of = BYTE_LEVEL.get_vocab()
    texts = TokenTexts(BYTE_LEVEL)
    assert [texts.bytes(of[piece]) for piece in ("Ġ", "ð", "Ł", "ĺ", "Ĭ")] == [[32], [240], [159], [152], [138]]
    texts = TokenTexts(LLAMA)
    assert [texts.bytes(token) for token in llama("▁fox", "<0xE6>", "<0x0A>")] == [list(b" fox"), [0xE6], [10]]
    assert [texts.text(token) for token in llama("▁fox", "▁", "</s>")] == [" fox", " ", "</s>"]
    assert [TokenTexts(FAMILIES["ByT5"]).bytes(token) for token in CHARACTERS] == [[token - 3] for token in CHARACTERS]


def test_trace() -> None:
    rounds = [
        Round([], [], list(b"A")),
        Round(list(b"bcX\n"), [0, 1], list(b"bcd")),
        Round([0xC3], [0], [0xC3, 0xA9]),  # one character over two tokens
        Round(list(b"ef"), [0, 1], list(b"e")),  # cut short by the end
    ]
    for round in rounds:
        round.drafted, round.emitted = ([byte + 3 for byte in tokens] for tokens in (round.drafted, round.emitted))
    generation = Generation([], rounds=rounds)
    text = render(generation, TextStream(FAMILIES["ByT5"]))
    marks = {ACCEPTED: "+", TARGET: "=", REJECTED: "-"}
    assert " ".join(marks[str(s.style)] + text.plain[s.start : s.end] for s in text.spans) == "=A +b +c -X⏎ =d =é +e"
    plain = Console(record=True, width=80, color_system=None, file=io.StringIO())
    show_rounds(plain, generation, TextStream(FAMILIES["ByT5"]))
    output = plain.export_text()
    assert "[A]bc[d][é]e " in output
    assert "accepted draft  [token of the target]\n" in output
