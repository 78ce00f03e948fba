"""Feature datasets on disk: safetensors shards and a manifest, read through memory maps.

Every shard belongs to a part: ``embedding`` (one shard with the draft's output embedding, (V, d)), ``validation``, one
or more training parts ``train-0``, ``train-1``, … (one per mixing; epochs use them in turn), and ``traces`` (one shard
per trace). A shard of examples holds the columns of :class:`~specpilot.controllers.acceptance.training.Examples`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import ClassVar

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from .dataset import Manifest, ShardEntry, read_manifest, shard_files

KIND = "features"
EMBEDDING, VALIDATION, TRAIN, TRACES = "embedding", "validation", "train-", "traces"
SHARD_BYTES = 32 << 20  # size of a shard of examples, unless a single text is larger
MAPPED_SHARDS = 10  # shards that are mapped at a time; about 8 are shuffled together
STORED = {"float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class FeatureShard:
    """A shard before it is written.

    Attributes:
        part: name of the dataset's part to which the shard belongs.
        tensors: the columns by name.
    """

    part: str
    tensors: dict[str, Tensor]
    suffix: ClassVar[str] = "safetensors"

    def save(self, file: Path) -> None:
        """Write the tensors to ``file``."""
        contiguous = {name: tensor.contiguous() for name, tensor in self.tensors.items()}
        file.write_bytes(save(contiguous))  # `save_file` makes files that only the user can read

    def entry(self, file: str, sha256: str) -> ShardEntry:
        """Return the entry in the manifest; only training parts count for the mean acceptance of the dataset."""
        entry = ShardEntry(file=file, part=self.part, sha256=sha256)
        if self.part in (EMBEDDING, TRACES):
            return entry
        accept, rows = self.tensors["accept"], len(self.tensors["accept"])
        entry = replace(entry, texts=len(self.tensors["counts"]), rows=rows)
        if not self.part.startswith(TRAIN):
            return entry
        return replace(entry, drafted=rows, acceptance_sum=float(accept.double().sum()))


@dataclass(frozen=True)
class StoredShard:
    """A shard on disk.

    Attributes:
        file: the file.
        sha256: hash of the file.
        texts, rows: numbers of texts and of examples; 0 for an embedding or a trace.
    """

    file: Path
    sha256: str
    texts: int = 0
    rows: int = 0

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The memory-mapped tensors of the shard. The least recently used shards are unmapped."""
        return mapped(self)


@lru_cache(maxsize=MAPPED_SHARDS)
def mapped(shard: StoredShard) -> dict[str, Tensor]:
    """Return the memory-mapped tensors of a shard."""
    with safe_open(shard.file, framework="pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a mapping


@dataclass(frozen=True)
class Part:
    """The examples of a part, such as ``validation`` or ``train-0``, which are stored in one or several shards.

    The column ``counts`` of a shard has one entry per text, its number of examples. All other columns have one entry
    per example.
    """

    shards: list[StoredShard]

    @property
    def texts(self) -> list[int]:
        """The number of texts of each shard."""
        return [shard.texts for shard in self.shards]

    @property
    def rows(self) -> list[int]:
        """The number of examples of each shard."""
        return [shard.rows for shard in self.shards]

    def rows_of_texts(self, texts: Tensor) -> Tensor:
        """Return the indices of all examples of some texts.

        Texts and examples are numbered over all shards of the part, from 0.

        Args:
            texts: (n,) indices of texts.

        Returns:
            (m,) indices of examples, in the order of ``texts``; m is the number of examples of these n texts.
        """
        text_starts, row_starts = starts(self.texts), starts(self.rows)
        ranges = []
        for text in texts.tolist():
            shard = int(torch.searchsorted(text_starts, text, right=True)) - 1
            counts = self.shards[shard].tensors["counts"]
            text_in_shard = text - int(text_starts[shard])
            first = int(row_starts[shard]) + int(counts[:text_in_shard].sum())
            ranges.append(torch.arange(first, first + int(counts[text_in_shard])))
        return torch.cat(ranges) if ranges else texts

    def gather(self, rows: Tensor) -> dict[str, Tensor]:
        """Return the columns of the examples with the indices ``rows`` (m,), in this order.

        The column ``counts`` is left out.
        """
        row_starts = starts(self.rows)
        shards = torch.searchsorted(row_starts, rows, right=True) - 1  # (m,) the shard of each example
        gathered: dict[str, Tensor] = {}
        for shard in sorted(set(shards.tolist())) or [0]:  # without rows, shard 0 gives the names of the columns
            in_shard = shards == shard
            rows_in_shard = rows[in_shard] - row_starts[shard]
            for name, tensor in self.shards[shard].tensors.items():
                if name == "counts":
                    continue
                if name not in gathered:
                    gathered[name] = tensor.new_empty(len(rows), *tensor.shape[1:])
                gathered[name][in_shard] = tensor[rows_in_shard]
        return gathered


def starts(counts: list[int]) -> Tensor:
    """Return the start index of each group from the group sizes ``counts``."""
    return torch.tensor([*accumulate(counts, initial=0)][:-1])


@dataclass(frozen=True)
class FeatureDataset:
    """A complete feature dataset.

    Raises:
        InputError: the folder is not a feature dataset, or is incomplete.
    """

    folder: Path

    def __post_init__(self) -> None:
        read_manifest(self.folder, KIND, complete=True)

    def check(self) -> None:
        """Compare every shard with the manifest's hash.

        Raises:
            InputError: a shard is missing or does not match the manifest.
        """
        for _ in shard_files(self.folder):
            pass

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest of the dataset."""
        return read_manifest(self.folder)

    @property
    def training_parts(self) -> int:
        """The number of training parts, which epochs use in turn."""
        return len({shard.part for shard in self.manifest.shards if shard.part and shard.part.startswith(TRAIN)})

    def part(self, name: str) -> Part:
        """Return the shards of a part."""
        return Part(
            [
                StoredShard(self.folder / shard.file, shard.sha256, shard.texts or 0, shard.rows or 0)
                for shard in self.manifest.shards
                if shard.part == name
            ]
        )

    @cached_property
    def embedding(self) -> Tensor:
        """The draft's output embedding (V, d), memory-mapped."""
        (shard,) = self.part(EMBEDDING).shards
        return shard.tensors[EMBEDDING]
