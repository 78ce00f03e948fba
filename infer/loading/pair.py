"""A target, its drafts and the length controller, loaded by name and checked against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from transformers import PreTrainedTokenizerBase

from ...common.errors import InputError
from ...controllers.acceptance.copy_predictor import CopyPredictor
from ...controllers.checkpoints.provenance import EXACT
from ...controllers.length import LengthController, OnlineConfidence, RateOptimal, takes_cost
from ...controllers.length.cost_model import CostModel
from ..costs import quick_costs
from ..drafters.ngram import Ngram, split_ngram
from ..models import CausalLM, EncoderDecoder, GgufModel, LanguageModel, LoadedModel, language_model
from ..models.devices import DTYPES
from ..models.quantized_linear import QUANTIZATIONS, Quantization
from .controllers import AUTO, load_copies, load_length
from .gguf_tokenizer import check_gguf_tokenizer, check_gguf_tokens
from .model_files import is_gguf
from .names import check_same_tokenizer, has_own_tokenizer, load_any_model, load_tokenizer

Name: TypeAlias = str | Path
Model: TypeAlias = LoadedModel | LanguageModel


class Pair(NamedTuple):
    """What a decoder is made of."""

    target: LanguageModel
    drafts: list[LanguageModel]
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
    draft_dtype: str | None = None,
    tokenizer: Name | None = None,
    pair_check: str = EXACT,
    copies: Name | CopyPredictor | None = None,
) -> Pair:
    """Load the models named and make the length controller.

    Args:
        length, threshold, cost, adapt: as for ``SpeculativeDecoder.from_pretrained``.
        loading: keywords of :func:`.loading.load_model` for every model.
        placement: more of them, for the target alone.
        draft_dtype: ``dtype`` of the drafts, if it is another one, or ``int8`` or ``int4``.
        tokenizer: whose tokenizer to take instead of the target's.
        pair_check: how alike the pair of a trained controller must be.
        copies: predictor of copied tokens' acceptance.

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
    if copies is not None and ngram is None:
        raise InputError("copies: predicts n-gram drafts; name them, as in draft='ngram' or 'tiny-draft+ngram'")
    if draft_dtype is not None and not names:
        raise InputError(f"draft_dtype={draft_dtype!r}: there is no draft model; name one, or leave it out")
    of_drafts, quantization = draft_precision(draft_dtype, loading)
    model, text = load_target(target, tokenizer, {**loading, **placement})
    loaded = [load_draft(name, model, text, of_drafts) for name in names]
    reader = language_model(model)
    drafts = [language_model(draft, quantization=quantization) for draft in loaded]
    pair = Pair(reader, drafts, text, None, ngram)
    return steered(
        pair, length=length, threshold=threshold, cost=cost, adapt=adapt, pair_check=pair_check, copies=copies
    )


def steered(
    pair: Pair,
    *,
    length: str | Path | int | LengthController | None,
    threshold: float | None = None,
    cost: Name | float | CostModel | None = None,
    adapt: bool = False,
    pair_check: str = EXACT,
    copies: Name | CopyPredictor | None = None,
) -> Pair:
    """Loaded models with a length controller, costs and a predictor of copies; arguments as for :func:`load_pair`.

    Raises:
        InputError: the controller or the copy head is missing or does not belong to this pair.
    """
    target, drafts, text, _, ngram = pair
    if cost == AUTO:
        cost, adapt = quick_costs(target, drafts[0] if drafts else None), True
    costs = cost if cost is None or isinstance(cost, CostModel) else CostModel.load(cost)
    if ngram is not None and costs is not None:
        ngram = replace(ngram, cost=costs, adapt=adapt)
    if ngram is not None and copies is not None:
        known = copies if isinstance(copies, CopyPredictor) else load_copies(copies, target.model, text, pair_check)
        ngram = replace(ngram, predictor=known)
    if length is None or isinstance(length, LengthController):
        return pair._replace(length=length, ngram=ngram)
    if ngram is not None and not takes_cost(str(length)):
        costs = None  # for the n-grams alone
    first = drafts[0].model if drafts else None
    controller = load_length(str(length), target.model, first, text, threshold, costs, pair_check)
    return pair._replace(length=adapting(controller) if adapt else controller, ngram=ngram)


