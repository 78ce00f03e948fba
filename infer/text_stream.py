"""The one place where tokens become text: piece by piece as they come, with stop strings, or one by one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from transformers.convert_slow_tokenizer import bytes_to_unicode

from ..common.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# The replacement character, in place of bytes that are not (yet) a character.
INCOMPLETE = "\ufffd"
BYTE = re.compile("<0x([0-9A-F]{2})>")  # a byte token of SentencePiece
WINDOW = 16  # tokens that are decoded together
Stop: TypeAlias = str | Sequence[str] | None  # strings that end a text


@dataclass(frozen=True)
class TextStyle:
    """What of a request's tokens its text has, and what ends it, named as in vLLM.

    Attributes:
        stop: strings that end the text, which may be or contain special tokens.
        stop_token_ids: tokens that end the text and are no part of it.
        skip_special_tokens: leave special tokens out.
        include_stop: keep the stop string or token that ended the text.
        across: a stop string may begin in the prompt, as in transformers.
    """

    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    skip_special_tokens: bool = True
    include_stop: bool = False
    across: bool = False

    @classmethod
    def until(cls, stop: Stop, name: str = "stop", *, across: bool = False) -> TextStyle:
        """The style of a text that ``stop`` ends, an argument called ``name``.

        Raises:
            InputError: it is not a string or a sequence of strings, or one is empty.
        """
        stops = () if stop is None else (stop,) if isinstance(stop, str) else stop
        if not isinstance(stops, list | tuple) or not all(isinstance(one, str) and one for one in stops):
            raise InputError(f"{name}={stop!r}: give a string or a list of strings, none of them empty")
        return cls(tuple(stops), across=across)


PLAIN = TextStyle()


class TextStream:
    """The text of an answer while it grows: the pieces of `push` and `flush` joined are all of it.

    Args:
        prompt: tokens before the answer. What is returned continues their text: both joined read as the tokenizer
            decodes all tokens together.
        style: what is part of the text. A stop string ends it at the first token after which the text so far, decoded
            as a whole, contains the string.
        by_token: keep ``places``.

    Attributes:
        ended: whether a stop string or a token of ``stop_token_ids`` has ended the text.
        places: for each token pushed, how many characters of the text come before it.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompt: Sequence[int] = (),
        style: TextStyle = PLAIN,
        *,
        by_token: bool = False,
    ) -> None:
        self.tokenizer, self.style, self.by_token = tokenizer, style, by_token
        self.ended = False
        self.places: list[int] = []
        self._returned = 0  # characters
        self._pending = ""  # the end of the certain text, which may begin a stop string
        self._words = Detokenizer(tokenizer, prompt, style.skip_special_tokens)
        # Special tokens that the text leaves out but a stop string has are lone surrogates in the pending text.
        self._marks = _marks(tokenizer, style)
        self._stops = {stop: stop for stop in style.stop}
        for stop in style.stop:
            marked = stop
            for token, mark in self._marks.items():
                marked = marked.replace(_piece(tokenizer, token), mark)
            self._stops[marked] = stop
        if style.across and style.stop:
            longest = max(map(len, style.stop))
            self._pending = decode(tokenizer, list(prompt[-longest:]))[-longest:]
        self._before = len(self._pending)  # characters of the pending text that are the prompt's

    def push(self, tokens: Sequence[int]) -> str:
        """The new text that is certain after `tokens`."""
        if not (self.style.stop or self.style.stop_token_ids or self.by_token):
            return self._words.push(tokens)
        return "".join(self._step(token) for token in tokens)

    def flush(self) -> str:
        """The rest: text that more tokens might have changed."""
        text, self.ended = self._unreturned(), True
        return text

    def _unreturned(self) -> str:
        """What would follow if the text ended here."""
        return "" if self.ended else self._visible((self._pending + self._words.rest())[self._before :])

    def _step(self, token: int) -> str:
        if self.by_token:
            unreturned = self._unreturned().rstrip(INCOMPLETE)
            self.places.append(max([self._returned + len(unreturned), *self.places[-1:]]))
        piece = "" if self.ended else self._visible(self._add(token))
        self._returned += len(piece)
        return piece

    def _add(self, token: int) -> str:
        last = token in self.style.stop_token_ids
        if not last or self.style.include_stop:
            self._pending += self._words.push([token])
        if token in self._marks:
            self._pending += self._words.settle() + self._marks[token]
        text = self._pending + self._words.rest()
        found = []
        for stop in self._stops:
            place = text.find(stop, max(0, self._before + 1 - len(stop)))  # where it ends in the answer
            if place >= 0:
                found.append((place, -len(stop), stop))
        if found:
            place, _, stop = min(found)  # the earliest; of several there, the longest
            text = text[:place] + (self._stops[stop] if self.style.include_stop else "")
        if last or found:
            self.ended = True
            return text[self._before :]
        kept = len(self._pending) - held_back(self._pending, self._stops)
        piece, self._pending = self._pending[self._before : kept], self._pending[kept:]
        self._before = max(0, self._before - kept)
        return piece

    def _visible(self, text: str) -> str:
        """``text`` without the special tokens that are marked in it."""
        for mark in self._marks.values():
            text = text.replace(mark, "")
        return text


