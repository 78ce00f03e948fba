"""The kinds of datasets with rows, and their Parquet files.

A kind is a dataclass whose fields are the columns of a shard. Lists have a value for each of the T tokens of a text
unless stated otherwise. :class:`Text` is the common form of two kinds: acceptance data has a drafted token at every
position of a text, and rounds have the tokens that a controller drafted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_type_hints, overload

import pyarrow as pa
import pyarrow.parquet as pq

from ..common.errors import InputError
from ..common.json_file import read_parquet
from .dataset import MAKE_AGAIN, ShardEntry, read_manifest, shard_files

ARROW = {str: pa.string(), int: pa.int32(), float: pa.float32(), bool: pa.bool_()}


@dataclass(frozen=True)
class Row:
    """Base class of rows.

    Attributes:
        kind: the dataset's kind in its manifest.
    """

    kind: ClassVar[str]

    def counts(self) -> dict[str, float]:
        """Return the numbers that a shard's entry sums over its rows, see :class:`~.dataset.ShardEntry`."""
        raise NotImplementedError


R = TypeVar("R", bound=Row)


@dataclass(frozen=True)
class AnswerRow(Row):
    """An answer of the target.

    Attributes:
        prompt_id: id of the prompt.
        prompt: the prompt's text; messages as JSON.
        prompt_ids: token ids of the prompt.
        x: tokens sampled from the target, including the end token if it was reached.
    """

    kind = "answers"

    prompt_id: str
    prompt: str
    prompt_ids: list[int]
    x: list[int]

    def counts(self) -> dict[str, float]:
        return {"tokens": len(self.x)}


@dataclass(frozen=True)
class AcceptanceRow(AnswerRow):
    """An answer with its labels (SpecDec++ §3.3).

    The answer ends before the first token outside the draft's vocabulary. It is empty if the prompt has such a token;
    training skips empty rows.

    Attributes:
        y: tokens that the draft samples after the same prefix at every position, y_i ~ q(·|prompt, x_<i).
        p: probability that the target accepts y_i by the dataset's verification rule, see
            :func:`~.rollout.acceptance`.
    """

    kind = "acceptance"

    y: list[int]
    p: list[float]

    def counts(self) -> dict[str, float]:
        return {"tokens": len(self.x), "drafted": len(self.y), "acceptance_sum": sum(self.p)}


@dataclass(frozen=True)
class RoundsRow(AnswerRow):
    """A generation of the decoder with its rounds. Each draft is stored up to its first rejected token.

    Attributes:
        starts: number of tokens of ``x`` before each round's draft.
        drafted: drafted tokens of each round up to the first rejected token.
        accept: probability that the target accepts each drafted token, as ``p`` of an acceptance row.
    """

    kind = "rounds"

    starts: list[int]
    drafted: list[list[int]]
    accept: list[list[float]]

    def counts(self) -> dict[str, float]:
        return {
            "tokens": len(self.x),
            "drafted": sum(map(len, self.drafted)),
            "acceptance_sum": sum(map(sum, self.accept)),
        }


LABELLED: dict[str, type[AcceptanceRow] | type[RoundsRow]] = {kind.kind: kind for kind in (AcceptanceRow, RoundsRow)}
"""The kinds of datasets with drafted tokens and their acceptance, by name."""


@dataclass(frozen=True)
class RouterRow(Row):
    """A prompt for a router (Huang et al. 2024, §2.3). Lists over arms are in the manifest's order.

    Attributes:
        domain: group of the prompt in reports.
        embedding: the target's embedding of the prompt (d,).
        greedy: the target's greedy output, o_e.
        sampled: the target's sampled output.
        outputs: greedy output of each arm, o_j; for ``autoregressive`` the sampled output, because its greedy output is
            o_e. Empty if a token of the prompt is outside the draft's vocabulary.
        rouge: ROUGE-L F1 of each arm's output against the target's greedy output, f(o_e, o_j).
        overlap: acceptance probability of a drafted token at each token of ``sampled`` for each arm, see
            :func:`~.rollout.expected_acceptance`. It is 0 after a token outside the draft's vocabulary, and empty for
            arms without drafts.
    """

    kind = "router"

    prompt_id: str
    domain: str
    prompt: str
    prompt_ids: list[int]
    embedding: list[float]
    greedy: list[int]
    sampled: list[int]
    outputs: list[list[int]]
    rouge: list[float]
    overlap: list[list[float]]

    def counts(self) -> dict[str, float]:
        return {"tokens": len(self.greedy) + len(self.sampled) + sum(map(len, self.outputs))}


@dataclass(frozen=True)
class ResponseRow(Row):
    """A text of another engine.

    Attributes:
        tokens: tokens of the text, with the end token if the text reached it.
        finish_reason: ``stop`` or ``length``.
        reported: number of tokens that the engine reported.
        exact: whether the engine returned ``tokens``; otherwise ``text`` was tokenised again.
    """

    kind = "responses"

    prompt_id: str
    text: str
    tokens: list[int]
    finish_reason: str
    reported: int
    exact: bool

    def counts(self) -> dict[str, float]:
        return {
            "tokens": len(self.tokens),
            "tokenised_again": not self.exact,
            "of_other_length": len(self.tokens) != self.reported,
        }


ROWS: dict[str, type[Row]] = {kind.kind: kind for kind in (AnswerRow, AcceptanceRow, RoundsRow, RouterRow, ResponseRow)}


