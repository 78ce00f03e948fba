"""Versions, processor, memory, devices and threads, for reports and run folders."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from typing import Any

PACKAGES = (
    "specpilot",
    "torch",
    "transformers",
    "datasets",
    "pytorch-lightning",
    "jsonargparse",
    "safetensors",
    "numpy",
)


def versions() -> dict[str, str]:
    """Versions by package name, including Python."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def machine() -> dict[str, Any]:
    """Processor, cores this process may use, memory, accelerators and torch's threads."""
    import torch

    return {
        "platform": platform.platform(),
        "processor": processor(),
        "cores": _cores(),
        "memory_gib": _memory_gib(),
        "devices": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
    }


def _cores() -> int:
    if platform.system() == "Linux":
        return len(os.sched_getaffinity(0))  # in a container fewer than the host has
    return os.cpu_count() or 1


def processor() -> str:
    """The processor's name including its vendor, if the system reports it."""
    if platform.system() == "Linux":
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    """Physical memory in GiB; None if the system does not report it."""
    if platform.system() == "Windows":
        return None
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