def held_back(text: str, stops: Iterable[str]) -> int:
    """How many of the last characters of ``text`` may begin one of ``stops``."""
    longest = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:length]):
                longest = length
                break
    return longest


def _marks(tokenizer: PreTrainedTokenizerBase, style: TextStyle) -> dict[int, str]:
    """A lone surrogate for each special token that the text leaves out and a stop string contains."""
    if not style.skip_special_tokens or not style.stop:
        return {}
    special = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    special |= set(tokenizer.all_special_tokens)
    # The longest first: a token may be part of another.
    used = sorted((one for one in special if any(one in stop for stop in style.stop)), key=len, reverse=True)
    return {int(tokenizer.convert_tokens_to_ids(one)): chr(0xDC00 + i) for i, one in enumerate(used)}  # type: ignore[arg-type]


class Detokenizer:
    """The text of tokens piece by piece: all pieces and `rest` joined are what the tokenizer decodes after `context`.

    A few tokens are decoded at a time, after some that are known, because many tokenizers drop or add a space at the
    start of a text. Text that later tokens may change is not returned: characters that lack bytes; runs of byte
    tokens, which are characters only if the whole run is UTF-8; words that the clean-up of spaces joins to the next.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, context: Sequence[int], skip_special_tokens: bool) -> None:
        self.tokenizer, self.skip_special_tokens = tokenizer, skip_special_tokens
        self.cleans = _cleans_up(tokenizer)
        self.awaited = frozenset() if skip_special_tokens else _rewriting(tokenizer)
        self.window = self._end_of(list(context))
        self.known = self.certain = len(self.window)  # tokens whose text is known, and that later ones cannot change
        self.text = self._decode(self.window)  # of the known tokens

    def push(self, tokens: Sequence[int]) -> str:
        """The new text that is certain after ``tokens``."""
        for token in tokens:
            self.window.append(token)
            in_run = self.certain < len(self.window) - 1 and self._decode([token]) == ""  # an unseen special token
            if self.awaited:
                self.certain = len(self.window) if token in self.awaited else self.certain
            elif not in_run and not BYTE.fullmatch(_piece(self.tokenizer, token)):
                self.certain = len(self.window)
        text = self._decode(self.window[: self.certain])
        if self.cleans:
            return self._returned(text[: _last_word(text)], whole=False)
        return self._returned(text.rstrip(INCOMPLETE), whole=not text.endswith(INCOMPLETE))

    def rest(self) -> str:
        """What would follow if the text ended here."""
        return _beyond(self.text, self._decode(self.window))

    def settle(self) -> str:
        """Return the :meth:`rest`, as if later tokens could not change it."""
        text, self.certain = self.rest(), len(self.window)
        self.text = self._decode(self.window)
        return text

    def _returned(self, text: str, whole: bool) -> str:
        """What ``text`` of the window's tokens has beyond the known; ``whole``: it is all text of the certain ones."""
        piece = _beyond(self.text, text)
        if piece:
            self.text = text
            later = self.window[self.known : self.certain]
            if whole and len(self.window) > WINDOW and self._is_context(later):
                self.window = self.window[self.known :]
                self.text = self._decode(later)
                self.certain -= self.known
            self.known = self.certain if whole else self.known
        return piece

    def _end_of(self, context: list[int]) -> list[int]:
        """The last tokens of ``context``, as many as decide what later tokens read like."""
        count = WINDOW
        while count < len(context):
            end = context[-count:]
            if not BYTE.fullmatch(_piece(self.tokenizer, end[0])) and self._is_context(end):
                return end
            count *= 2
        return context

    def _is_context(self, tokens: list[int]) -> bool:
        """Whether what follows ``tokens`` is no longer the start of a text."""
        return decode(self.tokenizer, tokens, skip_special_tokens=True).strip().strip(INCOMPLETE) != ""

    def _decode(self, tokens: list[int]) -> str:
        return decode(self.tokenizer, tokens, self.skip_special_tokens)


