"""What a GGUF file holds: its metadata, and where its tensors are.

The format is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md: a header, key-value pairs, a table of
tensors, and the tensors' data, aligned. Integers are little-endian.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import struct
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...common.errors import InputError, optional_import

SUFFIX = ".gguf"
MAGIC = b"GGUF"
VERSIONS = (2, 3)
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
ALIGNMENT = 32  # of the tensors' data, unless the file names another
DIMENSIONS = 4  # of a tensor, at most
SAMPLES = 64  # bytes of each tensor that its digest is made of


@dataclass(frozen=True)
class TensorEntry:
    """A tensor in a file.

    Attributes:
        shape: rows first, as in torch.
        kind: ggml's type.
        offset: of its data in the file.
    """

    shape: tuple[int, ...]
    kind: int
    offset: int


class GgufFile:
    """A file's metadata and table of tensors.

    Attributes:
        metadata: by key; arrays are lists.
        tensors: by name, in the file's order.

    Raises:
        InputError: it is no GGUF file, or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                head = file.read(len(MAGIC))
                if head != MAGIC:
                    raise InputError(f"{path}: no GGUF file, though its name ends so; give the path of one")
                blob = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from error
        try:
            self._parse(Cursor(blob))
        except (struct.error, IndexError, UnicodeDecodeError, OverflowError, MemoryError, RecursionError) as error:
            raise InputError(f"{path}: the GGUF file is truncated or damaged; fetch it again") from error
        finally:
            blob.close()

    def _parse(self, cursor: Cursor) -> None:
        cursor.place = len(MAGIC)
        version, tensors, pairs = cursor.scalars("IQQ")
        if version not in VERSIONS:
            raise InputError(f"{self.path}: GGUF version {version}, where {VERSIONS[0]} and {VERSIONS[1]} are read")
        self.metadata: dict[str, Any] = {}
        for _ in range(pairs):
            key = cursor.string()
            (kind,) = cursor.scalars("I")
            self.metadata[key] = cursor.value(kind)
        found = []
        for _ in range(tensors):
            name = cursor.string()
            (dimensions,) = cursor.scalars("I")
            if dimensions > DIMENSIONS:
                raise IndexError(f"{name} has {dimensions} dimensions")
            *sizes, kind, offset = cursor.scalars("Q" * dimensions + "IQ")
            found.append((name, tuple(sizes[::-1]), kind, offset))
        alignment = self.metadata.get("general.alignment", ALIGNMENT)
        if type(alignment) is not int or alignment < 1:
            raise IndexError(f"general.alignment is {alignment!r}")
        start = -(-cursor.place // alignment) * alignment
        self.tensors = {name: TensorEntry(shape, kind, start + offset) for name, shape, kind, offset in found}
        if any(entry.offset > len(cursor.blob) for entry in self.tensors.values()):
            raise IndexError("a tensor begins behind the end")

    @property
    def architecture(self) -> str:
        """Its name in llama.cpp."""
        return str(self.metadata.get("general.architecture", "unknown"))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hexadecimal) of the architecture's settings and of evenly spaced bytes of every tensor."""
        own = {key: value for key, value in self.metadata.items() if key.startswith(f"{self.architecture}.")}
        digest = hashlib.sha256(json.dumps([self.architecture, own], sort_keys=True).encode())
        ends = [*sorted(entry.offset for entry in self.tensors.values()), self.path.stat().st_size]
        following = dict(pairwise(ends))
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as blob:
            for name, entry in sorted(self.tensors.items()):
                digest.update(f"{name}:{entry.shape}:{entry.kind}:".encode())
                size = following[entry.offset] - entry.offset
                digest.update(bytes(blob[entry.offset + size * i // SAMPLES] for i in range(SAMPLES) if size > 0))
        return digest.hexdigest()

    def tensor(self, name: str) -> Tensor:
        """The values of a tensor, float32, de-quantised where it is not plain.

        Raises:
            InputError: the extra ``gguf`` is not installed, or does not know the type.
        """
        import numpy as np

        with optional_import("gguf"):
            from gguf import GGMLQuantizationType, dequantize
            from gguf.quants import quant_shape_to_byte_shape
        entry = self.tensors[name]
        kind = GGMLQuantizationType(entry.kind)
        if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
            plain = np.float32 if kind == GGMLQuantizationType.F32 else np.float16
            values = np.memmap(self.path, plain, "r", entry.offset, entry.shape)
            return torch.from_numpy(np.array(values, np.float32))
        shape = quant_shape_to_byte_shape(entry.shape, kind)
        try:
            values = dequantize(np.memmap(self.path, np.uint8, "r", entry.offset, shape), kind)
        except NotImplementedError as error:
            raise InputError(f"{self.path}: {name} is of type {kind.name}, which cannot be read here") from error
        return torch.from_numpy(np.ascontiguousarray(values, np.float32))


class Cursor:
    """A place in a file's bytes, that moves on as they are read."""

    def __init__(self, blob: mmap.mmap) -> None:
        self.blob, self.place = blob, 0

    def scalars(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{layout}", self.blob, self.place)
        self.place += struct.calcsize(f"<{layout}")
        return values

    def string(self) -> str:
        (length,) = self.scalars("Q")
        (value,) = self.scalars(f"{length}s")
        return str(value.decode())

    def value(self, kind: int) -> Any:
        if kind in SCALARS:
            return self.scalars(SCALARS[kind])[0]
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            raise IndexError(f"no such type: {kind}")
        element, count = self.scalars("IQ")
        if element in SCALARS:
            return list(self.scalars(f"{count}{SCALARS[element]}"))
        return [self.value(element) for _ in range(count)]
