"""Processes that are ended by SIGKILL, SIGTERM or SIGINT.

Half of the signals come at a random time, half at a random file operation.
"""

from __future__ import annotations

import signal
from pathlib import Path
from random import Random

from .cases import Bench, Fits, Outcome, harm_and_resume
from .processes import SIGNAL, Ended, Fault
from .stages import Stage


def kill_9(bench: Bench, times: int) -> Outcome:
    """SIGKILL leaves files under their final names whole."""
    return _end(bench, signal.SIGKILL, lambda ended: ended.code == -signal.SIGKILL, times)


def terminate(bench: Bench, times: int) -> Outcome:
    """SIGTERM ends a process without a word; the shell shows 143 either way."""

    def fits(ended: Ended) -> bool:
        return ended.code in (-signal.SIGTERM, 128 + signal.SIGTERM) and "Traceback" not in ended.text

    return _end(bench, signal.SIGTERM, fits, times)


def interrupt(bench: Bench, times: int) -> Outcome:
    """SIGINT: the line "interrupted", and the shell's exit code for it."""
    return _end(bench, signal.SIGINT, lambda ended: ended.code == 130 and ended.complaint() == "interrupted", times)


def _end(bench: Bench, number: signal.Signals, fits: Fits, times: int) -> Outcome:
    def harm(stage: Stage, folder: Path, attempt: int, random: Random) -> Ended:
        if attempt % 2:
            return stage.run(bench.main, folder, Fault(SIGNAL, random.randint(1, bench.whole.touches), number))
        process = stage.start(bench.main, folder)
        ended = process.wait(random.uniform(0.02, bench.whole.seconds))
        if ended is None:
            process.send(number)
            ended = process.end()
        return ended

    return harm_and_resume(bench, number.name, harm, fits, times)
