"""Loads controllers by name for loaded models: length controllers, copy heads, routers."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from ...common.errors import InputError, naming
from ...controllers.acceptance import copy_head
from ...controllers.acceptance.copy_head import CopyHead, CopyPredictor
from ...controllers.checkpoints.checkpoint import Controller, controller_digest, load_controller, locate
from ...controllers.checkpoints.fingerprint import PairFingerprint, model_fingerprint, tokenizer_fingerprint
from ...controllers.checkpoints.provenance import EXACT
from ...controllers.length import LengthController, load_rule, load_trained, names_class, names_rule
from ...controllers.length.cost_model import CostModel
from ...controllers.length.user_rule import user_class_digest
from ...controllers.router import RouterPolicy, policy
from ...models import GgufModel, LoadedModel, output_embedding
from ...models.base import input_device


def load_length(
    spec: str,
    target: LoadedModel,
    draft: LoadedModel | None,
    tokenizer: PreTrainedTokenizerBase | None,
    threshold: float | None = None,
    cost: CostModel | None = None,
    pair_check: str = EXACT,
) -> LengthController:
    """Load the length controller named ``spec``: a rule, or a trained controller (included, local or on the hub).

    Args:
        spec: the name.
        target, draft, tokenizer: the decoder's models and tokenizer.
        threshold, cost, pair_check: settings of a trained controller, as for :func:`.load_trained`.

    Raises:
        InputError: there is no such rule or controller; or for a trained controller: there is no draft or tokenizer, it
            was trained for another pair, or its settings do not fit.
    """
    rule = load_rule(spec, cost)
    if rule is not None:
        return rule
    if draft is None:
        raise InputError(f"length={spec!r}: a trained controller needs a draft model; name one")
    if tokenizer is None:
        raise InputError(f"length={spec!r}: a trained controller is checked against the tokenizer; pass one")
    return load_trained(
        spec,
        PairFingerprint.of(target, draft, tokenizer),
        target.device if isinstance(target, GgufModel) else input_device(target),
        output_embedding(draft),
        threshold=threshold,
        cost=cost,
        pair_check=pair_check,
    )


def length_digest(length: str | int | None) -> str | None:
    """Return the digest of the trained controller or the user's class named ``length``; None for other rules."""
    if length is None:
        return None
    if names_class(str(length)):
        return user_class_digest(str(length))
    return None if names_rule(str(length)) else controller_digest(str(length))


def length_digests(length: str | int | tuple[str | int, ...] | None) -> list[str]:
    """Return the digests of the trained controllers and users' classes in the option ``length``.

    The option names one length, or one for each arm of a router. Other rules have no digest and are left out.
    """
    digests = map(length_digest, length if isinstance(length, tuple) else (length,))
    return [digest for digest in digests if digest is not None]


def load_copies(
    name: str | Path, target: LoadedModel, tokenizer: PreTrainedTokenizerBase | None, pair_check: str = EXACT
) -> CopyPredictor:
    """Load the copy head ``name``: an included one, a folder, or an id on the hub.

    Args:
        name: the name.
        target: the target, whose embedding the head reads.
        tokenizer: the target's tokenizer.
        pair_check: as for :meth:`~specpilot.controllers.checkpoints.provenance.Provenance.check_pair`.

    Raises:
        InputError: there is no tokenizer; or the head cannot be loaded, is a controller of another kind, or was trained
            for another target.
    """
    if tokenizer is None:
        raise InputError(f"copies={str(name)!r}: a trained controller is checked against the tokenizer; pass one")
    with naming("copies", name):
        controller = load_controller(locate(name, option="copies"))
    match controller:
        case Controller(copy_head.Config() as config, CopyHead() as head):
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


def load_policy(name: str | Path) -> tuple[RouterPolicy, policy.Config]:
    """Load the network and the configuration of the trained router ``name``.

    Raises:
        InputError: the router cannot be loaded, or is a controller of another kind.
    """
    with naming("router", name):
        controller = load_controller(locate(name, option="router"))
    network, config = controller.head, controller.config
    if not isinstance(network, RouterPolicy) or not isinstance(config, policy.Config):
        kind, option = config.kind, config.option
        raise InputError(f"router={str(name)!r}: is of kind {kind!r}, which chooses no arm; give it as {option}")
    return network, config
