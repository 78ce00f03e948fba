"""Settings of all tests of the plugin: one thread of PyTorch, so that sums are rounded alike in every process."""


def pytest_collection() -> None:
    """In the processes that run tests; the one that only distributes them does not need PyTorch."""
    import torch

    torch.set_num_threads(1)
