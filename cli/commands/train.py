"""`specpilot train …`: datasets in, run folders out."""

from __future__ import annotations

from pathlib import Path

from ..train.settings import AcceptanceTrainingOptions, LagFreeTrainingOptions, RouterTrainingOptions


def acceptance(settings: AcceptanceTrainingOptions, *, output: Path, resume: bool = False) -> None:
    """Train an acceptance head on a dataset (SpecDec++ §3.2).

    Args:
        output: Run folder: resolved settings, metrics, checkpoints.
        resume: Go on with the unfinished run in the folder.
    """
    from ..infer.quiet import quiet
    from ..train.acceptance import train_acceptance

    quiet()
    result = train_acceptance(settings, output=output, resume=resume)
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
    print(f"{result.run}: best after epoch {result.epoch + 1}; {metrics}")
    print(f"next: specpilot export {result.run} <folder>")


def features(
    *, data: str, output: Path, draft: str | None = None, validation_fraction: float = 0.1, device: str = "auto"
) -> None:
    """Fit a controller that goes by the draft's probabilities alone: a logistic model, four numbers.

    Args:
        data: Folder written by `specpilot data acceptance`.
        output: JSON file to write; `specpilot generate --length FILE --cost FILE` takes it.
        draft: The draft model the data was made with, if it is elsewhere now.
        validation_fraction: Share of prompts held out to judge it on, by a hash of their id.
        device: auto, cpu, cuda, …
    """
    import json

    from ..infer.quiet import quiet
    from ..train.calibrate import train_features

    quiet()
    result = train_features(data, output, draft=draft, validation_fraction=validation_fraction, device=device)
    print(f"{output}: a feature controller; use it with specpilot generate --length {output} --cost FILE")
    print(json.dumps(result))


def lag_free(settings: LagFreeTrainingOptions, *, output: Path, overwrite: bool = False) -> None:
    """Train a head that judges a token before the draft has read it, and the token after it.

    Args:
        output: Folder of the checkpoint; `specpilot generate --length FOLDER --cost FILE` takes it.
        overwrite: Replace a checkpoint that is there already.
    """
    from ..infer.quiet import quiet
    from ..train.lag_free import train_lag_free

    quiet()
    metrics = train_lag_free(settings, output, overwrite=overwrite)
    print(f"{output}: " + ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()))


def router(settings: RouterTrainingOptions, *, output: Path, resume: bool = False) -> None:
    """Train a router on a dataset of rewards (assistant selection, §2.4).

    Args:
        output: Run folder: resolved settings, metrics, checkpoints, a picture of the choices.
        resume: Go on with the unfinished run in the folder.
    """
    from ..infer.quiet import quiet
    from ..train.router import train_router

    quiet()
    result = train_router(settings, output=output, resume=resume)
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
    print(f"{result.run}: best after epoch {result.epoch + 1}; {metrics}")
    print(f"next: specpilot export {result.run} <folder>")
