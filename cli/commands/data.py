"""`specpilot data …`: makes datasets from prompts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...data_gen.options import (
    ONE_PROCESS,
    AcceptanceDataOptions,
    AnswersDataOptions,
    DatasetFolderOptions,
    OnPolicyDataOptions,
    ResponseOptions,
    RouterDataOptions,
    WorkerOptions,
)
from ...train.options import FeatureDataOptions


def acceptance(
    options: AcceptanceDataOptions, dataset: DatasetFolderOptions, workers: WorkerOptions, responses: ResponseOptions
) -> None:
    """Roll out the target and label the draft's proposals.

    SpecDec++, §3.3: the proposals are drawn after every prefix of the target's outputs.
    """
    from ...data_gen.acceptance import AcceptanceDatasetBuilder, make_acceptance_data

    _make(AcceptanceDatasetBuilder, make_acceptance_data, options, dataset, workers=workers, responses=responses)


def answers(options: AnswersDataOptions, dataset: DatasetFolderOptions, workers: WorkerOptions) -> None:
    """Generate answers of the target for training a draft."""
    from ...data_gen.acceptance import AnswersBuilder, make_answers

    _make(AnswersBuilder, make_answers, options, dataset, workers=workers)


def on_policy(options: OnPolicyDataOptions, dataset: DatasetFolderOptions) -> None:
    """Log the decoder's rounds: drafts and their acceptance."""
    from ...data_gen.on_policy import OnPolicyDatasetBuilder, make_on_policy_data

    _make(OnPolicyDatasetBuilder, make_on_policy_data, options, dataset)


def router(options: RouterDataOptions, dataset: DatasetFolderOptions, workers: WorkerOptions) -> None:
    """Generate outputs of the target and of a router's arms.

    The outputs are scored by their similarity (assistant selection, §2.3).
    """
    from ...data_gen.router import RouterDatasetBuilder, make_router_data

    _make(RouterDatasetBuilder, make_router_data, options, dataset, workers=workers)


def _make(
    builder: Callable[[Any], Any],
    make: Callable[..., Path],
    options: Any,
    dataset: DatasetFolderOptions,
    **keywords: Any,
) -> None:
    """Make a dataset, or print the plan of its ``builder``."""
    from ...data_gen.builder import plan

    _prepare()
    if dataset.plan:
        print(plan(builder(options), keywords.get("workers", ONE_PROCESS)))
    else:
        make(options, dataset.output, **keywords)


def features(options: FeatureDataOptions, dataset: DatasetFolderOptions, workers: WorkerOptions) -> None:
    """Compute the inputs of acceptance predictors once.

    The inputs are the draft's hidden states, evidence, and traces for validation.
    """
    from ...train.features import make_features, plan_features

    _prepare()
    if dataset.plan:
        print(plan_features(options, workers))
        return
    make_features(options, dataset.output, workers=workers)


def _prepare() -> None:
    """Silence libraries and limit the memory; called before models are loaded."""
    from ...common.console import quiet
    from ...common.machine import limit_memory

    quiet()
    limit_memory()
