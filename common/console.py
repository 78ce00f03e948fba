"""Output of programs on the console: silenced libraries, warnings in one line, and progress bars."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

logger = logging.getLogger("specpilot")

EVERY = 5.0  # seconds between two lines of progress without a terminal


def quiet(*, detailed: bool = False) -> None:
    """Show only errors of transformers and Lightning, and warnings in one line. For programs, not for libraries.

    Args:
        detailed: show all log messages of specpilot, also those of the level ``DEBUG``.
    """
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    warnings.showwarning = _one_line
    logger.setLevel(logging.DEBUG if detailed else logging.INFO)
    logger.handlers, logger.propagate = [_OneLine()], False


class _OneLine(logging.Handler):
    """Prints log messages to standard error, one line each."""

    def emit(self, record: logging.LogRecord) -> None:
        print("specpilot:", record.getMessage(), file=sys.stderr, flush=True)


def _one_line(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning to standard error in one line; replaces ``warnings.showwarning``."""
    print("specpilot: warning:", " ".join(str(message).split()), file=sys.stderr)


@contextmanager
def log_at_end() -> Iterator[None]:
    """Show log messages of the block when it ends; drop them if it fails, because an error is one line."""
    records: list[logging.LogRecord] = []

    def hold(record: logging.LogRecord) -> bool:
        records.append(record)
        return False

    logger.addFilter(hold)
    try:
        yield
    finally:
        logger.removeFilter(hold)
    for record in records:
        logger.handle(record)


@contextmanager
def warn_at_end() -> Iterator[None]:
    """Show warnings of the block when it ends, after its output; drop them if it fails."""
    with warnings.catch_warnings(record=True) as messages:
        yield
    for warning in messages:
        warnings.showwarning(warning.message, warning.category, warning.filename, warning.lineno)


def stderr_console() -> Console:
    """Return a console on standard error that shows text unchanged: not wrapped, and without markup such as ``[x]``."""
    return Console(stderr=True, markup=False, emoji=False, soft_wrap=True)


class Advance(Protocol):
    """A function that advances a progress bar by one step.

    ``note`` is shown beside the count until the next note.
    """

    def __call__(self, note: str | None = None) -> None: ...


@contextmanager
def progress_bar(console: Console, label: str, total: int, completed: int = 0) -> Iterator[Advance]:
    """Show a progress bar while the block runs. Yields a function that advances the bar by one step.

    Without a terminal, a line is printed every few seconds instead, even if no step was made.

    Args:
        console: the console.
        label: the name of the steps.
        total: number of steps, with those that are done.
        completed: number of steps that are done before the block.
    """
    if console.is_terminal or console.is_jupyter:
        columns = (
            TextColumn(label), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}", markup=False),
            TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=total, completed=completed, note="")

            def advance(note: str | None = None) -> None:
                fields: dict[str, Any] = {} if note is None else {"note": note}
                bar.update(task, advance=1, **fields)

            yield advance
        return
    lines = _Lines(label, total, completed)
    ended = Event()

    def report() -> None:
        with suppress(OSError, ValueError):  # the stream is closed
            while not ended.wait(EVERY):
                console.print(lines.line(), soft_wrap=True, highlight=False, markup=False)

    reporter = Thread(target=report, daemon=True)
    reporter.start()
    try:
        yield lines.advance
    finally:
        ended.set()
        reporter.join()


class _Lines:
    """The lines of :func:`progress_bar` without a terminal: label, count, rate, and the remaining time.

    Attributes:
        total: number of steps.
        skipped: number of steps that were done at the start.
        completed: number of steps that are done now.
    """

    def __init__(self, label: str, total: int, completed: int) -> None:
        self.label, self.total, self.skipped, self.completed = label, total, completed, completed
        self.note, self.started = "", time.monotonic()

    def advance(self, note: str | None = None) -> None:
        """Count a step; ``note`` replaces the note."""
        self.completed += 1
        if note is not None:
            self.note = note

    def line(self) -> str:
        """Return the line of the current state."""
        seconds, completed = time.monotonic() - self.started, self.completed
        parts = [f"{self.label}: {completed:,} of {self.total:,}", *([self.note] if self.note else [])]
        if completed > self.skipped:
            seconds_each = seconds / (completed - self.skipped)
            parts += [f"{1 / seconds_each:,.1f}/s" if seconds_each < 1 else f"{seconds_each:,.1f} s each"]
            parts += [f"{duration((self.total - completed) * seconds_each)} left"]
        else:
            parts += [f"no step finished after {duration(seconds)}"]
        return ", ".join(parts)


def duration(seconds: float) -> str:
    """Return a time with a suitable unit: ``"40 s"``, ``"12 min"``, ``"3.4 h"``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"
