"""``specpilot data features``: computes draft states, evidence and validation traces, the training data of predictors.

Training reads these shards and needs neither target nor draft. The work is a list of pieces with a shard each. Their
order depends only on the settings and the data, and a killed run continues with the first missing piece.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

from rich.console import Console

from ..common.console import stderr_console
from ..common.errors import InputError, counted
from ..controllers.length import MAX_DRAFT
from ..controllers.sampling import SamplingParams
from ..controllers.training_options import MIXED, ROUNDS, TARGET
from ..data_gen.dataset import ShardWriter, new_manifest, read_manifest, shard_files, whole_manifest
from ..data_gen.feature_shards import EMBEDDING, SHARD_BYTES, STORED, TRACES, TRAIN, VALIDATION, FeatureShard
from ..data_gen.kinds import LABELLED, Text, read_shard, text_of
from ..data_gen.options import ONE_PROCESS, WorkerOptions
from ..data_gen.ray_workers import open_workers
from ..data_gen.workers import Description, Workers, write_shards
from .datasets import feature_identity, read_sources, require_both, split
from .feature_maker import FeatureMaker, Unit, drafted_places
from .options import FeatureDataOptions

ROW_BYTES = 48  # upper bound for an example without its state
TRACE_BYTES = 96  # upper bound for a node of a trace without its state
LEFT_OUT = "too short to draft in, or after a prompt of max_length tokens"  # texts without examples
PROBE_TEXTS = 4  # number of texts by which a plan is timed


@dataclass(frozen=True)
class Piece:
    """A shard to write.

    Attributes:
        part: name of the dataset's part.
        file: index of the shard of the data from which it is made.
        texts: index of each text in all data, on which its mixing depends.
        rows: number of examples; for a trace, the maximum number of nodes.
    """

    part: str
    file: int = 0
    texts: tuple[int, ...] = ()
    rows: int = 0


class FeaturePlan:
    """The data and the settings of a feature dataset, and the shards to make.

    Attributes:
        pieces: all shards, in their order.
        left_out: number of texts without examples.

    Args:
        settings: the options.
        models: the result of :meth:`FeatureMaker.describe`.

    Raises:
        InputError: the data is damaged, or training or validation would be empty, for example by ``max_length``.
    """

    def __init__(self, settings: FeatureDataOptions, models: Description) -> None:
        self.identity = {**feature_identity(settings), **models.identity}
        manifest = new_manifest(self.identity)
        assert manifest.hidden_size is not None, "a maker describes it"
        self.settings, self.options = settings, manifest.features
        self.hidden_size, self.embedding_bytes = manifest.hidden_size, models.embedding_bytes
        manifests = [read_manifest(folder) for folder in settings.folders]
        self.samplings = [manifest.sampling for manifest in manifests]
        # Each shard of the data, the kind of its rows, and the index of its folder.
        self.files = [
            (file, manifest.kind, index)
            for index, (folder, manifest) in enumerate(zip(settings.folders, manifests, strict=True))
            for file in shard_files(folder)
        ]
        self.first = [0]  # index of the first text of each shard
        self.left_out = 0
        self.texts = lru_cache(maxsize=1)(self._read)
        self.pieces = [Piece(EMBEDDING), *self._plan()]

    @property
    def row_bytes(self) -> int:
        """The size of an example on disk in bytes."""
        return ROW_BYTES + self.hidden_size * STORED[self.options.states].itemsize

    def unit(self, piece: Piece) -> Unit:
        """Return the contents of the shard of ``piece`` for a worker."""
        texts = [self.texts(piece.file)[number] for number in piece.texts]
        return Unit(piece.part, self.samplings[self.files[piece.file][2]], texts, [*piece.texts])

    def _read(self, file: int) -> dict[int, Text]:
        """Return the texts with examples of a shard of the data, by index."""
        path, kind, _ = self.files[file]
        texts = [text_of(row) for row in read_shard(path, LABELLED[kind])]
        if file + 1 == len(self.first):
            self.first.append(self.first[file] + len(texts))
        cut = {self.first[file] + index: self._cut(text) for index, text in enumerate(texts)}
        return {number: text for number, text in cut.items() if text.tokens}

    def _cut(self, text: Text) -> Text:
        """Return the part of a text from which examples are made."""
        text = text.cut(max(0, self.options.max_length - len(text.prompt_ids)))
        return text.after_first() if self.options.context == TARGET else text

    def _plan(self) -> Iterator[Piece]:
        """Yield the pieces of each shard of the data: held-out texts, training texts, and traces of held-out texts."""
        untraced = self._traces()
        used_texts: Counter[int] = Counter()  # number of training texts by dataset
        validation = 0
        fraction, most = self.options.validation_fraction, self.options.texts
        for file, (_, _, folder) in enumerate(self.files):
            texts = self.texts(file)
            training, held_out = split(texts, [text.prompt_id for text in texts.values()], fraction)
            training = training if most is None else training[: most - used_texts[folder]]
            yield from self._pieces(VALIDATION, file, held_out)
            for mixing in range(self.options.mixings or 1):
                yield from self._pieces(f"{TRAIN}{mixing}", file, training)
            sampling = self.samplings[folder]
            traced = held_out[: untraced[sampling]]
            untraced[sampling] -= len(traced)
            for number in traced:
                yield Piece(TRACES, file, (number,), MAX_DRAFT * len(texts[number].x))
            used_texts[folder] += len(training)
            validation += len(held_out)
            self.left_out += self.first[file + 1] - self.first[file] - len(texts)
        if not (used_texts.total() or validation) and self.left_out:
            raise InputError(
                f"max_length={self.options.max_length}: all {counted(self.left_out, 'text')} are left out: {LEFT_OUT}; "
                "give a larger --max-length"
            )
        require_both(used_texts.total(), validation, fraction, "text")

    def _traces(self) -> dict[SamplingParams, int]:
        """Return the number of traces for each sampling; all samplings have equal parts."""
        samplings = [*dict.fromkeys(self.samplings)]
        return {
            sampling: len(range(index, self.options.traced, len(samplings))) for index, sampling in enumerate(samplings)
        }

    def _pieces(self, part: str, file: int, texts: Sequence[int]) -> Iterator[Piece]:
        """Yield pieces of ``texts`` with up to ``SHARD_BYTES``."""
        together: list[int] = []
        rows = 0
        for number in texts:
            text = self.texts(file)[number]
            if self.options.context == MIXED:
                count = int(drafted_places(self.options, part, number, len(text.x)).sum())
            else:
                count = len(text.x) if self.options.context == ROUNDS else len(text.tokens)
            if together and (rows + count) * self.row_bytes > SHARD_BYTES:
                yield Piece(part, file, tuple(together), rows)
                together, rows = [], 0
            together.append(number)
            rows += count
        if together:
            yield Piece(part, file, tuple(together), rows)

    def summary(self) -> str:
        """Return a description of the work and of the disk space that it needs."""
        rows = {
            name: sum(piece.rows for piece in self.pieces if piece.part.startswith(name))
            for name in (TRAIN, VALIDATION, TRACES)
        }
        examples = (rows[TRAIN] + rows[VALIDATION]) * self.row_bytes
        traces = rows[TRACES] * (self.row_bytes + TRACE_BYTES)
        return (
            f"{rows[TRAIN]:,} training and {counted(rows[VALIDATION], 'validation example')} of {self.hidden_size} "
            f"{self.options.states} numbers: {examples / 1e6:,.1f} MB; "
            f"{counted(sum(piece.part == TRACES for piece in self.pieces), 'trace')}: at most {traces / 1e6:,.1f} MB; "
            f"the draft's embedding: {self.embedding_bytes / 1e6:,.1f} MB"
        )

    def write(self, output: Path, workers: Workers[Unit, FeatureShard], console: Console) -> None:
        """Write the missing shards to ``output``."""
        with ShardWriter(output, self.identity) as writer:
            if self.left_out:
                console.print(f"{counted(self.left_out, 'text')} left out: {LEFT_OUT}", soft_wrap=True)
            console.print(f"{output}: {self.summary()}", soft_wrap=True)
            texts = [len(piece.texts) for piece in self.pieces]
            shard_bytes = [0 if piece.part == TRACES else piece.rows * self.row_bytes for piece in self.pieces]
            write_shards(
                writer, texts, lambda number: self.unit(self.pieces[number]), workers.make_all, console, shard_bytes
            )


def feature_maker(settings: FeatureDataOptions) -> Callable[[], FeatureMaker]:
    """Return a function that loads the models of ``settings``, in this process or a worker's process."""
    manifest = new_manifest(feature_identity(settings))
    sizes = [source.vocab_size for source in read_sources(settings) if source.vocab_size is not None]
    return partial(FeatureMaker, manifest, settings.device, min(sizes, default=None), settings.placement)


