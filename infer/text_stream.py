"""Converts tokens to text: piece by piece while they are generated, with stop strings, or token by token."""

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

# The replacement character, which stands for bytes that are not (yet) a character.
INCOMPLETE = "\ufffd"
BYTE = re.compile("<0x([0-9A-F]{2})>")  # a byte token of SentencePiece
WINDOW = 16  # number of tokens that are decoded together
Stop: TypeAlias = str | Sequence[str] | None  # strings that end a text


@dataclass(frozen=True)
class TextStyle:
    """The rules that make a text from a request's tokens, with the names of vLLM.

    Attributes:
        stop: strings that end the text; they may contain special tokens.
        stop_token_ids: tokens that end the text and are not part of it.
        skip_special_tokens: whether special tokens are left out.
        include_stop: whether the text includes the stop string or token that ended it.
        across: whether a stop string may begin in the prompt, as in transformers.
    """

    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    skip_special_tokens: bool = True
    include_stop: bool = False
    across: bool = False

    @classmethod
    def until(cls, stop: Stop, name: str = "stop", *, across: bool = False) -> TextStyle:
        """Return the style of a text that the strings ``stop`` end.

        Args:
            stop: a string, a sequence of strings, or None.
            name: the name of the argument, for messages.
            across: as for the class.

        Raises:
            InputError: ``stop`` is not a string or a sequence of strings, or a string is empty.
        """
        stops = () if stop is None else (stop,) if isinstance(stop, str) else stop
        if not isinstance(stops, list | tuple) or not all(isinstance(string, str) and string for string in stops):
            raise InputError(f"{name}={stop!r}: give a string or a list of strings, none of them empty")
        return cls(tuple(stops), across=across)


PLAIN = TextStyle()


