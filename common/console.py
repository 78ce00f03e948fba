"""What a program shows on the console: no messages of libraries, and a progress bar of its own."""

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

EVERY = 5.0  # seconds between the lines that stand for a progress bar where there is no terminal


def quiet(*, detailed: bool = False) -> None:
    """Show only errors of transformers and Lightning, and warnings in one line. For programs, not for libraries.

    Args:
        detailed: show everything that specpilot logs, and not only what was decided anew.
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
    def emit(self, record: logging.LogRecord) -> None:
        print("specpilot:", record.getMessage(), file=sys.stderr, flush=True)


def _one_line(message: Warning | str, *_: object, **__: object) -> None:
    print("specpilot: warning:", " ".join(str(message).split()), file=sys.stderr)


@contextmanager
def said_at_the_end() -> Iterator[None]:
    """What is logged in the block is said when it has ended, and nothing where it fails: an error is one line."""
    held: list[logging.LogRecord] = []

    def hold(record: logging.LogRecord) -> bool:
        held.append(record)
        return False

    logger.addFilter(hold)
    try:
        yield
    finally:
        logger.removeFilter(hold)
    for record in held:
        logger.handle(record)


@contextmanager
def warned_at_the_end() -> Iterator[None]:
    """Show warnings of the block when it has ended, after what it prints; none where it fails."""
    with warnings.catch_warnings(record=True) as held:
        yield
    for one in held:
        warnings.showwarning(one.message, one.category, one.filename, one.lineno)


def stderr_console() -> Console:
    """A console on standard error that shows text as it is: not wrapped, and ``[x]`` in a path is no markup."""
    return Console(stderr=True, markup=False, emoji=False, soft_wrap=True)


class Advance(Protocol):
    """Advances by one step; ``note`` is shown beside the count until another one is given."""

    def __call__(self, note: str | None = None) -> None: ...


@contextmanager
def progress_bar(console: Console, label: str, total: int, done: int = 0) -> Iterator[Advance]:
    """Show a bar of ``total`` steps while the block runs; yields a function that advances it by one step.

    Without a terminal a line is printed every few seconds instead, whether or not there was a step since the last one.

    Args:
        done: steps that need not be made.
    """
    if console.is_terminal or console.is_jupyter:
        columns = (
            TextColumn(label), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}", markup=False),
            TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=total, completed=done, note="")

            def advance(note: str | None = None) -> None:
                fields: dict[str, Any] = {} if note is None else {"note": note}
                bar.update(task, advance=1, **fields)

            yield advance
        return
    lines = _Lines(label, total, done)
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
    """What the lines of :func:`progress_bar` say: what, how far, at what rate, and the time that is left."""

    def __init__(self, label: str, total: int, done: int) -> None:
        self.label, self.total, self.found, self.done = label, total, done, done
        self.note, self.started = "", time.monotonic()

    def advance(self, note: str | None = None) -> None:
        self.done += 1
        if note is not None:
            self.note = note

    def line(self) -> str:
        seconds, done = time.monotonic() - self.started, self.done
        parts = [f"{self.label}: {done:,} of {self.total:,}", *([self.note] if self.note else [])]
        if done > self.found:
            each = seconds / (done - self.found)
            parts += [f"{1 / each:,.1f}/s" if each < 1 else f"{each:,.1f} s each"]
            parts += [f"{duration((self.total - done) * each)} left"]
        else:
            parts += [f"none yet after {duration(seconds)}"]
        return ", ".join(parts)


def duration(seconds: float) -> str:
    """A time in its unit: ``"40 s"``, ``"12 min"``, ``"3.4 h"``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"
