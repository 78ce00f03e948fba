"""Loads trained length controllers from disk or the hub."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ...common.errors import InputError, naming
from ..acceptance.predictor import TrainedPredictor
from ..checkpoints.checkpoint import Controller, load_controller, locate
from ..checkpoints.fingerprint import PairFingerprint
from ..checkpoints.provenance import EXACT
from .acceptance_length import AcceptanceLength
from .base import LengthController
from .cost_model import CostModel
from .rate_optimal import RateOptimal


def load_trained(
    name: str | Path,
    fingerprint: PairFingerprint,
    device: torch.device,
    embedding: Tensor,
    *,
    threshold: float | None = None,
    cost: CostModel | None = None,
    pair_check: str = EXACT,
) -> LengthController:
    """Load the controller ``name``, and check that it was trained for this pair.

    Args:
        name: as for :func:`~..checkpoints.checkpoint.load_controller`.
        fingerprint: fingerprints of the decoder's models.
        device: device of the head.
        embedding: (V, d) the draft's output embedding.
        threshold: stop if ``1 - Π â > threshold``. Default: the checkpoint's threshold.
        cost: stop by this cost model, instead of a threshold.
        pair_check: as for :meth:`~..checkpoints.provenance.Provenance.check_pair`.

    Raises:
        InputError: the controller cannot be loaded, was trained for another pair, or there are both or none of
            threshold and cost.
    """
    with naming("length", name):
        controller = load_controller(locate(name, option="length"))
    config = controller.config
    try:
        length = config.length_controller(controller.head, cost)
    except InputError as error:
        raise InputError(f"length={str(name)!r}: {error}") from error
    if length is not None:
        config.provenance.check_pair(fingerprint, pair_check)
        if threshold is not None:
            raise InputError(f"threshold={threshold}: {config.kind} has no threshold; leave it out")
        return length
    predictor = make_predictor(
        name, controller, fingerprint, device, embedding, calibrated=cost is not None, pair_check=pair_check
    )
    threshold = stopping_threshold(name, controller, threshold, cost)
    if cost is not None:
        return RateOptimal(predictor, cost)
    assert threshold is not None
    return AcceptanceLength(predictor, threshold)


def make_predictor(
    name: str | Path,
    controller: Controller,
    fingerprint: PairFingerprint,
    device: torch.device,
    embedding: Tensor,
    *,
    calibrated: bool,
    pair_check: str = EXACT,
) -> TrainedPredictor:
    """Return the predictor of ``controller``, and check that it was trained for this pair.

    Args:
        name: the controller's name, for messages.
        controller: the loaded controller.
        calibrated: as for :meth:`.ControllerConfig.predictor`.
        fingerprint, device, embedding, pair_check: as for :func:`load_trained`.

    Raises:
        InputError: the controller was trained for another pair, or predicts no acceptance.
    """
    config = controller.config
    if config.option == "length":  # controllers for other options may have no draft
        config.provenance.check_pair(fingerprint, pair_check)
    try:
        predictor = config.predictor(controller.head, embedding, device, calibrated=calibrated)
    except InputError as error:
        raise InputError(f"length={str(name)!r}: {error}") from error
    predictor.verifier = config.provenance.verifier
    if config.calibration is not None:
        predictor.draft_exponent = config.calibration.draft_exponent
    return predictor


def stopping_threshold(
    name: str | Path, controller: Controller, threshold: float | None, cost: CostModel | None
) -> float | None:
    """Return the threshold of ``controller``: ``threshold``, or the checkpoint's; None if it stops by ``cost``.

    Raises:
        InputError: there are both or none of threshold and cost.
    """
    if cost is not None:
        if threshold is not None:
            raise InputError(
                f"threshold={threshold}: stopping by cost has no threshold; give one of threshold and cost"
            )
        return None
    threshold = controller.config.default_threshold if threshold is None else threshold
    if threshold is None:
        raise InputError(
            f"length={str(name)!r}: has no threshold of its own; give a threshold or costs: --cost auto, or --cost "
            "FILE, written by 'specpilot bench cost --output FILE'"
        )
    return threshold
