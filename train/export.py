"""``specpilot export``: writes the best checkpoint of a run as a controller that the decoder loads."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..common.errors import InputError
from ..controllers.acceptance.acceptance_head import AcceptanceHead, AcceptanceHeadConfig
from ..controllers.acceptance.copy_head import CopyHead, CopyHeadConfig
from ..controllers.acceptance.feature_model import FeatureModel, FeatureModelConfig
from ..controllers.acceptance.lag_free_head import LagFreeHead, LagFreeHeadConfig
from ..controllers.arms import Arm
from ..controllers.checkpoints.checkpoint import load_controller, save_controller
from ..controllers.checkpoints.config import CONFIG, ControllerConfig
from ..controllers.checkpoints.fingerprint import PairFingerprint
from ..controllers.checkpoints.provenance import Provenance
from ..controllers.router import RouterPolicy
from ..controllers.router.policy import RouterConfig
from ..controllers.sampling import SamplingParams
from .datasets import fingerprints, samplings
from .draft import KIND as DRAFT
from .draft import export_draft
from .feature_module import FeatureHead
from .options import (
    AcceptanceTrainingOptions,
    CopyTrainingOptions,
    DraftTrainingOptions,
    FeatureTrainingOptions,
    LagFreeTrainingOptions,
    RouterTrainingOptions,
)
from .run_folder import Run, S, read_checkpoint, read_run, run_kind

PAPER_THRESHOLD = 0.7


def export(run: Path, output: Path, *, threshold: float | None = None, overwrite: bool = False) -> Path:
    """Write the best weights of a training run as a controller checkpoint; returns its folder.

    Args:
        run: folder written by ``specpilot train``; an unfinished run gives its best epoch so far. Or a controller
            checkpoint, which is rewritten in the current format.
        output: checkpoint folder to create.
        threshold: for an acceptance head: stop drafting when the probability of a rejection exceeds it. Default: the
            paper's 0.7.
        overwrite: replace an existing checkpoint.

    Raises:
        InputError: ``run`` is no run or has no finished epoch, ``output`` exists, or the threshold is not in [0, 1].
    """
    is_controller = (run / CONFIG).is_file()
    kind = run_kind(run)
    if threshold is not None and (is_controller or kind != "specdec"):
        what = "an exported controller keeps its own" if is_controller else f"a {kind} controller has none"
        raise InputError(f"threshold={threshold}: {what}; leave it out")
    if is_controller:
        controller = load_controller(run)
        return save_controller(output, controller.head, controller.config, overwrite=overwrite)
    if kind == DRAFT:
        trained = read_run(run, DraftTrainingOptions)
        return export_draft(trained, _read_best(trained), output, overwrite=overwrite)
    match kind:
        case "router":
            exported: tuple[nn.Module, ControllerConfig] = _router(read_run(run, RouterTrainingOptions))
        case "lag-free":
            exported = _lag_free(read_run(run, LagFreeTrainingOptions))
        case "copies":
            exported = _copies(read_run(run, CopyTrainingOptions))
        case "features":
            exported = _features(read_run(run, FeatureTrainingOptions))
        case _:
            exported = _acceptance_head(read_run(run, AcceptanceTrainingOptions), threshold)
    return save_controller(output, *exported, overwrite=overwrite)


def _acceptance_head(
    run: Run[AcceptanceTrainingOptions], threshold: float | None
) -> tuple[AcceptanceHead, AcceptanceHeadConfig]:
    head, metrics = best_head(run)
    settings = run.settings
    assert settings.mixing is not None, "a run's settings are complete"
    return head, AcceptanceHeadConfig(
        **_data_fields(run, run.dataset["draft"], metrics),
        hidden_size=head.hidden_size,
        depth=head.depth,
        w_acc=settings.w_acc,
        w_rej=settings.w_rej,
        mixing=settings.mixing,
        threshold=PAPER_THRESHOLD if threshold is None else threshold,
        threshold_source="paper default" if threshold is None else "given at export",
    )


def _lag_free(run: Run[LagFreeTrainingOptions]) -> tuple[LagFreeHead, LagFreeHeadConfig]:
    best, settings = _read_best(run), run.settings
    config = LagFreeHeadConfig(
        **_data_fields(run, run.dataset["draft"], best["metrics"]),
        hidden_size=best["hidden_size"],
        width=settings.width,
        uses_ngrams=settings.use_ngrams,
        mean=best["mean"],
        tokens=best["examples"],
    )
    head = config.module()
    head.load_state_dict(best["head"])
    return head, config


def _features(run: Run[FeatureTrainingOptions]) -> tuple[FeatureModel, FeatureModelConfig]:
    best = _read_best(run)
    head = FeatureHead()
    head.load_state_dict(best["head"])
    config = FeatureModelConfig(**_data_fields(run, run.dataset["draft"], best["metrics"]), mean=best["mean"])
    return head.model(), config


def _copies(run: Run[CopyTrainingOptions]) -> tuple[CopyHead, CopyHeadConfig]:
    best = _read_best(run)
    config = CopyHeadConfig(
        **_data_fields(run, None, best["metrics"]),
        hidden_size=best["hidden_size"],
        width=run.settings.width,
        tokens=best["examples"],
    )
    head = config.module()
    head.load_state_dict(best["head"])
    return head, config


def _router(run: Run[RouterTrainingOptions]) -> tuple[RouterPolicy, RouterConfig]:
    best, settings = _read_best(run), run.settings
    config = RouterConfig(
        **_data_fields(run, None, best["metrics"]),
        hidden_size=run.dataset["hidden_size"],
        width=settings.width,
        arms=tuple(Arm(**arm) for arm in run.dataset["arms"]),
        reward=settings.reward,
        alpha=settings.alpha,
        cost=settings.cost,
    )
    policy = config.module()
    policy.load_state_dict(best["head"])
    policy.absorb(torch.tensor(best["scale"]))
    return policy, config


def _data_fields(run: Run[S], draft: str | None, metrics: dict[str, float]) -> dict[str, Any]:
    """Fields of the data and the result that every kind of configuration has."""
    dataset = run.dataset
    pair = PairFingerprint(**{"draft": None, **dataset["fingerprint"]})
    sampling, *others = (SamplingParams(**each) for each in samplings(dataset))
    return {
        "provenance": Provenance(dataset["target"], draft, pair, sampling, tuple(others)),
        "datasets": fingerprints(dataset),
        "metrics": {name: value for name, value in metrics.items() if math.isfinite(value)},
    }


def best_head(run: Run[AcceptanceTrainingOptions]) -> tuple[AcceptanceHead, dict[str, float]]:
    """The best head of a training run so far, and its metrics.

    Raises:
        InputError: no epoch is finished, or the file is damaged.
    """
    best = _read_best(run)
    weights: dict[str, torch.Tensor] = best["head"]
    head = AcceptanceHead(weights["out.weight"].shape[1], run.settings.depth)
    head.load_state_dict(weights)
    return head.eval().requires_grad_(False), best["metrics"]


def _read_best(run: Run[S]) -> dict[str, Any]:
    if not run.best.exists():
        raise InputError(f"{run.folder}: no epoch is finished yet; continue with 'specpilot train … --resume'")
    return read_checkpoint(run.best)
