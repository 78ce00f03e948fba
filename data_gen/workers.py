"""Workers make the shards of a dataset, in this process or on a Ray cluster, and one loop writes them.

The unit of work is a shard. A shard depends on nothing but its unit and the models, so any worker may make it, again if
necessary, and the datasets are the same bytes. Units are sent to the workers and shards come back; only the process
that holds the folder's lock reads prompts and data and writes files.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from rich.console import Console

from ..common.console import progress_bar
from ..common.errors import InputError, counted
from .dataset import Shard, ShardWriter

U_contra = TypeVar("U_contra", contravariant=True)
S_co = TypeVar("S_co", covariant=True)
U = TypeVar("U")
S = TypeVar("S", bound=Shard)
T = TypeVar("T")

OnDone = Callable[[int], None]
"""Called for each text of a shard with its number of tokens."""


def ignore(tokens: int) -> None:
    """The default of ``on_done``."""


class ShardMaker(Protocol[U_contra, S_co]):
    """Holds the models of a dataset and makes its shards."""

    def describe(self) -> dict[str, Any]:
        """The facts about the models that planning needs and in which all workers must agree."""

    def make(self, unit: U_contra, on_done: OnDone = ignore) -> S_co:
        """The shard of ``unit``."""


class Workers(Protocol[U_contra, S_co]):
    """One or more shard makers.

    Attributes:
        description: what :meth:`ShardMaker.describe` returned.
    """

    description: dict[str, Any]

    def ask(self, question: Callable[[Any], T]) -> T:
        """Call ``question`` with one shard maker, in its process, while the others rest."""

    def make_all(
        self, units: Mapping[int, Callable[[], U_contra]], on_done: OnDone = ignore
    ) -> Iterator[tuple[int, S_co]]:
        """Yield the index and the shard of every unit, in any order; a unit is made when it is given to a maker."""


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


def write_shards(
    writer: ShardWriter,
    texts: Sequence[int],
    unit_of: Callable[[int], U],
    workers: Workers[U, S],
    console: Console,
    needed: Sequence[int] = (),
) -> bool:
    """Write the missing and damaged shards and mark the dataset complete; return False if it already was.

    Args:
        texts: number of texts of each shard.
        unit_of: the unit of a shard by its number.
        needed: bytes that each shard needs at least; default: not checked.

    Raises:
        InputError: the disk has not the space that is needed.
    """
    output, total = writer.folder, sum(texts)
    noun = "reading" if writer.manifest["kind"] == "features" else "text"  # of one text there may be several
    for name in writer.forget_damaged():
        console.print(f"{output / name}: missing or changed; made again", soft_wrap=True)
    if writer.manifest["complete"]:
        console.print(f"{output}: already complete ({counted(total, noun)})")
        return False
    missing = writer.missing(len(texts))
    done = total - sum(texts[number] for number in missing)
    if done:
        console.print(f"{output}: {counted(done, noun)} found, continuing")
    space, free = sum(needed[number] for number in missing if needed), shutil.disk_usage(output).free
    if space > free:
        raise InputError(
            f"{output}: needs {space / 1e6:,.1f} MB and {free / 1e6:,.1f} MB are free; free space or choose another "
            "place"
        )
    with progress_bar(console, f"{noun}s", total, done) as advance:
        started, tokens = time.perf_counter(), 0

        def count(length: int) -> None:
            nonlocal tokens
            tokens += length
            advance(f"{tokens / (time.perf_counter() - started):,.0f} tokens/s")

        for number, shard in workers.make_all({number: partial(unit_of, number) for number in missing}, count):
            writer.write(shard, number)
        writer.complete()
    kept = sum(shard.get("tokens", shard.get("rows", 0)) for shard in writer.manifest["shards"])
    console.print(f"{output}: {counted(total, noun)}, {counted(kept, 'example' if noun == 'reading' else 'token')}")
    return True
