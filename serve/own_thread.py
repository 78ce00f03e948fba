"""Runs a function in a thread that ends with it, so that its OpenMP threads end too.

Every thread that computes with PyTorch on a CPU has OpenMP threads of its own. Where they are more than the cores, all
of them sleep between operations instead of spinning, and small operations take twice as long. A server therefore loads
its models in a thread that ends before the decoder's begins.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_own_thread(function: Callable[[], T]) -> T:
    """The result of ``function``, or its exception. SIGINT interrupts the waiting."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    result = future.result()
    thread.join()
    return result
