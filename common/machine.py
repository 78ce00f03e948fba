"""The machine and the versions of packages, for reports and run folders, and limits of a process's memory."""

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
    """Return versions by package name, including Python."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def commit(file: Path = Path(__file__)) -> str | None:
    """Return the commit of this checkout, with ``+changes`` if files differ; None if specpilot is installed.

    Changes in ``docs`` do not count, because results are written there.

    Args:
        file: a file of the checkout.
    """
    if shutil.which("git") is None:
        return None
    path = file.resolve()

    def git(*arguments: str) -> str | None:
        process = subprocess.run(("git", *arguments), cwd=path.parent, capture_output=True, text=True, check=False)
        return process.stdout.strip() if process.returncode == 0 else None

    if git("ls-files", "--error-unmatch", path.name) is None:
        return None  # the folder around an installation may be a checkout of something else
    head = git("rev-parse", "--short=12", "HEAD")
    return head and head + (
        "+changes" if git("status", "--porcelain", "--untracked-files=no", ":/", ":(top,exclude)docs") else ""
    )


@dataclass(frozen=True)
class Machine(Record):
    """A machine.

    Attributes:
        platform: the operating system.
        processor: name of the processor with its vendor.
        cores: number of processor cores that this process may use.
        memory_gib: physical memory in GiB; None if the system does not report it.
        devices: names of the GPUs.
        threads, interop_threads: number of PyTorch's threads within an operation, and between operations.
    """

    platform: str
    processor: str
    cores: int
    memory_gib: float | None
    devices: list[str]
    threads: int
    interop_threads: int


def load_per_core() -> float:
    """Return the number of processes that ran or waited in the last minute, for each core; 1 is a busy machine."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def machine() -> Machine:
    """Return the machine that this process runs on."""
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
    """Return the number of cores that this process may use."""
    if platform.system() == "Linux":
        return len(os.sched_getaffinity(0))  # in a container fewer than the host's
    return os.cpu_count() or 1


def processor() -> str:
    """Return the processor's name with its vendor, as far as the system reports it."""
    if platform.system() == "Linux":
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    """Return the physical memory in GiB; None if the system does not report it."""
    if platform.system() == "Windows":
        return None
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


SHAPES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")  # limits of oneDNN's and of PyTorch's cache
CAPACITY = 64  # shapes whose code is kept; 1024 by default
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # constants of glibc's malloc.h
ARENAS = 2  # number of heaps that threads share
LARGE = 1 << 20  # bytes; freed blocks of this size and larger ones are returned to the system


def limit_memory() -> None:
    """Limit the resident memory of a process that decodes for a long time, such as a server or data generation.

    Call it before the first forward. Texts of many sizes use memory in two ways: oneDNN generates code for every shape
    of a product, up to a MiB each, and glibc keeps freed blocks. Both are limited unless the environment sets limits.
    PyTorch has another cache of oneDNN's code, with 1024 shapes, so both caches get a limit.
    """
    for name in SHAPES:
        os.environ.setdefault(name, str(CAPACITY))
    if platform.libc_ver()[0] == "glibc" and not any(name.startswith("MALLOC_") for name in os.environ):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_ARENA_MAX, ARENAS)
        mallopt(M_MMAP_THRESHOLD, LARGE)
        mallopt(M_TRIM_THRESHOLD, LARGE)
