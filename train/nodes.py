"""Training on several machines: each runs the same command, and the first one writes the run folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..common.errors import InputError
from ..common.files import locked
from .options import LoggedTrainingOptions

VARIABLES = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")  # as torch and Lightning name them


def is_first_node(settings: LoggedTrainingOptions) -> bool:
    """Whether this machine is the first of ``settings.num_nodes``, by NODE_RANK.

    Raises:
        InputError: there are several, and a variable that each must know is missing or wrong.
    """
    if settings.num_nodes == 1:
        return True
    for name in VARIABLES:
        if not os.environ.get(name):
            raise InputError(
                f"num_nodes={settings.num_nodes}: {name} is not set; set {', '.join(VARIABLES)} on every machine: its "
                "number from 0, and address and port of machine 0"
            )
    rank = os.environ["NODE_RANK"]
    if not rank.isdecimal() or int(rank) >= settings.num_nodes:
        raise InputError(f"NODE_RANK={rank}: must be a number from 0 to {settings.num_nodes - 1}")
    return int(rank) == 0


@contextmanager
def training_in(folder: Path, settings: LoggedTrainingOptions) -> Iterator[None]:
    """Lock the run folder; the other machines write nothing to it, and do not lock it.

    Raises:
        InputError: another process is training in it.
    """
    if is_first_node(settings):
        with locked(folder, "is training in it"):
            yield
    else:
        yield
