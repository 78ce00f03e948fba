"""What runs in a thread of its own takes its OpenMP threads along."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from specpilot.serve.own_thread import in_own_thread

PROGRAM = """
import os
import time
import torch
from specpilot.serve.own_thread import in_own_thread

def threads():
    return len(os.listdir("/proc/self/task"))

def compute():
    torch.ones(1 << 20).exp_()
    return threads()

before = threads()
within = in_own_thread(compute)
deadline = time.monotonic() + 10
while threads() > before and time.monotonic() < deadline:  # the system takes a moment to end them
    pass
print(before, within, threads(), torch.get_num_threads())
"""


def test_results_and_exceptions_come_back() -> None:
    assert in_own_thread(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        in_own_thread(lambda: 1 // 0)


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted in /proc")
def test_no_thread_is_left() -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"OMP_NUM_THREADS": "2"},
        check=True,
        capture_output=True,
        text=True,
    )
    before, within, after, wanted = map(int, run.stdout.split())
    assert wanted == 2
    assert within == before + 2  # the thread and its OpenMP thread
    assert after == before
