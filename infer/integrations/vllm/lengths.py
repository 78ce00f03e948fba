"""The length controller of a vLLM engine, loaded by name and checked against its models."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ....controllers.acceptance.lag_free_predictor import LagFreePredictor
from ....controllers.checkpoints.fingerprint import PairFingerprint, model_fingerprint, tokenizer_fingerprint
from ....controllers.length import LengthController, OnlineConfidence, RateOptimal, load_trained, parse_rule, trained
from ...loading.names import load_causal_lm, load_tokenizer
from ...models import output_embedding
from .settings import Settings


def load_length(settings: Settings, target: str | Path, draft: str | Path, device: torch.device) -> LengthController:
    """The controller named by ``settings``.

    Args:
        target, draft: names or folders of the models.
        device: where the draft model is.

    Raises:
        InputError: there is no such controller, or it was trained for another pair.
    """
    cost, batch = settings.costs()
    rule = parse_rule(settings.spec, cost)
    if isinstance(rule, OnlineConfidence) and cost is not None:
        return OnlineConfidence(cost=cost, batch=batch)
    if rule is not None:
        return rule
    # Read once more: vLLM may keep its own copy of the embedding in another layout.
    embedding = output_embedding(load_causal_lm(draft, device=str(device)))
    length = load_trained(
        settings.spec,
        pair_fingerprint(target, draft),
        device,
        embedding,
        threshold=settings.threshold,
        cost=cost,
        pair_check=settings.pair_check,
    )
    if isinstance(length, RateOptimal) and batch is not None:
        return RateOptimal(length.predictor, length.cost, batch=batch)
    return length


def load_predictor(settings: Settings, target: str | Path, draft: str | Path, device: torch.device) -> LagFreePredictor:
    """The lag-free head named by ``settings``, for model runner V2; arguments as above.

    Raises:
        InputError: there is no such controller, it was trained for another pair, or is of another kind.
    """
    embedding = output_embedding(load_causal_lm(draft, device=str(device)))
    _, predictor = trained.load_predictor(
        settings.spec, pair_fingerprint(target, draft), device, embedding, undone=True, pair_check=settings.pair_check
    )
    assert isinstance(predictor, LagFreePredictor), "the settings were checked before"
    return predictor


def pair_fingerprint(target: str | Path, draft: str | Path) -> PairFingerprint:
    """The fingerprint of two models in transformers' format, from their files: the weights are not loaded.

    vLLM's own modules have other weights, such as one for queries, keys and values.
    """
    models = []
    for name in (target, draft):
        config = AutoConfig.from_pretrained(name)
        with torch.device("meta"):
            models.append(model_fingerprint(AutoModelForCausalLM.from_config(config)))
    return PairFingerprint(models[0], models[1], tokenizer_fingerprint(load_tokenizer(target)))
