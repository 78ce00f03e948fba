"""`specpilot data …`: prompts in, datasets out."""

from __future__ import annotations

from ..options import (
    AcceptanceDataOptions,
    DatasetFolderOptions,
    FeatureDataOptions,
    OnPolicyDataOptions,
    PlannedDatasetOptions,
    RouterDataOptions,
)


def acceptance(options: AcceptanceDataOptions, dataset: PlannedDatasetOptions) -> None:
    """Roll out the target over prompts and label what the draft would have proposed (SpecDec++ §3.3)."""
    from ..data_gen.acceptance import make_acceptance_data, plan_acceptance_data
    from ..infer.quiet import quiet

    quiet()
    if dataset.plan:
        print(plan_acceptance_data(options))
        return
    make_acceptance_data(options, dataset.output)


def on_policy(options: OnPolicyDataOptions, dataset: DatasetFolderOptions) -> None:
    """Log the decoder's own rounds: what a controller drafted, and how much of it the target would accept."""
    from ..data_gen.on_policy import make_on_policy_data
    from ..infer.quiet import quiet

    quiet()
    make_on_policy_data(options, dataset.output)


def features(options: FeatureDataOptions, dataset: PlannedDatasetOptions) -> None:
    """Compute what acceptance predictors learn from: the draft's hidden states, evidence, and traces to validate on."""
    from ..infer.quiet import quiet
    from ..train.features import make_features, plan_features

    quiet()
    if dataset.plan:
        print(plan_features(options))
        return
    make_features(options, dataset.output)


def router(options: RouterDataOptions, dataset: DatasetFolderOptions) -> None:
    """Let the target and every arm answer prompts, and score how alike they are (assistant selection, §2.3)."""
    from ..data_gen.router import make_router_data
    from ..infer.quiet import quiet

    quiet()
    make_router_data(options, dataset.output)
