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
    """In the processes that run tests; the one that only distributes them does not need PyTorch."""
    import torch

    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of the experiments are slow ones."""
    for item in items:
        if Path(__file__).parent / "experiments" in item.path.parents:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Collections of garbage pass over what the imports have made: they took a fifteenth of the time."""
    gc.freeze()
