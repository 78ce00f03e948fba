"""Length controllers from trained ones on disk or on the hub."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ..acceptance.calibration import parse_calibration, undo_weights
from ..acceptance.feature_model import FeatureModel
from ..acceptance.feature_predictor import FeaturePredictor
from ..acceptance.head_predictor import HeadPredictor
from ..acceptance.lag_free_predictor import LagFreePredictor
from ..checkpoints.acceptance_head import Controller, load_controller, read_config
from ..checkpoints.fingerprint import PairFingerprint
from ..checkpoints.lag_free_head import is_lag_free, load_lag_free
from ..errors import InputError
from .acceptance import AcceptanceLength
from .base import LengthController
from .cost_model import CostModel
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
        model.provenance.check_pair(fingerprint)
        if cost is not None:
            return RateOptimal(FeaturePredictor(model), cost)
        if threshold is None:
            raise InputError(f"length={str(name)!r}: {NO_THRESHOLD}")
        return AcceptanceLength(FeaturePredictor(model), threshold)
    if is_lag_free(read_config(name)[1]):
        source = lag_free_predictor(name, fingerprint, embedding)
        if cost is not None:
            return RateOptimal(source, cost)
        if threshold is None:
            raise InputError(f"length={str(name)!r}: {NO_THRESHOLD}")
        return AcceptanceLength(source, threshold)
    controller = load_controller(name)
    controller.provenance.check_pair(fingerprint)
    if cost is not None:
        return RateOptimal(head_predictor(controller, device, undone=True), cost)
    return AcceptanceLength(
        head_predictor(controller, device, undone=False),
        controller.config.threshold if threshold is None else threshold,
    )


def lag_free_predictor(name: str | Path, fingerprint: PairFingerprint, embedding: Tensor) -> LagFreePredictor:
    """The lag-free head ``name``, beside the ``embedding`` (V, d) of the draft it is used with.

    Raises:
        InputError: it cannot be loaded, or was trained for another pair.
    """
    head, config = load_lag_free(name)
    config.provenance.check_pair(fingerprint)
    return LagFreePredictor(
        head.to(embedding.device), embedding,
        mean=config.mean, predicts_next=config.predicts_next, uses_ngrams=config.uses_ngrams,
        provenance=config.provenance,
    )  # fmt: skip


def head_predictor(controller: Controller, device: torch.device, *, undone: bool) -> HeadPredictor:
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
    return HeadPredictor(controller.head.to(device), calibration, mean, controller.provenance)
