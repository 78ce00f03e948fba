"""The memory of a device that is available for keys and values."""

from __future__ import annotations

import torch

KEPT = 1 << 30  # bytes that are reserved for the results of a forward and for CUDA graphs


def free_bytes(device: torch.device) -> int | None:
    """Return the bytes that new buffers on ``device`` may take; None if they are unknown, as on a CPU."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return max(0, free + unused - KEPT)
