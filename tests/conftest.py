"""Settings for all tests: the same examples of hypothesis in every run, without a deadline, and one thread of PyTorch.

Sums over several threads are rounded differently, and results are compared bit for bit with those of other processes.
"""

import gc
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


def pytest_collection() -> None:
    """Set one thread of PyTorch in the processes that run tests; the process that distributes them needs no PyTorch."""
    import torch

    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the experiments as slow."""
    for item in items:
        if Path(__file__).parent / "experiments" in item.path.parents:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Exclude the objects of the imports from garbage collection, which would take a fifteenth of the time."""
    gc.freeze()