def make_features(
    settings: FeatureDataOptions,
    output: str | Path,
    *,
    workers: WorkerOptions = ONE_PROCESS,
    console: Console | None = None,
) -> Path:
    """Make or complete the feature dataset ``output``, and return its path.

    Raises:
        InputError: as for :class:`FeatureMaker`, :class:`FeaturePlan`,
            :func:`~specpilot.data_gen.ray_workers.open_workers` and
            :class:`~specpilot.data_gen.dataset.ShardWriter`; the disk is full.
    """
    console, output = console or stderr_console(), Path(output)
    if whole_manifest(output, feature_identity(settings)) is not None:
        console.print(f"{output}: already complete")
        return output
    with open_workers(feature_maker(settings), workers, settings.device, console) as group:
        FeaturePlan(settings, group.description).write(output, group, console)
    return output


def plan_features(settings: FeatureDataOptions, workers: WorkerOptions = ONE_PROCESS) -> str:
    """Return a description of the work of :func:`make_features`, timed on a few texts. Writes nothing."""
    maker = feature_maker(settings)()
    plan = FeaturePlan(settings, maker.describe())
    seconds = 0.0
    for name in (TRAIN, VALIDATION, TRACES):
        pieces = [piece for piece in plan.pieces if piece.part.startswith(name)]
        if not pieces:
            continue
        unit = plan.unit(replace(pieces[0], texts=pieces[0].texts[:PROBE_TEXTS]))
        started = time.perf_counter()
        maker.make(unit)
        rate = sum(len(text.x) for text in unit.texts) / (time.perf_counter() - started)
        seconds += sum(len(text.x) for piece in pieces for text in plan.unit(piece).texts) / rate
    worker_count = min(workers.workers or 1, len(plan.pieces))
    shared = f", shared by {worker_count} workers" if worker_count > 1 else ""
    return f"{plan.summary()}; about {seconds / worker_count / 60:.1f} minutes at the rate of a short probe{shared}"
