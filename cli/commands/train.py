"""`specpilot train …`: trains controllers and drafts."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ...common.errors import InputError
from ...common.json_file import parse_yaml, read_object
from ...controllers.registry import PREDICTORS, controller_module
from ...controllers.training_options import (
    CopyTrainingOptions,
    PredictorTrainingOptions,
    RouterTrainingOptions,
    TrainingOptions,
)
from ...train.options import DraftTrainingOptions, RunOptions

if TYPE_CHECKING:
    from ...train.fitting import TrainingResult


def acceptance(options: PredictorTrainingOptions, run: RunOptions) -> None:
    """Train a predictor of acceptance.

    Each predictor has further options and its own defaults; see --predictor NAME --help.
    """
    from ...train.acceptance import train_acceptance

    _train(train_acceptance, options, run)


def of_predictor(words: Sequence[str]) -> Callable[..., None]:
    """Return the command ``train acceptance`` with the options of the --predictor in ``words``.

    Help without a predictor imports no predictor, so that it is fast.
    """
    values: dict[str, str] = {}
    for word, following in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        values[name] = value if equals else following
    predictor = values.get("--predictor")
    if predictor is None and "--help" in words:
        return acceptance
    if predictor is None and (file := Path(values.get("--config", ""))).is_file():
        with suppress(InputError):  # the parser reports the error
            predictor = read_object(file, "give a YAML file of options", parse_yaml).get("predictor")
    kind = controller_module(PredictorTrainingOptions.predictor if predictor is None else str(predictor))
    kind = kind.TrainingOptions

    @wraps(acceptance)
    def command(options: PredictorTrainingOptions, run: RunOptions) -> None:
        acceptance(options, run)

    for flag in values:
        field = flag[2:].replace("-", "_")
        if not flag.startswith("--") or field in kind.__dataclass_fields__:
            continue
        owners = [name for name in PREDICTORS if field in controller_module(name).TrainingOptions.__dataclass_fields__]
        if owners:
            raise InputError(
                f"{flag}: is an option of --predictor {' and '.join(owners)}; leave it out, or name that predictor"
            )
    command.__annotations__ = {**acceptance.__annotations__, "options": kind}
    return command


def copies(options: CopyTrainingOptions, run: RunOptions) -> None:
    """Train a head that predicts the acceptance of copied tokens.

    Copies are n-gram drafts, which continue an earlier occurrence of the text's last tokens.
    """
    from ...train.copies import train_copies

    _train(train_copies, options, run)


def router(options: RouterTrainingOptions, run: RunOptions) -> None:
    """Train a router between drafts (assistant selection, §2.4)."""
    from ...train.router import train_router

    _train(train_router, options, run)


def draft(options: DraftTrainingOptions, run: RunOptions) -> None:
    """Train a draft made of the target's layers.

    It shares the target's embedding and proposes its most frequent tokens.
    """
    from ...train.draft import train_draft

    _train(train_draft, options, run)


def _train(train: Callable[..., TrainingResult], options: TrainingOptions, run: RunOptions) -> None:
    """Train, and print the result and the next command."""
    from ...common.console import quiet
    from ...controllers.checkpoints.card import judgement

    quiet()
    result = train(options, output=run.output, resume=run.resume)
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
    print(f"{result.run}: best after epoch {result.epoch}; {metrics}")
    if weakness := judgement(result.metrics):
        print(f"warning: on held-out prompts this controller {weakness}")
    print(f"Export it: specpilot export {shlex.quote(str(result.run))} FOLDER")
