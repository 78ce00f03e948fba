"""The memory of a device that keys and values may take."""

from __future__ import annotations

import torch

KEPT = 1 << 30  # bytes that are left for what a forward computes and for CUDA graphs


def free_bytes(device: torch.device) -> int | None:
    """Bytes that new buffers on ``device`` may take; None where this is not known, as on a CPU."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return max(0, free + unused - KEPT)
