"""Workers make the shards of a dataset, in this process or on a Ray cluster, and a loop writes the shards.

The unit of work is a shard. A shard depends only on its unit and the models. Any worker may therefore make it, again if
necessary, and the bytes of the dataset are the same. Units are sent to the workers, and shards come back. Only the
process with the folder's lock reads prompts and data and writes files. The same loop writes the texts of ``generate
--prompts``, one by one.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rich.console import Console

from ..common.console import progress_bar
from ..common.errors import InputError, counted
from ..common.record import Identity

U_contra = TypeVar("U_contra", contravariant=True)
S_co = TypeVar("S_co", covariant=True)
S_contra = TypeVar("S_contra", contravariant=True)
U = TypeVar("U")
S = TypeVar("S")
T = TypeVar("T")

OnDone = Callable[[int], None]
"""A function that is called for each text of a shard, with the text's number of tokens."""


def ignore(tokens: int) -> None:
    """Do nothing; the default of ``on_done``."""


@dataclass(frozen=True)
class Description:
    """Facts about the models that planning a dataset needs. All workers must agree in them.

    Attributes:
        identity: the part of the dataset's identity that comes from the models.
        device: type of the device that makes the shards.
        context: shortest context of the models in tokens; None if it is not limited.
        encoder: whether the target reads prompts by an encoder.
        embedding_bytes: size of the draft's embedding if it is part of the dataset; else 0.
        hardware, versions: hardware and versions of packages on a worker's machine.
    """

    identity: Identity
    device: str = ""
    context: int | None = None
    encoder: bool = False
    embedding_bytes: int = 0
    hardware: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


class ShardMaker(Protocol[U_contra, S_co]):
    """Makes the shards of a dataset with its models."""

    def describe(self) -> Description:
        """Return the facts about the models that planning needs."""

    def make(self, unit: U_contra, on_done: OnDone = ignore) -> S_co:
        """Return the shard of ``unit``."""


class Workers(Protocol[U_contra, S_co]):
    """One or more shard makers.

    Attributes:
        description: the result of :meth:`ShardMaker.describe`.
    """

    description: Description

    def ask(self, question: Callable[[Any], T]) -> T:
        """Return the result of ``question`` for a shard maker, called in the maker's process while the others wait."""

    def make_all(
        self, units: Mapping[int, Callable[[], U_contra]], on_done: OnDone = ignore
    ) -> Iterator[tuple[int, S_co]]:
        """Yield the index and the shard of every unit, in any order.

        Args:
            units: for each index a function that makes the unit, called when a maker is free.
            on_done: called with the number of tokens of each finished text.
        """


class Writer(Protocol[S_contra]):
    """Writes shards to a folder of files, or as lines of a file. Some shards may already be written.

    Attributes:
        path: the folder or file.
        noun: the noun for an entry.
        is_complete: whether all shards are written.
        tokens: number of tokens or other examples of the written shards; None if they are not counted.
    """

    @property
    def path(self) -> Path: ...
    @property
    def noun(self) -> str: ...
    @property
    def is_complete(self) -> bool: ...
    @property
    def tokens(self) -> int | None: ...

    def forget_damaged(self) -> list[str]:
        """Mark shards that are missing or changed as not written, and return their names."""

    def missing(self, total: int) -> list[int]:
        """Return the numbers of the shards, of ``total`` in all, that are not yet written."""

    def write(self, shard: S_contra, number: int) -> None:
        """Write the shard ``number``."""

    def complete(self) -> None:
        """Finish after all shards are written."""


class ThisProcess(Workers[U, S]):
    """A shard maker in this process."""

    def __init__(self, maker: ShardMaker[U, S]) -> None:
        self.maker = maker
        self.description = maker.describe()

    def ask(self, question: Callable[[Any], T]) -> T:
        return question(self.maker)

    def make_all(self, units: Mapping[int, Callable[[], U]], on_done: OnDone = ignore) -> Iterator[tuple[int, S]]:
        for index, new_unit in units.items():
            yield index, self.maker.make(new_unit(), on_done)


def disk_free(path: Path) -> int:
    """Return the free bytes on the disk of ``path``, which need not exist."""
    return shutil.disk_usage(path if path.exists() else path.parent).free


def write_shards(
    writer: Writer[S],
    texts: Sequence[int],
    unit_of: Callable[[int], U],
    make_all: Callable[[Mapping[int, Callable[[], U]], OnDone], Iterator[tuple[int, S]]],
    console: Console,
    shard_bytes: Sequence[int] = (),
) -> bool:
    """Write missing and damaged shards, and mark the dataset as complete.

    Args:
        writer: writes the shards.
        texts: number of texts of each shard.
        unit_of: returns the unit of a shard by the shard's number.
        make_all: yields the number and the shard of every unit, in any order, as :meth:`Workers.make_all`.
        console: shows the progress.
        shard_bytes: minimum number of bytes of each shard; without it, the free space is not checked.

    Returns:
        False if the dataset was already complete.

    Raises:
        InputError: the disk does not have enough space.
    """
    output, total, noun = writer.path, sum(texts), writer.noun
    for name in writer.forget_damaged():
        console.print(f"{output / name}: is missing or changed, and is made again", soft_wrap=True)
    if writer.is_complete:
        console.print(f"{output}: already complete ({counted(total, noun)})")
        return False
    missing = writer.missing(len(texts))
    finished = total - sum(texts[number] for number in missing)
    if finished:
        console.print(f"{output}: continues after {counted(finished, noun)}")
    space, free = sum(shard_bytes[number] for number in missing if shard_bytes), disk_free(output)
    if space > free:
        raise InputError(
            f"{output}: needs {space / 1e6:,.1f} MB, but only {free / 1e6:,.1f} MB are free; free space or choose "
            "another place"
        )
    with progress_bar(console, f"{noun}s", total, finished) as advance:
        started, tokens = time.perf_counter(), 0

        def count(length: int) -> None:
            nonlocal tokens
            tokens += length
            advance(f"{tokens / (time.perf_counter() - started):,.0f} tokens/s")

        for number, shard in make_all({number: partial(unit_of, number) for number in missing}, count):
            writer.write(shard, number)
        writer.complete()
    unit = "example" if noun == "reading" else "token"
    size = "" if writer.tokens is None else f", {counted(writer.tokens, unit)}"
    console.print(f"{output}: {counted(total, noun)}{size}", soft_wrap=True)
    return True
