"""Settings of all tests of the plugin: one thread of PyTorch, so that sums are rounded alike in every process."""


def pytest_collection() -> None:
    """Set one thread of PyTorch in the processes that run tests; the process that distributes them needs no PyTorch."""
    import torch

    torch.set_num_threads(1)
