"""``specpilot export``: the best checkpoint of a run becomes a controller that the decoder loads."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import torch

from ..controllers.acceptance.acceptance_head import AcceptanceHead
from ..controllers.arms import Arm
from ..controllers.checkpoints.acceptance_head import AcceptanceHeadConfig
from ..controllers.checkpoints.checkpoint import load_controller, save_controller
from ..controllers.checkpoints.config import CONFIG
from ..controllers.checkpoints.fingerprint import PairFingerprint
from ..controllers.checkpoints.provenance import Provenance
from ..controllers.checkpoints.router import RouterConfig
from ..controllers.errors import InputError
from ..controllers.router import RouterPolicy
from ..controllers.sampling import SamplingParams
from ..options import AcceptanceTrainingOptions, RouterTrainingOptions
from .datasets import fingerprints
from .run_folder import Run, S, read_run, run_kind

PAPER_THRESHOLD = 0.7


def export(run: Path, output: Path, *, threshold: float | None = None, overwrite: bool = False) -> Path:
    """Write the best weights of a training run as a controller checkpoint; returns its folder.

    Args:
        run: folder that ``specpilot train`` wrote; an unfinished run gives its best epoch so far. Or a controller,
            which is written as it is, in today's format.
        output: checkpoint folder to make.
        threshold: of an acceptance head: stop drafting when the probability of a rejection exceeds it; by default the
            paper's 0.7.
        overwrite: replace a checkpoint that is there already.

    Raises:
        InputError: ``run`` is no run or has no finished epoch, ``output`` is taken, or the threshold is not in [0, 1].
    """
    is_controller = run.is_file() or (run / CONFIG).is_file()
    is_router = run_kind(run) == "router"
    if threshold is not None and (is_controller or is_router):
        what = "a controller keeps its own" if is_controller else "a router has none"
        raise InputError(f"threshold={threshold}: {what}; leave it out")
    if is_controller:
        controller = load_controller(run)
        return save_controller(output, controller.head, controller.config, overwrite=overwrite)
    if is_router:
        return save_controller(output, *_router(read_run(run, RouterTrainingOptions)), overwrite=overwrite)
    opened = read_run(run, AcceptanceTrainingOptions)
    head, metrics = best_head(opened)
    settings = opened.settings
    assert settings.mixing is not None, "a run's settings are complete"
    config = AcceptanceHeadConfig(
        **_origin(opened, opened.dataset["draft"], metrics),
        hidden_size=head.hidden_size,
        depth=head.depth,
        w_acc=settings.w_acc,
        w_rej=settings.w_rej,
        mixing=settings.mixing,
        threshold=PAPER_THRESHOLD if threshold is None else threshold,
        threshold_source="paper default" if threshold is None else "given at export",
    )
    return save_controller(output, head, config, overwrite=overwrite)


def _router(run: Run[RouterTrainingOptions]) -> tuple[RouterPolicy, RouterConfig]:
    best, settings = _read_best(run), run.settings
    config = RouterConfig(
        **_origin(run, None, best["metrics"]),
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


def _origin(run: Run[S], draft: str | None, metrics: dict[str, float]) -> dict[str, Any]:
    """What every kind of configuration says of the data and the result."""
    dataset = run.dataset
    pair = PairFingerprint(**{"draft": None, **dataset["fingerprint"]})
    return {
        "provenance": Provenance(dataset["target"], draft, pair, SamplingParams(**dataset["sampling"])),
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
        raise InputError(f"{run.folder}: no epoch is finished yet; go on with 'specpilot train … --resume'")
    try:
        return torch.load(run.best, weights_only=True, map_location="cpu")  # type: ignore[no-any-return]
    except (RuntimeError, EOFError, OSError, pickle.UnpicklingError) as error:
        raise InputError(f"{run.best}: truncated or damaged; train again") from error
