"""Feature datasets on disk: safetensors shards and a manifest, read through memory maps.

Every shard belongs to a part: ``embedding`` (one shard with the draft's output embedding, (V, d)), ``validation``, one
or more training parts ``train-0``, ``train-1``, … (one per mixing; epochs use them in turn), and ``traces`` (one shard
per trace). A shard of examples holds the tensors of :data:`~.draft_states.Examples`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from .dataset import read_manifest, shard_files
from .draft_states import Examples

KIND = "features"
EMBEDDING, VALIDATION, TRAIN, TRACES = "embedding", "validation", "train-", "traces"
SHARD_BYTES = 32 << 20  # size of a shard of examples, unless a single text is larger
MIXED_SHARDS = 8  # shards that are shuffled together and kept mapped
STORED = {"float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class FeatureShard:
    """The tensors of a shard and the part they belong to."""

    part: str
    tensors: dict[str, Tensor]
    suffix: ClassVar[str] = "safetensors"

    def save(self, file: Path) -> None:
        contiguous = {name: tensor.contiguous() for name, tensor in self.tensors.items()}
        file.write_bytes(save(contiguous))  # `save_file` makes files that only the user can read

    def counts(self) -> dict[str, Any]:
        """Texts and rows of examples; the mean acceptance of the dataset is that of its training parts."""
        if self.part in (EMBEDDING, TRACES):
            return {"part": self.part}
        accept, rows = self.tensors["accept"], len(self.tensors["accept"])
        counts: dict[str, Any] = {"part": self.part, "texts": len(self.tensors["counts"]), "rows": rows}
        if "then" in self.tensors:
            counts["next_rows"] = int(self.tensors["then"].isfinite().sum())
        if self.part.startswith(TRAIN):
            counts |= {"drafted": rows, "acceptance_sum": float(accept.double().sum())}
        return counts


@dataclass(frozen=True)
class PartShard:
    """A shard of examples: its file, and its numbers of texts and rows."""

    file: Path
    texts: int
    rows: int


@dataclass(frozen=True)
class FeatureDataset:
    """A complete feature dataset. Files are memory-mapped when they are read, a few at a time.

    Raises:
        InputError: the folder is no feature dataset, or is incomplete.
    """

    folder: Path
    mapped: OrderedDict[Path, dict[str, Tensor]] = field(default_factory=OrderedDict, repr=False)

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
    def manifest(self) -> dict[str, Any]:
        return read_manifest(self.folder)

    @property
    def training_parts(self) -> int:
        """Number of training parts, which epochs use in turn."""
        return len({shard["part"] for shard in self.manifest["shards"] if shard["part"].startswith(TRAIN)})

    @property
    def predicts_next(self) -> bool:
        """Whether any training example has a label for the token after the drafted one."""
        return any(shard.get("next_rows", 0) for shard in self.manifest["shards"] if shard["part"].startswith(TRAIN))

    def part(self, name: str) -> list[PartShard]:
        """The shards of examples of one part."""
        return [
            PartShard(self.folder / shard["file"], shard["texts"], shard["rows"])
            for shard in self.manifest["shards"]
            if shard["part"] == name
        ]

    def files(self, name: str) -> list[Path]:
        """The files of ``embedding`` or ``traces``."""
        return [self.folder / shard["file"] for shard in self.manifest["shards"] if shard["part"] == name]

    @cached_property
    def embedding(self) -> Tensor:
        """(V, d) the draft's output embedding, memory-mapped."""
        (file,) = self.files(EMBEDDING)
        return mapped(file)[EMBEDDING]

    def open(self, file: Path) -> dict[str, Tensor]:
        """The tensors of a shard, memory-mapped; the least recently used shards are unmapped."""
        if file not in self.mapped:
            while len(self.mapped) > MIXED_SHARDS:
                self.mapped.popitem(last=False)
            self.mapped[file] = mapped(file)
        self.mapped.move_to_end(file)
        return self.mapped[file]

    def rows_of_texts(self, shards: list[PartShard], texts: Tensor) -> Tensor:
        """Indices (m,) of a part's examples that belong to ``texts`` (n,), text by text."""
        text_starts, row_starts = starts([s.texts for s in shards]), starts([s.rows for s in shards])
        found = []
        for text in texts.tolist():
            index = int(torch.searchsorted(text_starts, text, right=True)) - 1
            counts = self.open(shards[index].file)["counts"]
            local = text - int(text_starts[index])
            first = int(row_starts[index]) + int(counts[:local].sum())
            found.append(torch.arange(first, first + int(counts[local])))
        return torch.cat(found) if found else texts

    def gather(self, shards: list[PartShard], rows: Tensor) -> Examples:
        """The examples ``rows`` (m,) of a part, in this order, without ``counts``."""
        row_starts = starts([s.rows for s in shards])
        owner = torch.searchsorted(row_starts, rows, right=True) - 1  # (m,) the shard of each
        gathered: Examples = {}
        for index in sorted(set(owner.tolist())) or [0]:
            tensors, here = self.open(shards[index].file), owner == index
            local = rows[here] - row_starts[index]
            for name, tensor in tensors.items():
                if name == "counts":
                    continue
                if name not in gathered:
                    gathered[name] = tensor.new_empty(len(rows), *tensor.shape[1:])
                gathered[name][here] = tensor[local]
        return gathered

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "mapped": OrderedDict()}  # other processes map the files themselves


def starts(counts: list[int]) -> Tensor:
    """Start index of each group, given the group sizes ``counts``."""
    return torch.tensor([*accumulate(counts, initial=0)][:-1])


def mapped(file: Path) -> dict[str, Tensor]:
    """The memory-mapped tensors of a safetensors file."""
    with safe_open(file, framework="pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