def adapting(controller: LengthController) -> LengthController:
    """``controller`` with costs that follow the rounds' wall times, if it uses costs."""
    if isinstance(controller, RateOptimal):
        return RateOptimal(controller.predictor, controller.cost, adapt=True)
    if isinstance(controller, OnlineConfidence) and controller.cost is not None:
        return OnlineConfidence(cost=controller.cost, adapt=True)
    return controller


def load_target(
    name: Name, tokenizer: Name | None, options: Mapping[str, Any]
) -> tuple[LoadedModel, PreTrainedTokenizerBase]:
    """The target and its tokenizer, or the one that is named for it.

    Args:
        options: keywords of :func:`.loading.load_any_model`.

    Raises:
        InputError: one of them cannot be loaded, or they do not belong together.
    """
    trust = options["trust_remote_code"]
    text = load_tokenizer(
        name if tokenizer is None else tokenizer,
        revision=options["revision"] if tokenizer is None else None, trust_remote_code=trust,
    )  # fmt: skip
    model = load_any_model(name, **options)
    if isinstance(model, GgufModel):
        check_gguf_tokenizer(model, text)
    elif tokenizer is not None:
        check_same_tokenizer(load_tokenizer(name, revision=options["revision"], trust_remote_code=trust), text)
    return model, text


def load_draft(
    name: Name, target: LoadedModel, tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any]
) -> LoadedModel:
    """A draft model for a target and its tokenizer.

    Raises:
        InputError: it cannot be loaded, or has another tokenizer.
    """
    if is_gguf(name):
        model = load_any_model(name, **options)
        assert isinstance(model, GgufModel)
        check_gguf_tokens(model.file, tokenizer)
        return model
    if has_own_tokenizer(name):
        check_same_tokenizer(tokenizer, load_tokenizer(name, trust_remote_code=options["trust_remote_code"]))
    return load_any_model(name, target=target, **options)


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


def wrap_model(model: Model) -> LanguageModel:
    """``model`` behind the model protocol, unless it is already."""
    return model if isinstance(model, LanguageModel) else language_model(model)


def check_pair(target: LanguageModel, draft: LanguageModel) -> None:
    """Refuse two models that cannot work together.

    Raises:
        InputError: one is an encoder-decoder and the other is not, they are on different devices, or the draft reads
            states that the target does not give.
    """
    if isinstance(target, EncoderDecoder) != isinstance(draft, EncoderDecoder):
        raise InputError(
            f"target is a {target.name}, draft a {draft.name}: one of them is an encoder-decoder; take models of one "
            "kind"
        )
    if draft.device != target.device:
        raise InputError(f"target is on {target.device}, draft on {draft.device}; put both on one device")
    if not isinstance(draft, CausalLM) or draft.state_input is None:
        return
    if not isinstance(target, CausalLM) or target.switch is not None:
        raise InputError(f"draft: reads the target's states, which are not supported for {target.name}; take another")
    draft.state_input.check(target)


def with_states(target: LanguageModel, drafts: Sequence[LanguageModel]) -> LanguageModel:
    """``target``, which gives the states that ``drafts`` read.

    Raises:
        InputError: it has no such layers, or the drafts read different ones.
    """
    if not isinstance(target, CausalLM):
        return target
    readers = [draft.state_input for draft in drafts if isinstance(draft, CausalLM) and draft.state_input is not None]
    read = {layers for reader in readers if (layers := reader.target_layers(target))}
    if len(read) > 1:
        raise InputError(f"draft: two of them read different layers of the target ({sorted(read)}); give one of them")
    return target.with_layers(read.pop()) if read else target


def draft_precision(draft_dtype: str | None, loading: Mapping[str, Any]) -> tuple[dict[str, Any], Quantization | None]:
    """How drafts are loaded, and what their weights are rounded to.

    Args:
        draft_dtype: a dtype, ``int8`` or ``int4``; None for the target's dtype.
        loading: keywords of :func:`.loading.load_any_model`.

    Raises:
        InputError: there is no such precision.
    """
    if draft_dtype is None:
        return {**loading}, None
    if draft_dtype in QUANTIZATIONS:
        return {**loading, "dtype": "bfloat16"}, draft_dtype
    if draft_dtype not in DTYPES:
        raise InputError(f"draft_dtype={draft_dtype!r}: choose one of {', '.join([*DTYPES, *QUANTIZATIONS])}")
    return {**loading, "dtype": draft_dtype}, None
