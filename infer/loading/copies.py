"""Loads predictors of copied tokens' acceptance by name, for a loaded target."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from ...common.errors import InputError
from ...controllers.acceptance.copy_head import CopyHead
from ...controllers.acceptance.copy_predictor import CopyPredictor
from ...controllers.checkpoints.checkpoint import Controller, load_controller
from ...controllers.checkpoints.copy_head import CopyHeadConfig
from ...controllers.checkpoints.fingerprint import PairFingerprint, model_fingerprint, tokenizer_fingerprint
from ...controllers.checkpoints.provenance import EXACT
from ..models import LoadedModel, output_embedding


def load_copies(
    name: str | Path, target: LoadedModel, tokenizer: PreTrainedTokenizerBase | None, pair_check: str = EXACT
) -> CopyPredictor:
    """The copy head ``name`` (a shipped one, a folder, or an id on the hub), with the target's embedding.

    Args:
        pair_check: see :meth:`~specpilot.controllers.checkpoints.provenance.Provenance.check_pair`.

    Raises:
        InputError: there is no tokenizer; it cannot be loaded, is another kind of controller, or was trained for
            another target.
    """
    if tokenizer is None:
        raise InputError(f"copies={str(name)!r}: a trained controller is checked against the tokenizer; pass one")
    controller = load_controller(name)
    match controller:
        case Controller(CopyHeadConfig() as config, CopyHead() as head):
            target_only = PairFingerprint(model_fingerprint(target), None, tokenizer_fingerprint(tokenizer))
            config.provenance.check_pair(target_only, pair_check)
        case _:
            raise InputError(
                f"copies={str(name)!r}: is of kind {controller.config.kind!r}; give a copy head, made by 'specpilot "
                "train copies'"
            )
    try:
        return CopyPredictor(head, output_embedding(target))
    except InputError as error:
        raise InputError(f"copies={str(name)!r}: {error}") from error
