"""``specpilot data features``: computes draft states, evidence and validation traces, the training data of predictors.

Training reads these shards and needs neither target nor draft. The work is a list of pieces, one shard each, in an
order that depends only on the settings and the data; a killed run continues with the first missing piece.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from torch import Tensor

from ..controllers.checkpoints.fingerprint import model_fingerprint, tokenizer_fingerprint
from ..controllers.errors import InputError
from ..controllers.length import MAX_DRAFT
from ..controllers.sampling import SamplingParams
from ..data_gen.dataset import MANIFEST, damaged_shards, read_manifest, shard_files
from ..data_gen.draft_states import (
    Examples,
    after_mixed_text,
    after_target_text,
    at_all_drafted_tokens,
    from_draft,
)
from ..data_gen.feature_shards import (
    EMBEDDING,
    SHARD_BYTES,
    STORED,
    TRACES,
    TRAIN,
    VALIDATION,
    FeatureShard,
    FeatureWriter,
)
from ..data_gen.split import is_validation
from ..data_gen.texts import Text, texts_of
from ..infer.generation_defaults import stop_tokens_of
from ..infer.loading import load_any_model, load_tokenizer
from ..infer.models import language_model, output_embedding
from ..options import FeatureDataOptions
from ..simulate.trace_shards import as_tensors, trace_text
from .feature_sources import feature_identity

ROW_BYTES = 48  # upper bound for an example without its state
TRACE_BYTES = 96  # for a node without its state


@dataclass(frozen=True)
class Source:
    """A shard of the data: its file, and the index and kind of its dataset."""

    path: Path
    folder: int
    kind: str


@dataclass(frozen=True)
class Piece:
    """A shard to be written.

    Attributes:
        part: name of the dataset's part.
        file: index of the data's shard that it is made from.
        texts: indices of its texts in that shard.
        rows: number of examples; for a trace, the maximum number of nodes.
        first: number of texts in all earlier files; the mixing depends on a text's index in all data.
    """

    part: str
    file: int = 0
    texts: tuple[int, ...] = ()
    rows: int = 0
    first: int = 0


class FeatureBuilder:
    """Models, data and settings of one feature dataset.

    Attributes:
        pieces: all shards, in the order of writing.
        left_out: number of texts without examples.

    Raises:
        InputError: the data or a model is missing, the models are not those of the data, or training or validation
            would be empty.
    """

    def __init__(self, settings: FeatureDataOptions) -> None:
        self.identity = feature_identity(settings)
        self.settings, self.options = settings, self.identity["settings"]
        self.sampling = SamplingParams(**self.identity["sampling"])
        self.files = [
            Source(file, index, read_manifest(folder)["kind"])
            for index, folder in enumerate(settings.folders)
            for file in shard_files(folder)
        ]
        self._load()
        self.read = lru_cache(maxsize=1)(self._read)
        self.left_out = 0
        self.pieces = [Piece(EMBEDDING), *self._plan()]

    def _load(self) -> None:
        names = {role: self.identity[role] for role in (("target", "draft") if self.options["traced"] else ("draft",))}
        models = {
            role: load_any_model(name, dtype=self.options["dtype"], device=self.settings.device, decoder_only=True)
            for role, name in names.items()
        }
        found = {role: model_fingerprint(model) for role, model in models.items()}
        tokenizer = load_tokenizer(names["target"]) if "target" in names else None
        if tokenizer is not None:
            found["tokenizer"] = tokenizer_fingerprint(tokenizer)
        for role, fingerprint in found.items():
            if fingerprint != self.identity["fingerprint"][role]:
                raise InputError(
                    f"{role}={self.identity[role]!r}: is not the {role} the data was made with; "
                    "give that one, or generate data for this one"
                )
        self.draft = language_model(models["draft"])
        self.target = language_model(models["target"]) if "target" in models else None
        self.stop_tokens = stop_tokens_of(models["target"], tokenizer) if self.target is not None else frozenset()
        self.embedding: Tensor = output_embedding(models["draft"])
        self.identity |= {"hidden_size": self.draft.hidden_size, "stop_tokens": sorted(self.stop_tokens)}

    @property
    def size(self) -> int:
        """The target's vocabulary size V if the draft's is larger and its distributions are cut to it."""
        sizes = [read_manifest(folder).get("vocab_size", self.draft.vocab_size) for folder in self.settings.folders]
        return int(min(sizes))

    @property
    def row_bytes(self) -> int:
        """Bytes of an example on disk."""
        return ROW_BYTES + self.draft.hidden_size * STORED[self.options["states"]].itemsize

    def _read(self, file: int) -> list[Text | None]:
        """The texts of one shard of the data; None for texts without examples."""
        return [self._usable(text) for text in texts_of(self.files[file].path, self.files[file].kind)]

    def _usable(self, text: Text) -> Text | None:
        room = self.options["max_length"] - len(text.prompt_ids)
        if room < 1:
            return None
        text = text.cut(room)
        if self.options["context"] == "target":
            text = text.after_first()
        return text if text.tokens else None

    def _text(self, file: int, index: int) -> Text:
        text = self.read(file)[index]
        assert text is not None, "a piece is made of texts with examples"
        return text

    def _plan(self) -> Iterator[Piece]:
        first, traced = 0, 0
        taken = dict.fromkeys(range(len(self.settings.folders)), 0)  # training texts by dataset
        most = self.options["texts"] or math.inf
        validation = 0
        for file, source in enumerate(self.files):
            usable = {index: text for index, text in enumerate(self.read(file)) if text is not None}
            fraction = self.options["validation_fraction"]
            held_out = [index for index, text in usable.items() if is_validation(text.prompt_id, fraction)]
            training = [index for index in usable if index not in held_out]
            training = training[: int(min(len(training), most - taken[source.folder]))]
            yield from self._pieces(VALIDATION, file, held_out, first)
            for mixing in range(self.options.get("mixings", 1)):
                yield from self._pieces(f"{TRAIN}{mixing}", file, training, first)
            for index in held_out[: max(0, self.options["traced"] - traced)]:
                yield Piece(TRACES, file, (index,), MAX_DRAFT * len(usable[index].x))
            taken[source.folder] += len(training)
            validation += len(held_out)
            traced += len(held_out)
            first += len(self.read(file))
            self.left_out += len(self.read(file)) - len(usable)
        if not (validation and sum(taken.values())):
            raise InputError(
                f"validation_fraction={self.options['validation_fraction']}: gives {sum(taken.values())} texts to "
                f"training and {validation} to validation; each needs at least one: use more data or another fraction"
            )

    def _pieces(self, part: str, file: int, texts: Sequence[int], first: int) -> Iterator[Piece]:
        """``texts`` in shards of up to ``SHARD_BYTES``."""
        together: list[int] = []
        rows = 0
        for index in texts:
            text = self._text(file, index)
            mixed = self.options["context"] == "mixed"
            count = int(self._drafted(part, first + index, text).sum()) if mixed else len(text.tokens)
            if together and (rows + count) * self.row_bytes > SHARD_BYTES:
                yield Piece(part, file, tuple(together), rows, first)
                together, rows = [], 0
            together.append(index)
            rows += count
        if together:
            yield Piece(part, file, tuple(together), rows, first)

    def _drafted(self, part: str, number: int, text: Text) -> NDArray[np.bool_]:
        """Where a mixed text has the draft's tokens; drawn for each training part, and once for validation."""
        if self.options["mixing"] == 1:
            return np.ones(len(text.x), dtype=np.bool_)
        stream = 0 if part == VALIDATION else 1 + int(part.removeprefix(TRAIN))
        return from_draft(self.options["seed"], stream, number, len(text.x), self.options["mixing"])

    def shard(self, piece: Piece) -> FeatureShard:
        """The tensors of one piece.

        Raises:
            InputError: a state overflows the precision it is stored in.
        """
        if piece.part == EMBEDDING:
            return FeatureShard(EMBEDDING, {EMBEDDING: self.embedding.cpu()})
        states = STORED[self.options["states"]]
        tensors = self._trace(piece) if piece.part == TRACES else self._examples(piece)
        tensors["states"] = tensors["states"].to(states)
        if not bool(torch.isfinite(tensors["states"]).all()):
            raise InputError(f"states={self.options['states']}: a hidden state of the draft is too large; use float32")
        return FeatureShard(piece.part, tensors)

    def _trace(self, piece: Piece) -> dict[str, Tensor]:
        assert self.target is not None, "the target is loaded if there are traces"
        text, budget = self._text(piece.file, piece.texts[0]), self.identity["budget"]
        return as_tensors(trace_text(self.target, self.draft, text, budget, self.sampling, self.stop_tokens))

    def _examples(self, piece: Piece) -> Examples:
        texts = [self._text(piece.file, index) for index in piece.texts]
        if self.options["context"] == "target":
            return after_target_text(self.draft, texts, self.sampling, self.size)
        if self.options["mixing"] == 1:
            return at_all_drafted_tokens(self.draft, texts)
        numbers = [piece.first + index for index in piece.texts]
        drafted = [self._drafted(piece.part, number, text) for number, text in zip(numbers, texts, strict=True)]
        return after_mixed_text(self.draft, texts, drafted)

    def summary(self) -> str:
        """A description of the work and the disk space it needs."""
        rows = {
            name: sum(piece.rows for piece in self.pieces if piece.part.startswith(name))
            for name in (TRAIN, VALIDATION, TRACES)
        }
        examples = (rows[TRAIN] + rows[VALIDATION]) * self.row_bytes
        traces = rows[TRACES] * (self.row_bytes + TRACE_BYTES)
        return (
            f"{rows[TRAIN]:,} training and {rows[VALIDATION]:,} validation examples of {self.draft.hidden_size} "
            f"{self.options['states']} numbers: {examples / 1e6:,.1f} MB; "
            f"{sum(piece.part == TRACES for piece in self.pieces)} traces: at most {traces / 1e6:,.1f} MB; "
            f"the draft's embedding: {self.embedding.nbytes / 1e6:,.1f} MB"
        )

    def write(self, output: Path, console: Console) -> None:
        """Write the shards that are missing in ``output``."""
        with FeatureWriter(output, self.identity) as writer:
            if self.left_out:
                console.print(
                    f"{self.left_out} texts are left out: no drafted token, or a prompt of at least max_length tokens"
                )
            console.print(f"{output}: {self.summary()}", soft_wrap=True)
            for name in writer.forget_damaged():
                console.print(f"{output / name}: missing or changed; made again", soft_wrap=True)
            missing = writer.missing(len(self.pieces))
            pieces = [self.pieces[index] for index in missing]
            needed = sum(piece.rows * self.row_bytes for piece in pieces if piece.part != TRACES)
            free = shutil.disk_usage(output).free
            if needed > free:
                raise InputError(
                    f"{output}: needs {needed / 1e6:,.1f} MB and {free / 1e6:,.1f} MB are free; free space or choose "
                    "another place"
                )
            for index in track(missing, "features", console=console, transient=True):
                writer.write(self.shard(self.pieces[index]), index)
            writer.complete()


def is_made(settings: FeatureDataOptions, output: Path) -> bool:
    """Whether ``output`` holds all that ``settings`` ask for, and no shard is damaged."""
    if not (output / MANIFEST).exists():
        return False
    manifest = read_manifest(output)
    made = bool(manifest["complete"]) and feature_identity(settings).items() <= manifest.items()
    return made and not damaged_shards(output, manifest)


def make_features(settings: FeatureDataOptions, output: Path, console: Console | None = None) -> Path:
    """Make or complete the feature dataset ``output``, and return its path.

    Raises:
        InputError: see :class:`FeatureBuilder` and :class:`~specpilot.data_gen.dataset.ShardWriter`; the disk is full.
    """
    console = console or Console(stderr=True)
    if is_made(settings, output):
        console.print(f"{output}: already complete")
    else:
        FeatureBuilder(settings).write(output, console)
    return output


def plan_features(settings: FeatureDataOptions) -> str:
    """Describe the work of :func:`make_features`; reads the data and the models, and writes nothing."""
    return FeatureBuilder(settings).summary()
