"""Loads trained length controllers from disk or the hub."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ...common.errors import InputError
from ..acceptance.acceptance_head import AcceptanceHead
from ..acceptance.calibration import parse_calibration, undo_weights
from ..acceptance.feature_model import FeatureModel
from ..acceptance.feature_predictor import FeaturePredictor
from ..acceptance.head_predictor import HeadPredictor
from ..acceptance.lag_free_head import LagFreeHead
from ..acceptance.lag_free_predictor import LagFreePredictor
from ..acceptance.predictor import AcceptancePredictor
from ..checkpoints.acceptance_head import AcceptanceHeadConfig
from ..checkpoints.checkpoint import Controller, load_controller
from ..checkpoints.config import ControllerConfig
from ..checkpoints.copy_head import CopyHeadConfig
from ..checkpoints.feature_model import FeatureModelConfig
from ..checkpoints.fingerprint import PairFingerprint
from ..checkpoints.lag_free_head import LagFreeHeadConfig
from ..checkpoints.provenance import EXACT
from .acceptance import AcceptanceLength
from .base import LengthController
from .cost_model import CostModel
from .rate_optimal import RateOptimal

UNKNOWN_MEAN = 0.5  # mean acceptance for checkpoints that do not record it


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
    """Load the controller ``name`` and check that it was trained for this pair.

    Args:
        name: see :func:`~..checkpoints.checkpoint.load_controller`.
        device: device of the head.
        embedding: (V, d) the draft's output embedding.
        threshold: stop if ``1 - Π â > threshold``, instead of by the checkpoint's threshold.
        cost: stop by this cost model, instead of by a threshold.
        pair_check: see :meth:`~..checkpoints.provenance.Provenance.check_pair`.

    Raises:
        InputError: it cannot be loaded, was trained for another pair, or there are both or none of threshold and cost.
    """
    controller, predictor = load_predictor(
        name, fingerprint, device, embedding, undone=cost is not None, pair_check=pair_check
    )
    threshold = stopping_threshold(name, controller, threshold, cost)
    if cost is not None:
        return RateOptimal(predictor, cost)
    assert threshold is not None
    return AcceptanceLength(predictor, threshold)


def load_predictor(
    name: str | Path,
    fingerprint: PairFingerprint,
    device: torch.device,
    embedding: Tensor,
    *,
    undone: bool,
    pair_check: str = EXACT,
) -> tuple[Controller, AcceptancePredictor]:
    """Load the controller ``name``, check that it was trained for this pair, and return its predictor as well.

    Args:
        undone: see :func:`acceptance_predictor`; the others as for :func:`load_trained`.

    Raises:
        InputError: it cannot be loaded, was trained for another pair, or predicts no acceptance.
    """
    controller = load_controller(name)
    if controller.config.given_as != "length":  # before the pair, of which it may have no draft
        raise InputError(f"length={str(name)!r}: {_predicts_none(controller.config)}")
    controller.config.provenance.check_pair(fingerprint, pair_check)
    match controller.config:
        case AcceptanceHeadConfig(hidden_size=size) | LagFreeHeadConfig(hidden_size=size) if size != embedding.shape[1]:
            raise InputError(
                f"length={str(name)!r}: reads a draft's states of size {size}, where this draft's are of "
                f"{embedding.shape[1]}; train a controller for this pair"
            )
    try:
        return controller, acceptance_predictor(controller, device, embedding, undone=undone)
    except InputError as error:
        raise InputError(f"length={str(name)!r}: {error}") from error


def stopping_threshold(
    name: str | Path, controller: Controller, threshold: float | None, cost: CostModel | None
) -> float | None:
    """The threshold that ``controller`` stops by: the given one or its own; None if it stops by ``cost``.

    Raises:
        InputError: there are both or none of threshold and cost.
    """
    if cost is not None:
        if threshold is not None:
            raise InputError(
                f"threshold={threshold}: stopping by cost has no threshold; give one of threshold and cost"
            )
        return None
    if threshold is None and isinstance(controller.config, AcceptanceHeadConfig):
        threshold = controller.config.threshold
    if threshold is None:
        raise InputError(
            f"length={str(name)!r}: has no threshold of its own; give a cost model (--cost FILE, written by "
            "'specpilot bench cost --output FILE') or a threshold"
        )
    return threshold


def acceptance_predictor(
    controller: Controller, device: torch.device, embedding: Tensor, *, undone: bool
) -> AcceptancePredictor:
    """The acceptance predictor of a loaded controller.

    Args:
        device: device of the head.
        embedding: (V, d) the draft's output embedding.
        undone: apply the calibration of an acceptance head's checkpoint, or else undo the loss weights. If False, the
            head's raw probabilities are used, for which SpecDec++'s threshold is chosen.

    Raises:
        InputError: the controller is a router or a copy head.
    """
    samplings = controller.config.provenance.samplings
    match controller:
        case Controller(AcceptanceHeadConfig() as config, AcceptanceHead() as head):
            calibration = None
            if undone:
                known = config.calibration
                calibration = undo_weights(config.w_acc, config.w_rej) if known is None else parse_calibration(known)
            mean = config.metrics.get("mean_acceptance", UNKNOWN_MEAN)
            return HeadPredictor(head.to(device), calibration, mean, samplings)
        case Controller(LagFreeHeadConfig() as config, LagFreeHead() as head):
            return LagFreePredictor(
                head.to(embedding.device), embedding, mean=config.mean,
                uses_ngrams=config.uses_ngrams, samplings=samplings,
            )  # fmt: skip
        case Controller(FeatureModelConfig() as config, FeatureModel() as model):
            return FeaturePredictor(model, config.mean, samplings)
        case _:
            raise InputError(_predicts_none(controller.config))


def _predicts_none(config: ControllerConfig) -> str:
    """Why a controller is no acceptance predictor."""
    if isinstance(config, CopyHeadConfig):
        return "is a copy head, which predicts the acceptance of copied tokens; give it as copies"
    return f"is of kind {config.kind!r}, which predicts no acceptance; give it as {config.given_as}"
