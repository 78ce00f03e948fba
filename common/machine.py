"""What a program runs on, for reports and run folders, and how much memory it may keep."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from .record import Record

PACKAGES = (
    "specpilot", "torch", "transformers", "datasets", "pytorch-lightning", "jsonargparse", "safetensors", "numpy",
    "scikit-learn",
)  # fmt: skip
BUSY = 1.5  # load for each core above which other processes slow this one


def versions() -> dict[str, str]:
    """Versions by package name, including Python."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def commit(file: Path = Path(__file__)) -> str | None:
    """The commit that this code was checked out at, with ``+changes`` if its files differ; None if installed.

    Changes of the documentation, where the results are written, do not count.

    Args:
        file: a file of the checkout.
    """
    if shutil.which("git") is None:
        return None
    here = file.resolve()

    def git(*arguments: str) -> str | None:
        found = subprocess.run(("git", *arguments), cwd=here.parent, capture_output=True, text=True, check=False)
        return found.stdout.strip() if found.returncode == 0 else None

    if git("ls-files", "--error-unmatch", here.name) is None:
        return None  # the folder around an installation may be a checkout of something else
    head = git("rev-parse", "--short=12", "HEAD")
    return head and head + (
        "+changes" if git("status", "--porcelain", "--untracked-files=no", ":/", ":(top,exclude)docs") else ""
    )


@dataclass(frozen=True)
class Machine(Record):
    """What a process runs on.

    Attributes:
        processor: its name, with its vendor.
        cores: processor cores that this process may use.
        memory_gib: physical memory in GiB; None if the system does not report it.
        devices: names of the GPUs.
        threads, interop_threads: threads of PyTorch within an operation, and between operations.
    """

    platform: str
    processor: str
    cores: int
    memory_gib: float | None
    devices: list[str]
    threads: int
    interop_threads: int


def load_per_core() -> float:
    """Processes that ran or waited for a core in the last minute, for each core; 1 is what this process may take."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def machine() -> Machine:
    """The machine that this process runs on."""
    import torch

    return Machine(
        platform=platform.platform(),
        processor=processor(),
        cores=_cores(),
        memory_gib=_memory_gib(),
        devices=[torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        threads=torch.get_num_threads(),
        interop_threads=torch.get_num_interop_threads(),
    )


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


SHAPES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")  # of oneDNN, and of PyTorch's calls of it
CAPACITY = 64  # shapes whose code is kept; 1024 by default
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
ARENAS = 2  # heaps that threads share
LARGE = 1 << 20  # bytes of a block from which on it is returned to the system when it is freed


def limit_memory() -> None:
    """Keep the resident memory of a process that decodes for a long time from growing: a server, data generation.

    Texts of all sizes leave two things behind: code that oneDNN generates for every shape of a product, up to a MiB
    each, and freed blocks that glibc keeps for later. Both are limited, as long as the environment does not set them.
    PyTorch keeps what oneDNN has made in a cache of its own, 1024 shapes, so that both caches need a limit. To be
    called before the first forward.
    """
    for name in SHAPES:
        os.environ.setdefault(name, str(CAPACITY))
    if platform.libc_ver()[0] == "glibc" and not any(name.startswith("MALLOC_") for name in os.environ):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_ARENA_MAX, ARENAS)
        mallopt(M_MMAP_THRESHOLD, LARGE)
        mallopt(M_TRIM_THRESHOLD, LARGE)
