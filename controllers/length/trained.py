"""Length controllers from trained ones on disk or on the hub."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ..calibration import parse_calibration, undo_weights
from ..checkpoint import Controller, load_controller, read_config
from ..cost_model import CostModel
from ..errors import InputError
from ..feature_model import FeatureModel
from ..fingerprint import PairFingerprint
from ..lag_free_checkpoint import is_lag_free, load_lag_free
from .acceptance import AcceptanceLength
from .base import LengthController
from .feature_source import FeatureSource
from .head_source import HeadSource
from .lag_free_source import LagFreeSource
from .rate_optimal import RateOptimal

NO_THRESHOLD = (
    "has no threshold of its own; give the costs to stop by (--cost FILE, written by 'specpilot bench cost --output "
    "FILE') or a threshold"
)
UNKNOWN_MEAN = 0.5  # of a checkpoint that does not say how often its draft is accepted; the text soon will


def load_trained(
    name: str | Path,
    fingerprint: PairFingerprint,
    device: torch.device,
    embedding: Tensor,
    *,
    threshold: float | None = None,
    cost: CostModel | None = None,
) -> LengthController:
    """The controller ``name``: a folder, file or hub id, checked against the pair it is used on.

    Args:
        embedding: (V, d) the draft's output embedding.
        threshold: stop by ``1 - Π â > threshold``, instead of the checkpoint's own threshold.
        cost: stop by what tokens cost and yield, instead of by a threshold.

    Raises:
        InputError: it cannot be loaded, was trained for another pair, or both or none of the two rules is left.
    """
    if threshold is not None and cost is not None:
        raise InputError(f"threshold={threshold}: stopping by cost has no threshold; give one of threshold and cost")
    if Path(name).expanduser().is_file():
        model = FeatureModel.load(Path(name).expanduser())
        model.origin.check_pair(fingerprint)
        if cost is not None:
            return RateOptimal(FeatureSource(model), cost)
        if threshold is None:
            raise InputError(f"length={str(name)!r}: {NO_THRESHOLD}")
        return AcceptanceLength(FeatureSource(model), threshold)
    if is_lag_free(read_config(name)[1]):
        source = lag_free_source(name, fingerprint, embedding)
        if cost is not None:
            return RateOptimal(source, cost)
        if threshold is None:
            raise InputError(f"length={str(name)!r}: {NO_THRESHOLD}")
        return AcceptanceLength(source, threshold)
    controller = load_controller(name)
    controller.origin.check_pair(fingerprint)
    if cost is not None:
        return RateOptimal(head_source(controller, device, undone=True), cost)
    return AcceptanceLength(
        head_source(controller, device, undone=False),
        controller.config.threshold if threshold is None else threshold,
    )


def lag_free_source(name: str | Path, fingerprint: PairFingerprint, embedding: Tensor) -> LagFreeSource:
    """The lag-free head ``name``, beside the ``embedding`` (V, d) of the draft it is used with.

    Raises:
        InputError: it cannot be loaded, or was trained for another pair.
    """
    head, config = load_lag_free(name)
    config.origin.check_pair(fingerprint)
    return LagFreeSource(
        head.to(embedding.device), embedding,
        mean=config.mean, foresees=config.foresees, looks_up=config.looks_up, origin=config.origin,
    )  # fmt: skip


def head_source(controller: Controller, device: torch.device, *, undone: bool) -> HeadSource:
    """A checkpoint's head, if ``undone`` calibrated as the checkpoint says, or else by undoing the loss weights.

    If not ``undone`` the head's own probabilities are taken, calibrated or not: SpecDec++'s threshold, and so a
    checkpoint's, was chosen on them.
    """
    config = controller.config
    calibration = None
    if undone and config.calibration is not None:
        calibration = parse_calibration(config.calibration)
    elif undone:
        calibration = undo_weights(config.w_acc, config.w_rej)
    mean = config.metrics.get("mean_acceptance", UNKNOWN_MEAN)
    return HeadSource(controller.head.to(device), calibration, mean, controller.origin)
