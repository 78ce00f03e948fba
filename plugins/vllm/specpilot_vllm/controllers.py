"""Trained controllers in vLLM, loaded by name and checked against vLLM's models."""

from __future__ import annotations

from pathlib import Path

import torch
from specpilot.common.errors import InputError
from specpilot.controllers.checkpoints.fingerprint import PairFingerprint, model_fingerprint, tokenizer_fingerprint
from specpilot.controllers.length import LengthController, load_rule, load_trained
from specpilot.models import output_embedding
from specpilot.models.loading.names import load_model, load_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

from .settings import Settings


def load_length(settings: Settings, target: str | Path, draft: str | Path, device: torch.device) -> LengthController:
    """Return the length controller that ``settings`` name.

    Args:
        settings: the plugin's settings.
        target, draft: names or folders of the models.
        device: device of the draft model.

    Raises:
        InputError: there is no such controller, or it was trained for another pair.
    """
    cost, batch = settings.costs()
    rule = load_rule(settings.spec, cost)
    if rule is not None:
        return rule.with_costs(batch=batch)
    # The embedding is loaded again, because vLLM's copy may have another layout.
    embedding = output_embedding(load_model(draft, device=str(device)))
    controller = load_trained(
        settings.spec,
        pair_fingerprint(target, draft),
        device,
        embedding,
        threshold=settings.threshold,
        cost=cost,
        pair_check=settings.pair_check,
    )
    if controller.reads_target:
        raise InputError(
            f"length={settings.spec!r}: reads the target's states, which vLLM does not provide; choose another "
            "controller"
        )
    return controller.with_costs(batch=batch)


def pair_fingerprint(target: str | Path, draft: str | Path) -> PairFingerprint:
    """Return the fingerprint of two models in transformers' format, without loading their weights.

    vLLM's modules have other weights, such as a single one for queries, keys and values.
    """
    models = []
    for name in (target, draft):
        config = AutoConfig.from_pretrained(name)
        with torch.device("meta"):
            models.append(model_fingerprint(AutoModelForCausalLM.from_config(config)))
    return PairFingerprint(models[0], models[1], tokenizer_fingerprint(load_tokenizer(target)))