class TextStream:
    """The text of an answer while it grows: the pieces of `push` and `flush` joined are the whole text.

    Args:
        tokenizer: the tokenizer.
        prompt: tokens before the answer. The answer's text continues the prompt's: both joined equal the text that the
            tokenizer decodes from all tokens together.
        style: the rules of the text. A stop string ends the text at the first token after which the text so far,
            decoded as a whole, contains the string.
        by_token: whether ``places`` is recorded.

    Attributes:
        ended: whether a stop string or a token of ``stop_token_ids`` has ended the text.
        places: for each token, the number of characters of the text before it.
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
        self._pending = ""  # the end of the final text that may be the beginning of a stop string
        self._words = Detokenizer(tokenizer, prompt, style.skip_special_tokens)
        # In the pending text, lone surrogates mark special tokens that stop strings contain and the text leaves out.
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
        self._before = len(self._pending)  # number of characters of the pending text that belong to the prompt

    def push(self, tokens: Sequence[int]) -> str:
        """Add `tokens`, and return the new text that later tokens cannot change."""
        if not (self.style.stop or self.style.stop_token_ids or self.by_token):
            return self._words.push(tokens)
        return "".join(self._step(token) for token in tokens)

    def flush(self) -> str:
        """End the text, and return the rest, which later tokens might have changed."""
        text, self.ended = self._unreturned(), True
        return text

    def _unreturned(self) -> str:
        """Return the text that would follow if the text ended here."""
        return "" if self.ended else self._visible((self._pending + self._words.undecided())[self._before :])

    def _step(self, token: int) -> str:
        """Add one token, and return the new text."""
        if self.by_token:
            unreturned = self._unreturned().rstrip(INCOMPLETE)
            self.places.append(max([self._returned + len(unreturned), *self.places[-1:]]))
        piece = "" if self.ended else self._visible(self._add(token))
        self._returned += len(piece)
        return piece

    def _add(self, token: int) -> str:
        """Add one token, search for stop strings, and return the new text with marks of special tokens."""
        last = token in self.style.stop_token_ids
        if not last or self.style.include_stop:
            self._pending += self._words.push([token])
        if token in self._marks:
            self._pending += self._words.settle() + self._marks[token]
        text = self._pending + self._words.undecided()
        matches = []
        for stop in self._stops:
            position = text.find(stop, max(0, self._before + 1 - len(stop)))  # only strings that end in the answer
            if position >= 0:
                matches.append((position, -len(stop), stop))
        if matches:
            position, _, stop = min(matches)  # the earliest; of several at this place, the longest
            text = text[:position] + (self._stops[stop] if self.style.include_stop else "")
        if last or matches:
            self.ended = True
            return text[self._before :]
        end = len(self._pending) - count_held_back(self._pending, self._stops)
        piece, self._pending = self._pending[self._before : end], self._pending[end:]
        self._before = max(0, self._before - end)
        return piece

    def _visible(self, text: str) -> str:
        """Return ``text`` without the marks of special tokens."""
        for mark in self._marks.values():
            text = text.replace(mark, "")
        return text


def count_held_back(text: str, stops: Iterable[str]) -> int:
    """Return the number of last characters of ``text`` that may be the beginning of one of ``stops``."""
    longest = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:length]):
                longest = length
                break
    return longest


def _marks(tokenizer: PreTrainedTokenizerBase, style: TextStyle) -> dict[int, str]:
    """Return a lone surrogate for each special token that the text leaves out and a stop string contains."""
    if not style.skip_special_tokens or not style.stop:
        return {}
    special = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    special |= set(tokenizer.all_special_tokens)
    # The longest first, because a token may be part of another.
    stop_marks = sorted((mark for mark in special if any(mark in stop for stop in style.stop)), key=len, reverse=True)
    return {int(tokenizer.convert_tokens_to_ids(mark)): chr(0xDC00 + i) for i, mark in enumerate(stop_marks)}  # type: ignore[arg-type]


class Detokenizer:
    """The text of tokens piece by piece: all pieces and `rest` joined equal the text that the tokenizer decodes.

    A few tokens are decoded at a time, together with some tokens before them, because many tokenizers drop or add a
    space at the start of a text. Three kinds of text are held back, because later tokens may change them: characters
    that lack bytes; runs of byte tokens, which are characters only if the whole run is UTF-8; and words that the
    clean-up of spaces may join to the next word.

    Args:
        tokenizer: the tokenizer.
        context: tokens before the text.
        skip_special_tokens: whether special tokens are left out.

    Attributes:
        cleans: whether the tokenizer removes spaces before punctuation.
        awaited: special tokens that change the text before them; text is held back until one of them.
        window: the tokens that are decoded together.
        returned_tokens: number of the window's tokens whose text has been returned.
        final_tokens: number of the window's tokens whose text later tokens cannot change.
        text: the text of the returned tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, context: Sequence[int], skip_special_tokens: bool) -> None:
        self.tokenizer, self.skip_special_tokens = tokenizer, skip_special_tokens
        self.cleans = _cleans_up(tokenizer)
        self.awaited = frozenset() if skip_special_tokens else _rewriting(tokenizer)
        self.window = self._end_of(list(context))
        self.returned_tokens = self.final_tokens = len(self.window)
        self.text = self._decode(self.window)

    def push(self, tokens: Sequence[int]) -> str:
        """Add ``tokens``, and return the new text that later tokens cannot change."""
        for token in tokens:
            self.window.append(token)
            in_run = self.final_tokens < len(self.window) - 1 and self._decode([token]) == ""  # an unseen special token
            if self.awaited:
                self.final_tokens = len(self.window) if token in self.awaited else self.final_tokens
            elif not in_run and not BYTE.fullmatch(_piece(self.tokenizer, token)):
                self.final_tokens = len(self.window)
        text = self._decode(self.window[: self.final_tokens])
        if self.cleans:
            return self._take_new_text(text[: _last_word(text)], is_complete=False)
        return self._take_new_text(text.rstrip(INCOMPLETE), is_complete=not text.endswith(INCOMPLETE))

    def undecided(self) -> str:
        """Return the text that would follow if the text ended here."""
        return _beyond(self.text, self._decode(self.window))

    def settle(self) -> str:
        """Return the :meth:`rest`, as if later tokens could not change it."""
        text, self.final_tokens = self.undecided(), len(self.window)
        self.text = self._decode(self.window)
        return text

    def _take_new_text(self, text: str, is_complete: bool) -> str:
        """Return the new part of ``text``, and advance the window.

        Args:
            text: text of the window that later tokens cannot change.
            is_complete: whether ``text`` is the text of all tokens before ``final_tokens``.
        """
        piece = _beyond(self.text, text)
        if piece:
            self.text = text
            new_tokens = self.window[self.returned_tokens : self.final_tokens]
            if is_complete and len(self.window) > WINDOW and self._is_context(new_tokens):
                self.window = self.window[self.returned_tokens :]
                self.text = self._decode(new_tokens)
                self.final_tokens -= self.returned_tokens
            self.returned_tokens = self.final_tokens if is_complete else self.returned_tokens
        return piece

    def _end_of(self, context: list[int]) -> list[int]:
        """Return the last tokens of ``context``, as many as affect the text of later tokens."""
        count = WINDOW
        while count < len(context):
            end = context[-count:]
            if not BYTE.fullmatch(_piece(self.tokenizer, end[0])) and self._is_context(end):
                return end
            count *= 2
        return context

    def _is_context(self, tokens: list[int]) -> bool:
        """Return true if text after ``tokens`` is not at the start of a text."""
        return decode(self.tokenizer, tokens, skip_special_tokens=True).strip().strip(INCOMPLETE) != ""

    def _decode(self, tokens: list[int]) -> str:
        """Return the text of ``tokens``."""
        return decode(self.tokenizer, tokens, self.skip_special_tokens)


