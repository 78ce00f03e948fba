"""``specpilot export``: the best checkpoint of a run becomes a controller that the decoder loads."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import torch

from ..controllers.acceptance.acceptance_head import AcceptanceHead
from ..controllers.arms import Arm
from ..controllers.checkpoints.acceptance_head import ControllerConfig, save_controller
from ..controllers.checkpoints.fingerprint import PairFingerprint
from ..controllers.errors import InputError
from ..controllers.router import RouterConfig, RouterPolicy, save_router
from ..controllers.sampling import SamplingParams
from ..options import AcceptanceTrainingOptions, RouterTrainingOptions
from .run_folder import Run, S, read_run, run_kind

PAPER_THRESHOLD = 0.7


def export(run: Path, output: Path, *, threshold: float | None = None, overwrite: bool = False) -> Path:
    """Write the best head, or policy, of a training run as a controller checkpoint.

    Args:
        run: folder that ``specpilot train`` wrote; an unfinished run gives its best epoch so far.
        output: checkpoint folder to make.
        threshold: stop drafting when the chance of a rejection exceeds it; by default the paper's 0.7.
        overwrite: replace a checkpoint that is there already.

    Raises:
        InputError: ``run`` is no run or has no finished epoch, ``output`` is taken, or the threshold is not in [0, 1].
    """
    if run_kind(run) == "router":
        return _export_router(run, output, threshold, overwrite)
    opened = read_run(run, AcceptanceTrainingOptions)
    head, metrics = best_head(opened)
    settings, dataset = opened.settings, opened.dataset
    assert settings.mixing is not None, "a run's settings are complete"
    config = ControllerConfig(
        hidden_size=head.hidden_size,
        depth=head.depth,
        target=dataset["target"],
        draft=dataset["draft"],
        fingerprint=PairFingerprint(**dataset["fingerprint"]),
        sampling=SamplingParams(**dataset["sampling"]),
        w_acc=settings.w_acc,
        w_rej=settings.w_rej,
        mixing=settings.mixing,
        threshold=PAPER_THRESHOLD if threshold is None else threshold,
        threshold_source="paper default" if threshold is None else "given at export",
        dataset_fingerprint=dataset["dataset_fingerprint"],
        metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
    )
    return save_controller(output, head, config, overwrite=overwrite)


def _export_router(run: Path, output: Path, threshold: float | None, overwrite: bool) -> Path:
    if threshold is not None:
        raise InputError(f"threshold={threshold}: a router has none; leave it out")
    opened = read_run(run, RouterTrainingOptions)
    best = _read_best(opened)
    settings, dataset = opened.settings, opened.dataset
    arms = tuple(Arm(**arm) for arm in dataset["arms"])
    policy = RouterPolicy(dataset["hidden_size"], len(arms), settings.width)
    policy.load_state_dict(best["head"])
    policy.absorb(torch.tensor(best["scale"]))
    config = RouterConfig(
        hidden_size=policy.hidden_size,
        width=policy.width,
        arms=arms,
        target=dataset["target"],
        target_fingerprint=dataset["fingerprint"]["target"],
        tokenizer_fingerprint=dataset["fingerprint"]["tokenizer"],
        sampling=SamplingParams(**dataset["sampling"]),
        reward=settings.reward,
        alpha=settings.alpha,
        cost=settings.cost,
        dataset_fingerprint=dataset["dataset_fingerprint"],
        metrics={name: value for name, value in best["metrics"].items() if math.isfinite(value)},
    )
    return save_router(output, policy, config, overwrite=overwrite)


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
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise InputError(f"{run.best}: truncated or damaged; train again") from error
