"""What a program shows on the console: no messages of libraries, and a progress bar of its own."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def quiet() -> None:
    """Show only errors of transformers and Lightning, and warnings in one line. For programs, not for libraries."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    warnings.showwarning = _one_line


def _one_line(message: Warning | str, *_: object, **__: object) -> None:
    print("specpilot: warning:", " ".join(str(message).split()), file=sys.stderr)


@contextmanager
def progress_bar(console: Console, label: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar of ``total`` steps while the block runs; yields a function that advances it by one step.

    Without a terminal nothing is shown: the bar would leave an empty line.
    """
    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
