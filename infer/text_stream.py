"""Incremental detokenisation: a character whose bytes are spread over several tokens is emitted when it is complete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers.decoders import DecodeStream
    from transformers import PreTrainedTokenizerBase

# The replacement character, in place of bytes that are not (yet) a character.
INCOMPLETE = "\ufffd"


def decode(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int]) -> str:
    """The text of `tokens` without special tokens."""
    text = tokenizer.decode(list(tokens), skip_special_tokens=True)
    assert isinstance(text, str)  # a list only for a batch
    return text


class TextStream:
    """Incremental detokeniser: the pieces of `push` and `flush` joined are the text of all tokens pushed.

    Tokenizers of the `tokenizers` library are read by its own `DecodeStream`. For others, and for those that clean up
    spaces after decoding, only a window of tokens is decoded each time: the last complete piece, as context (many
    tokenizers drop or add a space at the start of a text), and what came after it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        from tokenizers.decoders import DecodeStream
        from transformers import PreTrainedTokenizerFast

        self.tokenizer = tokenizer
        self.window: list[int] = []
        self.context = 0  # tokens of the window that are only context
        self.sent = 0  # characters of the window's text that were returned
        self.stream: DecodeStream | None = None
        if isinstance(tokenizer, PreTrainedTokenizerFast) and not tokenizer.clean_up_tokenization_spaces:
            self.stream = DecodeStream(skip_special_tokens=True)

    def push(self, tokens: Sequence[int]) -> str:
        """The new text that is certain after `tokens`."""
        self.window.extend(tokens)
        return self._from_window() if self.stream is None else self._from_stream(self.stream, tokens)

    def _from_stream(self, stream: DecodeStream, tokens: Sequence[int]) -> str:
        backend = self.tokenizer.backend_tokenizer
        piece = "".join(stream.step(backend, token) or "" for token in tokens)
        self.sent += len(piece)
        return piece

    def _from_window(self) -> str:
        text = decode(self.tokenizer, self.window)
        whole = text.rstrip(INCOMPLETE)
        piece = whole[self.sent :]
        self.sent += len(piece)
        if whole == text and piece:
            self.window = self.window[self.context :]
            self.context = len(self.window)
            self.sent = len(decode(self.tokenizer, self.window))
        return piece

    def flush(self) -> str:
        """The rest: bytes that never became a character."""
        piece = decode(self.tokenizer, self.window)[self.sent :]
        self.sent += len(piece)
        return piece
