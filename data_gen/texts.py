"""Texts with drafted tokens, from acceptance data or rounds, read one shard at a time.

*Acceptance data* has a drafted token at every position of a text. *Rounds*, logged by the decoder, have the tokens that
a controller drafted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ..common.errors import InputError
from .dataset import shard_files
from .kinds import LABELLED, AcceptanceRow, RoundsRow, read_shard


@dataclass(frozen=True)
class Text:
    """A text sampled from the target and M tokens drafted in it, each after a prefix of the text.

    Attributes:
        places: (M,) number of the text's tokens before each, ascending.
        tokens: (M,) the drafted tokens.
        accept: (M,) acceptance probability of each.
        depths: (M,) number of tokens drafted before each in its round; 0 in acceptance data.
    """

    prompt_id: str
    prompt_ids: list[int]
    x: list[int]
    places: list[int]
    tokens: list[int]
    accept: list[float]
    depths: list[int]

    def cut(self, length: int) -> Text:
        """The first ``length`` tokens, with the tokens drafted within them."""
        return replace(self._drafted(0, sum(place < length for place in self.places)), x=self.x[:length])

    def after_first(self) -> Text:
        """The text without the token drafted at its first position, since the prefill gives the first token."""
        return self._drafted(sum(place < 1 for place in self.places), len(self.places))

    def _drafted(self, start: int, end: int) -> Text:
        parts = {name: vars(self)[name][start:end] for name in ("places", "tokens", "accept", "depths")}
        return replace(self, **parts)


def text_of(row: AcceptanceRow | RoundsRow) -> Text:
    """The text of a rollout with a drafted token at every position, or of a generation with its rounds' tokens.

    Raises:
        InputError: the row is malformed.
    """
    if isinstance(row, AcceptanceRow):
        count = len(row.x)
        text = Text(row.prompt_id, row.prompt_ids, row.x, [*range(count)], row.y, row.p, [0] * count)
    else:
        text = Text(
            row.prompt_id, row.prompt_ids, row.x,
            [start + i for start, draft in zip(row.starts, row.drafted, strict=True) for i in range(len(draft))],
            [token for draft in row.drafted for token in draft],
            [probability for accept in row.accept for probability in accept],
            [depth for draft in row.drafted for depth in range(len(draft))],
        )  # fmt: skip
    if not len(text.places) == len(text.tokens) == len(text.accept):
        raise InputError(f"prompt {text.prompt_id!r}: x, y and p differ in length; generate the data again")
    for probability in text.accept:
        if not 0 <= probability <= 1:  # also false for NaN
            raise InputError(
                f"prompt {text.prompt_id!r}: P={probability} is no probability in [0, 1]; generate the data again"
            )
    return text


def read_texts(folder: str | Path, kind: str) -> Iterator[Text]:
    """All texts of a dataset of ``kind``, in order; raises InputError if a row is malformed."""
    for file in shard_files(folder):
        yield from map(text_of, read_shard(file, LABELLED[kind]))
