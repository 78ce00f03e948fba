"""The public names of specpilot, each imported on first use to keep `import specpilot` fast."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .common.errors import InputError
    from .compare.options import CompareOptions
    from .compare.run import compare
    from .controllers.acceptance.feature_model import TrainingOptions as FeatureModelTrainingOptions
    from .controllers.acceptance.lag_free_head import TrainingOptions as LagFreeTrainingOptions
    from .controllers.acceptance.specdec_head import TrainingOptions as SpecDecTrainingOptions
    from .controllers.checkpoints.checkpoint import load_controller
    from .controllers.sampling import SamplingParams
    from .controllers.training_options import CopyTrainingOptions, RouterTrainingOptions
    from .data_gen.options import (
        AcceptanceDataOptions,
        AnswersDataOptions,
        OnPolicyDataOptions,
        ResponseOptions,
        RouterDataOptions,
        WorkerOptions,
    )
    from .infer.decoder import SpeculativeDecoder
    from .infer.options import DecodingOptions
    from .train.export import export
    from .train.options import DraftTrainingOptions, FeatureDataOptions
    from .train.pipeline import make_dataset, train

    __version__: str

# Public name → its module, and its name in the module if that differs.
_HOMES = {
    # decoding
    "SpeculativeDecoder": ".infer.decoder",
    "DecodingOptions": ".infer.options",
    "SamplingParams": ".controllers.sampling",
    "load_controller": ".controllers.checkpoints.checkpoint",
    "InputError": ".common.errors",
    # stages of the pipeline; `compare` and `train` are packages that can be called
    "make_dataset": ".train.pipeline",
    "train": ".train",
    "export": ".train.export",
    "compare": ".compare",
    # the options of datasets
    "AcceptanceDataOptions": ".data_gen.options",
    "AnswersDataOptions": ".data_gen.options",
    "OnPolicyDataOptions": ".data_gen.options",
    "RouterDataOptions": ".data_gen.options",
    "FeatureDataOptions": ".train.options",
    "WorkerOptions": ".data_gen.options",
    "ResponseOptions": ".data_gen.options",
    # the options of training
    "LagFreeTrainingOptions": ".controllers.acceptance.lag_free_head:TrainingOptions",
    "SpecDecTrainingOptions": ".controllers.acceptance.specdec_head:TrainingOptions",
    "FeatureModelTrainingOptions": ".controllers.acceptance.feature_model:TrainingOptions",
    "CopyTrainingOptions": ".controllers.training_options",
    "RouterTrainingOptions": ".controllers.training_options",
    "DraftTrainingOptions": ".train.options",
    "CompareOptions": ".compare.options",
}
_PACKAGES = ("compare", "train")

__all__ = [
    "AcceptanceDataOptions",
    "AnswersDataOptions",
    "CompareOptions",
    "CopyTrainingOptions",
    "DecodingOptions",
    "DraftTrainingOptions",
    "FeatureDataOptions",
    "FeatureModelTrainingOptions",
    "InputError",
    "LagFreeTrainingOptions",
    "OnPolicyDataOptions",
    "ResponseOptions",
    "RouterDataOptions",
    "RouterTrainingOptions",
    "SamplingParams",
    "SpecDecTrainingOptions",
    "SpeculativeDecoder",
    "WorkerOptions",
    "__version__",
    "compare",
    "export",
    "load_controller",
    "make_dataset",
    "train",
]


def __getattr__(name: str) -> Any:
    """Return the public object ``name``, and import its module."""
    if name == "__version__":
        from importlib.metadata import version

        return version("specpilot")
    if name not in _HOMES:
        raise AttributeError(f"module 'specpilot' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    imported_module = import_module(module, __name__)
    return imported_module if name in _PACKAGES else getattr(imported_module, attribute or name)


def __dir__() -> list[str]:
    """Return the names of the package for completion."""
    return sorted({*globals(), *__all__})
