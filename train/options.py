"""Options of training, calibration and export."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Literal

from ..common.errors import InputError
from ..common.options import (
    LARGEST,
    Count,
    DeviceOptions,
    DType,
    File,
    Folder,
    Fraction,
    Natural,
    Objects,
    Options,
    OverwriteOptions,
    Range,
    Seed,
    SeedOptions,
    Several,
    Share,
)
from ..controllers.registry import controller_module
from ..controllers.training_options import (
    MIXED,
    DataOptions,
    FeatureSourceOptions,
    MixingOptions,
    PredictorTrainingOptions,
    TrainingOptions,
    ValidationOptions,
)
from ..data_gen.options import TextFormOptions
from ..infer.options import LoadingOptions, PlacementOptions, TargetOptions


@dataclass(frozen=True, kw_only=True)
class FeatureDataOptions(FeatureSourceOptions, MixingOptions, PlacementOptions, SeedOptions):
    """Feature dataset.

    The settings of a dataset of ``specpilot data features``.

    Attributes:
        seed: Seed of the mixing.
    """

    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.context != MIXED:
            self.refuse_ignored(("mixing", "mixings", "seed"), f"predictor={self.predictor} mixes no texts")

    @property
    def context(self) -> str:
        """The draft's context, see :class:`~specpilot.controllers.training_options.PredictorTrainingOptions`."""
        return str(controller_module(self.predictor).TrainingOptions.context)


