"""`specpilot train …`: train controllers."""

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
from ...train.options import (
    PREDICTORS,
    CopyTrainingOptions,
    DraftTrainingOptions,
    LagFreeTrainingOptions,
    PredictorTrainingOptions,
    RouterTrainingOptions,
    RunOptions,
    TrainingOptions,
)

if TYPE_CHECKING:
    from ...train.fitting import TrainingResult


def acceptance(options: LagFreeTrainingOptions, run: RunOptions) -> None:
    """Train a predictor of acceptance."""
    from ...train.acceptance import train_acceptance

    _train(train_acceptance, options, run)


def of_predictor(words: Sequence[str]) -> Callable[..., None]:
    """The command that ``train acceptance`` with ``words`` means: each --predictor has options of its own."""
    given: dict[str, str] = {}
    for word, following in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        given[name] = value if equals else following
    predictor = given.get("--predictor")
    if predictor is None and (file := Path(given.get("--config", ""))).is_file():
        with suppress(InputError):  # the parser reports it
            predictor = read_object(file, "give a YAML file of options", parse_yaml).get("predictor")

    @wraps(acceptance)
    def command(options: PredictorTrainingOptions, run: RunOptions) -> None:
        acceptance(options, run)  # type: ignore[arg-type]

    kind = PREDICTORS.get(str(predictor), LagFreeTrainingOptions)
    for flag in given:
        own = [name for name, one in PREDICTORS.items() if flag[2:].replace("-", "_") in one.__dataclass_fields__]
        if flag.startswith("--") and own and kind not in [PREDICTORS[name] for name in own]:
            raise InputError(f"{flag}: is an option of --predictor {' and '.join(own)}; leave it out, or name that one")
    command.__annotations__ = {**acceptance.__annotations__, "options": kind}
    return command


def copies(options: CopyTrainingOptions, run: RunOptions) -> None:
    """Train a head that predicts the acceptance of copied tokens.

    Copies are n-gram drafts: they continue an earlier occurrence of the text's last tokens.
    """
    from ...train.copies import train_copies

    _train(train_copies, options, run)


def router(options: RouterTrainingOptions, run: RunOptions) -> None:
    """Train a router between drafts (assistant selection, §2.4)."""
    from ...train.router import train_router

    _train(train_router, options, run)


def draft(options: DraftTrainingOptions, run: RunOptions) -> None:
    """Train a draft made of the target's own layers.

    It shares the target's embedding and proposes its most frequent tokens.
    """
    from ...train.draft import train_draft

    _train(train_draft, options, run)


def _train(train: Callable[..., TrainingResult], options: TrainingOptions, run: RunOptions) -> None:
    """Train, and print the result and what to do next."""
    from ...common.console import quiet
    from ...controllers.checkpoints.card import shortcomings

    quiet()
    result = train(options, output=run.output, resume=run.resume)
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
    print(f"{result.run}: best after epoch {result.epoch}; {metrics}")
    for words in shortcomings(result.metrics):
        print(f"warning: on held-out prompts it is {words}")
    print(f"next: specpilot export {shlex.quote(str(result.run))} <folder>")