def decode(tokenizer: PreTrainedTokenizerBase, tokens: list[int], skip_special_tokens: bool = False) -> str:
    """The text of ``tokens``; those that the tokenizer does not know are left out."""
    try:
        return str(tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens))
    except Exception:  # tokenizers in Python raise anything
        return str(tokenizer.decode([token for token in tokens if _knows(tokenizer, token)], skip_special_tokens))


def _knows(tokenizer: PreTrainedTokenizerBase, token: int) -> bool:
    try:
        tokenizer.decode([token])
    except Exception:
        return False
    return True


def _piece(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """The token as the vocabulary writes it; empty if it is not there."""
    try:
        return str(tokenizer.convert_ids_to_tokens(token) or "")
    except Exception:  # tokenizers in Python raise anything
        return ""


def _beyond(known: str, text: str) -> str:
    """``text`` without the ``known`` text at its start, or without what it has in common with that."""
    if text.startswith(known):
        return text[len(known) :]
    return text[next((i for i, (a, b) in enumerate(zip(known, text, strict=False)) if a != b), len(text)) :]


def _cleans_up(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether ``decode`` removes the spaces before punctuation."""
    if not getattr(tokenizer, "clean_up_tokenization_spaces", False):
        return False
    model = type(tokenizer.backend_tokenizer.model).__name__ if hasattr(tokenizer, "backend_tokenizer") else ""
    return model != "BPE" or tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output


def _rewriting(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The special tokens, where one changes the text before it: tokenizers in Python put a space where that begins."""
    special = frozenset(tokenizer.all_special_ids)
    if tokenizer.is_fast or not special:
        return frozenset()
    plain = next((t for t in range(len(tokenizer)) if t not in special and decode(tokenizer, [t]).isalnum()), None)
    if plain is None:
        return frozenset()
    before = [min(special), plain]
    kept = decode(tokenizer, [*before, before[0]]).startswith(decode(tokenizer, before))
    return frozenset() if kept else special


def _last_word(text: str) -> int:
    """Where the last word of ``text`` begins that clean-up does not join to what is before it."""
    place = text.rfind(" ")
    while place > 0 and text[:place].rpartition(" ")[2] in ("", "'", "n"):
        place = text.rfind(" ", 0, place)
    return max(place, 0)


# The byte of each character that byte-level tokenizers write for it; ByT5 writes the one of that number.
BYTES = {chr(byte): byte for byte in range(256)} | {character: byte for byte, character in bytes_to_unicode().items()}


class TokenTexts:
    """The text and bytes of single tokens, as they are within a text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.special = frozenset(tokenizer.all_special_ids)
        # A token with text comes before others, since at the start of a text they lack their space.
        others = (token for token in range(len(tokenizer)) if token not in self.special)
        plain = (token for token in others if not BYTE.fullmatch(_piece(tokenizer, token)))
        self.before = list(islice((token for token in plain if decode(tokenizer, [token]).isalnum()), 1))
        self.known = decode(tokenizer, self.before)

    def text(self, token: int) -> str:
        """The token's text; U+FFFD for bytes that are no characters."""
        if token in self.special:
            return _piece(self.tokenizer, token)
        return self.joined([token])

    def joined(self, tokens: list[int]) -> str:
        """The text of ``tokens`` together, without special tokens."""
        return _beyond(self.known, decode(self.tokenizer, [*self.before, *tokens], skip_special_tokens=True))

    def bytes(self, token: int) -> list[int]:
        """The token's own bytes, which may be only a part of a character's."""
        text, piece = self.text(token), _piece(self.tokenizer, token)
        if text and INCOMPLETE not in text:
            return list(text.encode())
        byte = BYTE.fullmatch(piece)
        if byte is not None:
            return [int(byte[1], 16)]
        if piece and all(character in BYTES for character in piece):
            return [BYTES[character] for character in piece]
        return list(text.encode())