def feature_options(settings: PredictorTrainingOptions) -> FeatureDataOptions:
    """Return the options of the features that a training makes if its data holds none."""
    names = {entry.name for entry in fields(FeatureDataOptions)} & {entry.name for entry in fields(settings)}
    if settings.context != MIXED:
        names.remove("seed")
    return FeatureDataOptions(**{name: getattr(settings, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class TextOptions(TextFormOptions, DataOptions):
    """Data.

    Texts from which drafts are trained or trimmed.

    Attributes:
        data: Prompts and answers, or conversations: a JSON Lines, CSV, Parquet or text file, a folder of such files, or
            a hub dataset. Or answers of the target: a folder written by `specpilot data answers`, `data acceptance` or
            `data on-policy`. Several as "[A,B]".
    """

    data: Annotated[str | tuple[str, ...], Several(), Objects()]


@dataclass(frozen=True, kw_only=True)
class DraftTrainingOptions(TargetOptions, LoadingOptions, TextOptions, TrainingOptions):
    """Draft. Without an initial draft, it is made of the target's layers, or with features an EAGLE-3 draft.

    Options of ``specpilot train draft``.

    Attributes:
        initial: Draft to begin with: a draft of `train draft`, or any model with the target's tokenizer and number of
            tokens. Its own layers, vocabulary, output and features are kept.
        features: target: train an EAGLE-3 draft, which also reads the outputs of three of the target's layers at the
            previous position; at drafted positions it reads its own state instead. vLLM and SGLang load it.
        positions: Number of drafted positions that are trained, with features. From the second position on, the draft
            reads its own states.
        layers: Layers of the target that the draft begins with. A number takes the last layer and the first ones; a
            list such as "[0,1,29]" takes layers by index. By default 3. EAGLE-3 drafts have one new layer.
        vocabulary: Number of tokens that the draft can propose: the most frequent tokens of the data; null for all.
            With null, a draft of the target's layers is exported as a folder that transformers and vLLM load.
        own_output: Train a separate output projection for the draft instead of using the target's. EAGLE-3 drafts
            always have their own.
        window: Number of tokens of a text that are read together.
        batch_size: Number of windows in a step.
        dtype: Precision of the target; the draft is trained in float32.
        cache_states: Run the target once before the first epoch and keep its last hidden states in the run folder until
            the run is complete, so that every epoch runs only the draft. The states take 2 bytes × the target's hidden
            size for each token of the data, and four times as much for EAGLE-3 drafts.
    """

    initial: str | None = None
    features: Literal["target"] | None = None
    positions: Annotated[int, Range(1, 8)] = 3
    layers: Natural | Annotated[tuple[Natural, ...], Several()] | None = None
    vocabulary: Count | None = 8192
    own_output: bool = False
    window: Annotated[int, Range(2, LARGEST)] = 256
    epochs: Count = 1
    batch_size: Count = 4
    dtype: DType = "float32"
    cache_states: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.initial is not None:
            self.refuse_ignored(("features", "layers", "vocabulary", "own_output"), "the initial draft has its own")
        elif self.features is None:
            self.refuse_ignored(("positions",), "only drafts with --features target are trained by positions")
        else:
            self.refuse_ignored(("layers", "own_output"), "an EAGLE-3 draft has one new layer and its own output")
        if self.cache_states and self.num_nodes > 1:
            raise InputError("cache_states: one machine makes and reads the states; leave it out or set num_nodes=1")


@dataclass(frozen=True, kw_only=True)
class RunOptions(Options):
    """Output.

    The output of every training.

    Attributes:
        output: Run folder for the metrics, the checkpoints, and the settings with all defaults filled in. A new run
            needs an empty or new folder.
        resume: Continue the unfinished run in the folder. If the run is finished, train it for more epochs: pass a
            larger --epochs.
    """

    output: Folder
    resume: bool = False


@dataclass(frozen=True, kw_only=True)
class ExportOptions(OverwriteOptions):
    """Export.

    Options of ``specpilot export``.

    Attributes:
        run: Run folder of `specpilot train`, or a controller checkpoint to rewrite in the current format.
        output: Folder of the checkpoint: config.json, model.safetensors, README.md.
        threshold: Stopping threshold h that the checkpoint of an acceptance head uses by default. 0.7 if not set, as in
            the paper.
        predictor: Predictor of your own package that was trained, as package.module:Config.
        whole_vocabulary: Give a draft that was trained with a part of the vocabulary the target's whole output
            projection. transformers and vLLM load the exported folder. Not for drafts with an output of their own.
        push_to: Hub repository (owner/name) to upload the checkpoint to.
        private: Make a new repository private.
    """

    run: Path = field(kw_only=False)
    output: Folder = field(kw_only=False)
    threshold: Share | None = None
    predictor: str | None = None
    whole_vocabulary: bool = False
    push_to: str | None = None
    private: bool = True


@dataclass(frozen=True, kw_only=True)
class TrimOptions(TextOptions, OverwriteOptions):
    """Trimmed vocabulary.

    Options of ``specpilot trim-vocabulary``.

    Attributes:
        draft: Draft model: a shipped model, a folder or a hub id.
        keep: Number of tokens that the draft can propose: the most frequent tokens of the data.
        target: Target of the draft; needed for a draft that uses the target's embedding.
        output: Folder of the trimmed draft.
        trust_remote_code: Run code that comes with the model; only for sources you trust.
    """

    draft: str = field(kw_only=False)
    keep: Count = 8192
    target: str | None = None
    output: Folder
    trust_remote_code: bool = False


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(ValidationOptions, DeviceOptions, OverwriteOptions):
    """Calibration.

    Options of ``specpilot calibrate``.

    Attributes:
        controller: Checkpoint: a folder, a hub id or a shipped name.
        data: Folder written by `specpilot data acceptance` for the same pair.
        output: Folder of the calibrated checkpoint.
        method: weights (undo the loss weights) or platt.
        target: Target model of the data, if its folder was moved. It is read only for data of the verification rule
            invariant, to fit the power of the draft's probabilities.
        draft: Draft model of the data, if its folder was moved.
        validation_fraction: Share of the prompts that training held out, if the head was trained on this data.
        report: File for the JSON that is printed to standard output.
    """

    controller: str = field(kw_only=False)
    data: str
    output: Folder
    method: Literal["weights", "platt"] = "platt"
    target: str | None = None
    draft: str | None = None
    validation_fraction: Fraction = 0.1
    report: File | None = None
