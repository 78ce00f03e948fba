"""The start of the command line. Ctrl-C ends it with one line, also while modules are imported.

A module that is imported may swallow or wrap a KeyboardInterrupt. Therefore an interrupt that arrives within an import
is raised after the import.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType

AGAIN = 0.05  # seconds until an interrupt within an import is raised again
IMPORTING = "importlib._bootstrap"  # part of the file names of frames that import


def main() -> int:
    """Run the command line, and return the exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if it is ignored, as in the background
        signal.signal(signal.SIGINT, interrupt)
    try:
        from .main import main as run

        return run()
    except KeyboardInterrupt:
        print("specpilot: error: interrupted", file=sys.stderr)
        return 130


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, or if an import is running, after the import."""
    if is_importing(frame):
        second_signal = threading.Timer(AGAIN, signal.raise_signal, [number])
        second_signal.daemon = True
        second_signal.start()
        return
    signal.default_int_handler(number, frame)


def is_importing(frame: FrameType | None) -> bool:
    """Return true if an import called ``frame``."""
    while frame is not None:
        if IMPORTING in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False
