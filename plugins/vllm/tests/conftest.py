"""Settings of all tests of the plugin: one thread of PyTorch, so that sums are rounded alike in every process."""

import torch

torch.set_num_threads(1)