@dataclass(frozen=True)
class Rows(Generic[R]):
    """A shard of one or more rows of the same kind, written as Parquet."""

    rows: list[R]
    suffix: ClassVar[str] = "parquet"

    def save(self, file: Path) -> None:
        """Write the rows to ``file`` as Parquet."""
        kind = type(self.rows[0])
        hints = get_type_hints(kind)
        schema = pa.schema([(entry.name, arrow_type(hints[entry.name])) for entry in fields(kind)])
        pq.write_table(pa.Table.from_pylist([vars(row) for row in self.rows], schema=schema), file, compression="zstd")

    def entry(self, file: str, sha256: str) -> ShardEntry:
        """Return the shard's entry in the manifest."""
        counts = [row.counts() for row in self.rows]
        sums: dict[str, Any] = {name: sum(shard_counts[name] for shard_counts in counts) for name in counts[0]}
        return replace(ShardEntry(file=file, rows=len(counts), sha256=sha256), **sums)


def arrow_type(hint: Any) -> pa.DataType:
    """Return the Parquet type of a column for the type ``hint`` of a field: text, a number, a boolean, or lists."""
    return ARROW[hint] if hint in ARROW else pa.list_(arrow_type(*get_args(hint)))


@overload
def read_dataset(folder: str | Path) -> list[Row]: ...
@overload
def read_dataset(folder: str | Path, kind: type[R]) -> list[R]: ...
def read_dataset(folder: str | Path, kind: type[Row] | None = None) -> Sequence[Row]:
    """Return all rows of a dataset, after a check of the shards' hashes.

    Args:
        folder: folder of the dataset.
        kind: class of the rows; datasets of another kind are refused. By default, the class of the dataset's rows.

    Raises:
        InputError: as :func:`~.dataset.read_manifest`; or a shard is missing or does not match the manifest.
    """
    if kind is None:
        kind = ROWS[read_manifest(folder, *ROWS).kind]
    read_manifest(folder, kind.kind)
    return [row for file in shard_files(folder) for row in read_shard(file, kind)]


def read_shard(file: Path, kind: type[R]) -> list[R]:
    """Return the rows of a shard."""
    return [kind(**row) for row in read_parquet(file, MAKE_AGAIN)]


@dataclass(frozen=True)
class Text:
    """A text of the target with M drafted tokens, each after a prefix of the text.

    Attributes:
        x: tokens of the text.
        places: number of the text's tokens before each drafted token (M,), ascending.
        tokens: the drafted tokens (M,).
        accept: acceptance probability of each drafted token (M,).
        depths: number of tokens that the round drafted before each drafted token (M,); 0 in acceptance data.
    """

    prompt_id: str
    prompt_ids: list[int]
    x: list[int]
    places: list[int]
    tokens: list[int]
    accept: list[float]
    depths: list[int]

    def cut(self, length: int) -> Text:
        """Return the first ``length`` tokens of the text, with the drafted tokens at their positions."""
        return replace(self._drafted(0, sum(position < length for position in self.places)), x=self.x[:length])

    def after_first(self) -> Text:
        """Return the text without the drafted token at its first position, which the prefill gives."""
        return self._drafted(sum(position < 1 for position in self.places), len(self.places))

    def _drafted(self, start: int, end: int) -> Text:
        """Return the text with the drafted tokens ``start`` to ``end`` only."""
        parts = {name: vars(self)[name][start:end] for name in ("places", "tokens", "accept", "depths")}
        return replace(self, **parts)


def text_of(row: AcceptanceRow | RoundsRow) -> Text:
    """Convert a row of a dataset to the common form :class:`Text`.

    An acceptance row has a drafted token at every position of the text. A rounds row has the drafted tokens of each
    round, which the conversion joins in order.

    Raises:
        InputError: the numbers of positions, drafted tokens and acceptance probabilities differ, or an acceptance
            probability is not in [0, 1].
    """
    if isinstance(row, AcceptanceRow):
        length = len(row.x)
        text = Text(
            row.prompt_id, row.prompt_ids, row.x,
            places=[*range(length)], tokens=row.y, accept=row.p, depths=[0] * length,
        )  # fmt: skip
    else:
        depths = [depth for draft in row.drafted for depth in range(len(draft))]
        starts = [start for start, draft in zip(row.starts, row.drafted, strict=True) for _ in draft]
        text = Text(
            row.prompt_id, row.prompt_ids, row.x,
            places=[start + depth for start, depth in zip(starts, depths, strict=True)],
            tokens=[token for draft in row.drafted for token in draft],
            accept=[probability for probabilities in row.accept for probability in probabilities],
            depths=depths,
        )  # fmt: skip
    if not len(text.places) == len(text.tokens) == len(text.accept):
        raise InputError(
            f"prompt {text.prompt_id!r}: positions, drafted tokens and acceptance probabilities "
            "differ in length; generate the data again"
        )
    for probability in text.accept:
        if not 0 <= probability <= 1:  # also false for NaN
            raise InputError(
                f"prompt {text.prompt_id!r}: P={probability} is not a probability; generate the data again"
            )
    return text


def read_texts(folder: str | Path, kind: str) -> Iterator[Text]:
    """Yield all texts of a dataset of ``kind``, in order; raises InputError if a row is malformed."""
    for file in shard_files(folder):
        yield from map(text_of, read_shard(file, LABELLED[kind]))
