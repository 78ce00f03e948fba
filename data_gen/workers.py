"""Workers make the shards of a dataset: one in this process, or several on a Ray cluster.

The unit of work is a shard. A shard depends on nothing but its unit and the models, so any worker may make it, again if
necessary, and the datasets are the same bytes. Units are sent to the workers and shards come back; only the process
that holds the folder's lock reads prompts and data and writes files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

from rich.console import Console

from .options import WorkerOptions

U_contra = TypeVar("U_contra", contravariant=True)
S_co = TypeVar("S_co", covariant=True)
U = TypeVar("U")
S = TypeVar("S")
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

    def make_all(self, units: Mapping[int, U_contra], on_done: OnDone = ignore) -> Iterator[tuple[int, S_co]]:
        """Yield the index and the shard of every unit, in any order."""


class ThisProcess(Workers[U, S]):
    """A shard maker in this process."""

    def __init__(self, maker: ShardMaker[U, S]) -> None:
        self.maker = maker
        self.description = maker.describe()

    def ask(self, question: Callable[[Any], T]) -> T:
        return question(self.maker)

    def make_all(self, units: Mapping[int, U], on_done: OnDone = ignore) -> Iterator[tuple[int, S]]:
        for index, unit in units.items():
            yield index, self.maker.make(unit, on_done)


def open_workers(
    new_maker: Callable[[], ShardMaker[U, S]], options: WorkerOptions, device: str, console: Console
) -> AbstractContextManager[Workers[U, S]]:
    """Context manager of the workers that ``options`` ask for.

    Args:
        new_maker: loads the models; it is called in the worker's process.
        device: where ``new_maker`` places them; ``auto`` and ``cuda`` take one GPU per worker if the cluster has any.

    Raises:
        InputError: Ray is not installed, there is no cluster at the address, or ``device`` names one of several.
    """
    if options.workers is None:
        return nullcontext(ThisProcess(new_maker()))
    from .ray_workers import RayWorkers

    return RayWorkers(new_maker, options, device, console)