def decode(tokenizer: PreTrainedTokenizerBase, tokens: list[int], skip_special_tokens: bool = False) -> str:
    """Return the text of ``tokens``, without ids that the tokenizer does not have."""
    try:
        return str(tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens))
    except Exception:  # tokenizers in Python raise anything
        return str(tokenizer.decode([token for token in tokens if _can_decode(tokenizer, token)], skip_special_tokens))


def _can_decode(tokenizer: PreTrainedTokenizerBase, token: int) -> bool:
    """Return true if the tokenizer can decode ``token``."""
    try:
        tokenizer.decode([token])
    except Exception:
        return False
    return True


def _piece(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """Return the token as written in the vocabulary; empty if the vocabulary does not have it."""
    try:
        return str(tokenizer.convert_ids_to_tokens(token) or "")
    except Exception:  # tokenizers in Python raise anything
        return ""


def _beyond(start: str, text: str) -> str:
    """Return ``text`` without the longest common beginning of ``text`` and ``start``."""
    if text.startswith(start):
        return text[len(start) :]
    return text[next((i for i, (a, b) in enumerate(zip(start, text, strict=False)) if a != b), len(text)) :]


def _cleans_up(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return true if ``decode`` removes the spaces before punctuation."""
    if not getattr(tokenizer, "clean_up_tokenization_spaces", False):
        return False
    model = type(tokenizer.backend_tokenizer.model).__name__ if hasattr(tokenizer, "backend_tokenizer") else ""
    return model != "BPE" or tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output


def _rewriting(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the special tokens if they change the text before them, as in tokenizers written in Python; else none.

    Such tokenizers add a space at the start of the text before a special token.
    """
    special = frozenset(tokenizer.all_special_ids)
    if tokenizer.is_fast or not special:
        return frozenset()
    plain = next((t for t in range(len(tokenizer)) if t not in special and decode(tokenizer, [t]).isalnum()), None)
    if plain is None:
        return frozenset()
    before = [min(special), plain]
    is_kept = decode(tokenizer, [*before, before[0]]).startswith(decode(tokenizer, before))
    return frozenset() if is_kept else special


def _last_word(text: str) -> int:
    """Return the index of the last word of ``text`` that the clean-up of spaces does not join to the word before it."""
    position = text.rfind(" ")
    while position > 0 and text[:position].rpartition(" ")[2] in ("", "'", "n"):
        position = text.rfind(" ", 0, position)
    return max(position, 0)


# The byte for each character that byte-level tokenizers write; ByT5 writes the character with the byte's number.
BYTES = {chr(byte): byte for byte in range(256)} | {character: byte for byte, character in bytes_to_unicode().items()}


class TokenTexts:
    """The text and bytes of single tokens, as they are within a text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.special = frozenset(tokenizer.all_special_ids)
        # Tokens are decoded after a token with text, because they lack their space at the start of a text.
        ordinary = (token for token in range(len(tokenizer)) if token not in self.special)
        plain = (token for token in ordinary if not BYTE.fullmatch(_piece(tokenizer, token)))
        self.before = list(islice((token for token in plain if decode(tokenizer, [token]).isalnum()), 1))
        self.before_text = decode(tokenizer, self.before)

    def text(self, token: int) -> str:
        """Return the token's text, with U+FFFD for bytes that are not characters."""
        if token in self.special:
            return _piece(self.tokenizer, token)
        return self.joined([token])

    def joined(self, tokens: list[int]) -> str:
        """Return the text of ``tokens`` together, without special tokens."""
        return _beyond(self.before_text, decode(self.tokenizer, [*self.before, *tokens], skip_special_tokens=True))

    def bytes(self, token: int) -> list[int]:
        """Return the token's bytes in UTF-8, as numbers from 0 to 255.

        A token may have only a part of a character's bytes. These bytes are read from the vocabulary: from a byte token
        such as ``<0x0A>``, or from the characters by which byte-level tokenizers write bytes. Tokens in no such form
        have the bytes of their :meth:`text`.
        """
        text, piece = self.text(token), _piece(self.tokenizer, token)
        if text and INCOMPLETE not in text:
            return list(text.encode())
        byte = BYTE.fullmatch(piece)
        if byte is not None:
            return [int(byte[1], 16)]
        if piece and all(character in BYTES for character in piece):
            return [BYTES[character] for character in piece]
        return list(text.encode())
