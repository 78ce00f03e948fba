"""Keeps the resident memory of a process that decodes for a long time from growing: a server, data generation.

Texts of all sizes leave two things behind: code that oneDNN generates for every shape of a product, up to a MiB
each, and freed blocks that glibc keeps for later. Both are limited here, as long as the environment does not set them.
PyTorch keeps what oneDNN has made in a cache of its own, 1024 shapes, so that both caches need a limit.
"""

from __future__ import annotations

import ctypes
import os
import platform

SHAPES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")  # of oneDNN, and of PyTorch's calls of it
CAPACITY = 64  # shapes whose code is kept; 1024 by default
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
ARENAS = 2  # heaps that threads share
LARGE = 1 << 20  # bytes of a block from which on it is returned to the system when it is freed


def limit_memory() -> None:
    """Set the limits; to be called before the first forward."""
    for name in SHAPES:
        os.environ.setdefault(name, str(CAPACITY))
    if platform.libc_ver()[0] == "glibc" and not any(name.startswith("MALLOC_") for name in os.environ):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_ARENA_MAX, ARENAS)
        mallopt(M_MMAP_THRESHOLD, LARGE)
        mallopt(M_TRIM_THRESHOLD, LARGE)
