"""``specpilot calibrate``: fits a calibration of an acceptance head's probabilities."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..common.errors import InputError
from ..controllers.acceptance.acceptance_head import AcceptanceHead, AcceptanceHeadConfig
from ..controllers.acceptance.calibration import Sigmoid
from ..controllers.checkpoints.checkpoint import check_free, load_controller, save_controller
from ..controllers.checkpoints.fingerprint import PairFingerprint
from ..controllers.sampling import SamplingParams
from ..data_gen.kinds import AcceptanceRow
from .calibration import METHODS, apply, evaluate, fit_all, logistic, logistic_probabilities, plot_reliability
from .datasets import joint_manifest
from .figure import check_matplotlib
from .positions import load_draft, load_rows, read_positions, split_rows

FEATURES = "draft probabilities alone"


def calibrate(
    controller: str,
    data: str,
    output: Path,
    *,
    method: str,
    draft: str | None,
    validation_fraction: float,
    device: str,
    plot: Path | None,
    overwrite: bool,
) -> dict[str, Any]:
    """Write the checkpoint ``controller`` with a calibration to ``output``.

    The calibration is fitted to half of the prompts and evaluated on the other half. If ``data`` is the head's training
    data, only the prompts that training held out are used.

    Returns:
        Metrics of the head before calibration and under every method, and of a logistic model of draft probabilities
        alone, fitted to the same half.

    Raises:
        InputError: the data is of another pair, incomplete or too small, ``output`` exists, or matplotlib is missing.
    """
    _check_fraction(validation_fraction)
    if plot is not None:
        check_matplotlib()
    if method not in METHODS:
        raise InputError(f"method={method!r}: choose one of {', '.join(METHODS)}")
    config, head = _acceptance_head(controller)
    check_free(output, overwrite)
    manifest, sampling = joint_manifest([data], AcceptanceRow.kind), config.provenance.sampling
    _check_data(data, manifest, config)
    same_data = manifest["dataset_fingerprint"] in config.datasets
    total = validation_fraction if same_data else 1.0
    reader = load_draft(draft, manifest, device=device)
    size = manifest.get("vocab_size")
    fitted, tested = (
        read_positions(reader, rows, sampling, size) for rows in split_rows(load_rows(data), total / 2, total)
    )

    before, after = (head(part.hidden).double().numpy() for part in (fitted, tested))  # logits (N,)
    calibrations = fit_all(before, fitted.p, w_acc=config.w_acc, w_rej=config.w_rej)
    predicted = {"none": apply(Sigmoid(), after)}
    predicted |= {name: apply(calibration, after) for name, calibration in calibrations.items()}
    coefficients, bias = logistic(fitted.features, fitted.p)
    predicted[FEATURES] = logistic_probabilities(tested.features, coefficients, bias)
    metrics = {name: evaluate(values, tested.p, tested.place) for name, values in predicted.items()}
    measured = {f"calibrated_{name}": value for name, value in _numbers(metrics[method]).items()}
    new = replace(
        config,
        calibration={**calibrations[method].as_dict(), "dataset_fingerprint": manifest["dataset_fingerprint"]},
        metrics={**config.metrics, **measured, "mean_acceptance": float(fitted.p.mean())},
    )
    save_controller(output, head, new, overwrite=overwrite)
    if plot is not None:
        shown = dict.fromkeys(("none", "weights", method, FEATURES))
        plot_reliability({name: (predicted[name], tested.p) for name in shown}, plot)
    return {"method": method, "fitted": len(fitted.p), "judged": len(tested.p), "metrics": metrics}


def _acceptance_head(controller: str) -> tuple[AcceptanceHeadConfig, AcceptanceHead]:
    trained = load_controller(controller)
    if not isinstance(trained.config, AcceptanceHeadConfig) or not isinstance(trained.head, AcceptanceHead):
        raise InputError(
            f"controller={controller!r}: is a {trained.config.kind}, which needs no calibration; give an acceptance "
            "head"
        )
    return trained.config, trained.head


def _check_data(data: str, manifest: dict[str, Any], config: AcceptanceHeadConfig) -> None:
    config.provenance.check_pair(PairFingerprint(**manifest["fingerprint"]))
    made, trained = SamplingParams(**manifest["sampling"]), config.provenance.sampling
    if made != trained:
        raise InputError(f"{data}: made with {made}, but the head was trained with {trained}")


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """The metrics stored in a checkpoint; AUROC is left out if it is undefined."""
    return {name: metrics[name] for name in ("auroc", "brier", "kl", "ece") if math.isfinite(metrics[name])}


def _check_fraction(fraction: float) -> None:
    if not 0 < fraction < 1:
        raise InputError(f"validation_fraction={fraction}: must be between 0 and 1")
