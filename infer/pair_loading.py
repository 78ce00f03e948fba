"""A target, its drafts and the length controller, loaded by name and checked against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..controllers.errors import InputError
from ..controllers.length import LengthController, RateOptimal, takes_cost
from ..controllers.length.cost_model import CostModel
from .drafters import Ngram, split_ngram
from .lengths import AUTO, load_length, quick_costs
from .loading import check_same_tokenizer, load_model, load_tokenizer
from .models import CausalLM, EncoderDecoder, language_model

Name: TypeAlias = str | Path
Model: TypeAlias = PreTrainedModel | CausalLM


class Pair(NamedTuple):
    """What a decoder is made of."""

    target: PreTrainedModel
    drafts: list[PreTrainedModel]
    tokenizer: PreTrainedTokenizerBase
    length: LengthController | None
    ngram: Ngram | None


def load_pair(
    target: Name,
    draft: Name | Sequence[Name] | None,
    *,
    length: object,
    threshold: float | None,
    cost: Name | float | CostModel | None,
    adapt: bool,
    loading: Mapping[str, Any],
    placement: Mapping[str, Any],
) -> Pair:
    """Load the models named and make the length controller.

    Args:
        length, threshold, cost, adapt: as for ``SpeculativeDecoder.from_pretrained``.
        loading: keywords of :func:`.loading.load_model` for every model.
        placement: more of them, for the target alone.

    Raises:
        InputError: a model, tokenizer or controller is missing or does not belong to this pair.
    """
    if length is not None and not isinstance(length, str | Path | int | LengthController):
        raise InputError("length: several are for the arms of a router; give one, or name a router")
    if threshold is not None and (length is None or isinstance(length, LengthController)):
        raise InputError(f"threshold={threshold}: belongs to a trained controller; name one as length")
    names, ngram = split_drafts(draft)
    if cost is not None and ngram is None and (not names or length is None or isinstance(length, LengthController)):
        raise InputError("cost: tells a trained controller when to stop; name one as length, and a draft")
    if adapt and cost is None:
        raise InputError("adapt: corrects what a token costs; give the cost to begin with, or cost='auto'")
    trust = {"trust_remote_code": loading["trust_remote_code"]}
    tokenizer = load_tokenizer(target, revision=placement["revision"], **trust)
    model = load_model(target, **loading, **placement)
    drafts = []
    for name in names:
        check_same_tokenizer(tokenizer, load_tokenizer(name, **trust))
        drafts.append(load_model(name, **loading))
    first = drafts[0] if drafts else None
    if cost == AUTO:
        cost, adapt = quick_costs(model, first), True
    costs = cost if cost is None or isinstance(cost, CostModel) else CostModel.load(cost)
    if ngram is not None and costs is not None:
        ngram = replace(ngram, cost=costs)
    if length is None or isinstance(length, LengthController):
        return Pair(model, drafts, tokenizer, length, ngram)
    if ngram is not None and not takes_cost(str(length)):
        costs = None  # for the n-grams alone
    controller = load_length(str(length), model, first, tokenizer, threshold, costs)
    if adapt and isinstance(controller, RateOptimal):
        controller = RateOptimal(controller.predictor, controller.cost, adapt=True)
    return Pair(model, drafts, tokenizer, controller, ngram)


def split_drafts(draft: Name | Sequence[Name] | None) -> tuple[list[Name], Ngram | None]:
    """The draft models' names, and how n-grams draft if they do.

    Raises:
        InputError: n-grams are one of several drafts.
    """
    if draft is None:
        return [], None
    if isinstance(draft, Name):
        model, ngram = split_ngram(str(draft))
        return ([draft] if ngram is None else [] if model is None else [model]), ngram
    for name in draft:
        if split_ngram(str(name))[1] is not None:
            raise InputError(
                f"draft: {str(name)!r} is one of several; n-grams join one model, as in 'tiny-draft+ngram'"
            )
    return [*draft], None


def wrap_model(model: Model, compile: bool) -> CausalLM:
    """``model`` behind the model protocol, unless it is already."""
    return model if isinstance(model, CausalLM) else language_model(model, compile=compile)


def check_pair(target: CausalLM, draft: CausalLM) -> None:
    """Refuse two models that cannot work together.

    Raises:
        InputError: one is an encoder-decoder and the other is not, or they are on different devices.
    """
    if isinstance(target, EncoderDecoder) != isinstance(draft, EncoderDecoder):
        raise InputError(
            f"target is a {target.name}, draft a {draft.name}: one of them is an encoder-decoder; take models of one "
            "kind"
        )
    if draft.device != target.device:
        raise InputError(f"target is on {target.device}, draft on {draft.device}; put both on one device")
