"""`specpilot train …`: datasets in, run folders out."""

from __future__ import annotations

from ..options import (
    AcceptanceTrainingOptions,
    CheckpointOptions,
    FeatureTrainingOptions,
    LagFreeTrainingOptions,
    RouterTrainingOptions,
    RunOptions,
)


def acceptance(options: AcceptanceTrainingOptions, run: RunOptions) -> None:
    """Train an acceptance head on a dataset (SpecDec++ §3.2)."""
    from ..infer.quiet import quiet
    from ..train.acceptance import train_acceptance

    quiet()
    result = train_acceptance(options, output=run.output, resume=run.resume)
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
    print(f"{result.run}: best after epoch {result.epoch + 1}; {metrics}")
    print(f"next: specpilot export {result.run} <folder>")


def features(options: FeatureTrainingOptions) -> None:
    """Fit a controller that goes by the draft's probabilities alone: a logistic model, four numbers."""
    import json

    from ..infer.quiet import quiet
    from ..train.calibrate import train_features

    quiet()
    result = train_features(options)
    output = options.output
    print(f"{output}: a controller checkpoint; use it with specpilot generate --length {output} --cost FILE")
    print(json.dumps(result))


def lag_free(options: LagFreeTrainingOptions, checkpoint: CheckpointOptions) -> None:
    """Train a head that predicts whether a token is accepted before the draft has read it, and the one after it."""
    from ..infer.quiet import quiet
    from ..train.lag_free import train_lag_free

    quiet()
    metrics = train_lag_free(options, checkpoint.output, overwrite=checkpoint.overwrite)
    print(f"{checkpoint.output}: " + ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()))


def router(options: RouterTrainingOptions, run: RunOptions) -> None:
    """Train a router on a dataset of rewards (assistant selection, §2.4)."""
    from ..infer.quiet import quiet
    from ..train.router import train_router

    quiet()
    result = train_router(options, output=run.output, resume=run.resume)
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
    print(f"{result.run}: best after epoch {result.epoch + 1}; {metrics}")
    print(f"next: specpilot export {result.run} <folder>")
