"""The draft's hidden states on disk: computed once, read back through a memory map."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from numpy.lib import format as npy
from rich.progress import track
from torch import Tensor

from ..controllers.errors import InputError
from ..data_gen.dataset import replacing

Key = tuple[int, int]  # (mixing stream, row)


class FeatureCache:
    """A file ``features.npy`` of shape (N, d), float32: a head trained from it equals one trained without it."""

    def __init__(self, file: Path, hidden_size: int) -> None:
        self.file, self.hidden_size = file, hidden_size
        self.start: dict[Key, int] = {}
        self.count: dict[Key, int] = {}

    def fill(self, counts: Mapping[Key, int], batches: int, features: Iterable[Tensor]) -> None:
        """Write what ``features`` yields, unless the file is there already.

        Args:
            counts: how many positions each key has; their order is the file's.
            batches: how many tensors ``features`` yields, for the progress bar.
            features: tensors (m, d) that together hold all positions, in the same order.

        Raises:
            InputError: the disk has no room for it, or the file belongs to another run.
        """
        self.count = dict(counts)
        self.start = dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))
        shape = (sum(counts.values()), self.hidden_size)
        size = shape[0] * shape[1] * 4
        if self.file.exists():
            if np.load(self.file, mmap_mode="r").shape != shape:
                raise InputError(f"{self.file}: belongs to another run; remove it or choose another run folder")
            return
        print(f"draft features: {shape[0]:,} positions × {shape[1]} in float32 = {size / 1e6:,.1f} MB in {self.file}")
        free = shutil.disk_usage(self.file.parent).free
        if size > free:
            raise InputError(
                f"{self.file}: needs {size / 1e6:,.1f} MB and {free / 1e6:,.1f} MB are free; "
                "free space, or turn cache_features off"
            )
        with replacing(self.file) as temporary, open(temporary, "wb") as out:
            npy.write_array_header_1_0(out, {"descr": "<f4", "fortran_order": False, "shape": shape})
            written = 0
            for part in track(features, "draft features", total=batches):
                out.write(part.cpu().numpy().tobytes())
                written += len(part)
        assert written == shape[0]

    def read(self, keys: Sequence[Key]) -> Tensor:
        """Features (m, d) of the positions of ``keys``, one key after the other."""
        stored = np.load(self.file, mmap_mode="r")
        parts = [stored[self.start[key] : self.start[key] + self.count[key]] for key in keys]
        return torch.from_numpy(np.concatenate(parts))
