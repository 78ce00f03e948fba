"""Settings for all tests: hypothesis draws the same examples in every run, without a deadline, and PyTorch has one thread.

Sums over several threads are rounded differently, and results are compared bit for bit with those of other processes.
"""

import torch
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")
torch.set_num_threads(1)
