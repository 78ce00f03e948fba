"""`specpilot train …`: train controllers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.errors import InputError
from ..common.json_file import parse_yaml, read_object
from ..train.options import (
    AcceptanceTrainingOptions,
    CopyTrainingOptions,
    DraftTrainingOptions,
    FeatureTrainingOptions,
    LagFreeTrainingOptions,
    PredictorTrainingOptions,
    RouterTrainingOptions,
    RunOptions,
)

if TYPE_CHECKING:
    from ..train.fitting import TrainingResult


def acceptance(options: AcceptanceTrainingOptions, run: RunOptions) -> None:
    """Train a predictor: specdec, lag-free or features."""
    _predictor(options, run)


def lag_free(options: LagFreeTrainingOptions, run: RunOptions) -> None:
    """Train a head that predicts the acceptance of a token before the draft has read it."""
    _predictor(options, run)


def features(options: FeatureTrainingOptions, run: RunOptions) -> None:
    """Train a logistic model with four parameters on the draft's probabilities alone."""
    _predictor(options, run)


PREDICTORS: dict[str, Callable[..., None]] = {"specdec": acceptance, "lag-free": lag_free, "features": features}


def of_predictor(words: Sequence[str]) -> Callable[..., None]:
    """The command that ``train acceptance`` with ``words`` means: each --predictor has options of its own."""
    given: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        given[name] = value if equals else following
    predictor = given.get("--predictor")
    if predictor is None and (file := Path(given.get("--config", ""))).is_file():
        with suppress(InputError):  # the parser reports it
            predictor = read_object(file, "give a YAML file of options", parse_yaml).get("predictor")
    return PREDICTORS.get(str(predictor), acceptance)


def _predictor(options: PredictorTrainingOptions, run: RunOptions) -> None:
    from ..common.console import quiet
    from ..train.acceptance import train_acceptance

    quiet()
    _report(train_acceptance(options, output=run.output, resume=run.resume))


def copies(options: CopyTrainingOptions, run: RunOptions) -> None:
    """Train a head that predicts the acceptance of copied tokens.

    Copies are n-gram drafts: they continue an earlier occurrence of the text's last tokens.
    """
    from ..common.console import quiet
    from ..train.copies import train_copies

    quiet()
    _report(train_copies(options, output=run.output, resume=run.resume))


def router(options: RouterTrainingOptions, run: RunOptions) -> None:
    """Train a router between drafts (assistant selection, §2.4)."""
    from ..common.console import quiet
    from ..train.router import train_router

    quiet()
    _report(train_router(options, output=run.output, resume=run.resume))


def draft(options: DraftTrainingOptions, run: RunOptions) -> None:
    """Train a draft made of the target's own layers.

    It shares the target's embedding and proposes its most frequent tokens.
    """
    from ..common.console import quiet
    from ..train.draft import train_draft

    quiet()
    _report(train_draft(options, output=run.output, resume=run.resume))


def _report(result: TrainingResult) -> None:
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
    print(f"{result.run}: best after epoch {result.epoch + 1}; {metrics}")
    print(f"next: specpilot export {result.run} <folder>")
