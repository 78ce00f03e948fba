"""A target, its drafts and the length controller, loaded by name and checked against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from transformers import PreTrainedTokenizerBase

from ...common.console import logger
from ...common.errors import InputError
from ...controllers.acceptance.copy_head import CopyPredictor
from ...controllers.length import LengthController, takes_cost
from ...controllers.length.cost_source import MeasuredCosts, cost_source
from ...models import CausalLM, EncoderDecoder, GgufModel, LanguageModel, LoadedModel, language_model
from ...models.given import unwrapped
from ...models.linear import QUANTIZATIONS, Quantization
from ...models.loading.gguf_tokenizer import check_gguf_tokenizer, check_gguf_tokens
from ...models.loading.model_files import is_gguf
from ...models.loading.names import check_same_tokenizer, has_own_tokenizer, load_any_model, load_tokenizer
from ..costs import fastest_step, pair_costs
from ..drafters.ngram import Ngram, split_drafts
from ..options import AUTO, DecodingOptions
from .controllers import load_copies, load_length
from .named_pair import TARGET

Name: TypeAlias = str | Path
Model: TypeAlias = LoadedModel | LanguageModel


class Pair(NamedTuple):
    """What a decoder is made of."""

    target: LanguageModel
    drafts: list[LanguageModel]
    tokenizer: PreTrainedTokenizerBase
    length: LengthController | None
    ngram: Ngram | None


def load_pair(options: DecodingOptions) -> Pair:
    """Load the models named and make the length controller.

    Raises:
        InputError: a model, tokenizer or controller is missing or does not belong to this pair.
    """
    names, ngram = split_drafts(options.drafts)
    model, text = load_target(options)
    target = language_model(model, graphs=options.graphs)
    drafts = [wrapped_draft(name, target, text, options) for name in names]
    return steered(Pair(target, drafts, text, None, ngram), options)


def steered(pair: Pair, options: DecodingOptions) -> Pair:
    """Loaded models with the length controller, costs and predictor of copies that ``options`` name.

    Raises:
        InputError: the controller or the copy head is missing or does not belong to this pair.
    """
    length: Any = options.length  # these three are names, or objects from Python
    cost: Any = options.cost
    copies: Any = options.copies
    target, drafts, text, _, ngram = pair
    source = cost_source(cost, adapt=options.adapt)
    logger.debug("costs: %s", source.describe())
    costs = pair_costs(target, drafts[0] if drafts else None) if isinstance(source, MeasuredCosts) else source.cost
    adapt = source.adapt
    if ngram is not None and costs is not None:
        ngram = replace(ngram, cost=costs, adapt=adapt)
    if ngram is not None and copies is not None:
        if not isinstance(copies, CopyPredictor):
            copies = load_copies(copies, target.model, text, options.pair_check)
        ngram = replace(ngram, predictor=copies)
    if length is None or isinstance(length, LengthController):
        return pair._replace(length=length, ngram=ngram)
    if ngram is not None and not takes_cost(str(length)):
        costs = None  # for the n-grams alone
    first = drafts[0].model if drafts else None
    controller = load_length(str(length), target.model, first, text, options.threshold, costs, options.pair_check)
    return pair._replace(length=controller.repriced(adapt=True) if adapt else controller, ngram=ngram)


def load_target(options: DecodingOptions) -> tuple[LoadedModel, PreTrainedTokenizerBase]:
    """The target and its tokenizer, or the one that is named for it.

    Raises:
        InputError: one of them cannot be loaded, or they do not belong together.
    """
    name, tokenizer, trust = options.target, options.tokenizer, options.trust_remote_code
    name = TARGET if name == AUTO else name  # no controller that names a pair
    own: dict[str, Any] = {"revision": options.revision, "trust_remote_code": trust}
    text = load_tokenizer(name, **own) if tokenizer is None else load_tokenizer(tokenizer, trust_remote_code=trust)
    model = load_any_model(name, **options.loading, **options.placement, revision=options.revision)
    if isinstance(model, GgufModel):
        check_gguf_tokenizer(model, text)
    elif tokenizer is not None:
        check_same_tokenizer(load_tokenizer(name, **own), text, "tokenizer")
    return model, text


def draft_precision(options: DecodingOptions) -> tuple[dict[str, Any], Quantization | None]:
    """Keywords of ``load_any_model`` for drafts, and what their weights are rounded to."""
    draft_dtype = options.draft_dtype
    if draft_dtype in QUANTIZATIONS:
        return options.loading | {"dtype": "bfloat16"}, draft_dtype
    return options.loading if draft_dtype is None else options.loading | {"dtype": draft_dtype}, None


def wrapped_draft(
    name: Name, target: LanguageModel, tokenizer: PreTrainedTokenizerBase, options: DecodingOptions
) -> LanguageModel:
    """A draft model in the precision that ``options`` ask for; ``"auto"`` is the one whose step is the fastest here.

    Raises:
        InputError: see :func:`load_draft`; or its weights cannot be rounded.
    """

    def load(draft_dtype: Any) -> LanguageModel:
        loading, quantization = draft_precision(replace(options, draft_dtype=draft_dtype))
        draft = load_draft(name, target.model, tokenizer, loading)
        wrapped = language_model(draft, quantization=quantization, graphs=options.graphs)
        check_pair(target, wrapped)
        return wrapped

    if options.draft_dtype != AUTO:
        return load(options.draft_dtype)
    plain = load(None)
    if isinstance(plain.model, GgufModel) or plain.reads_states:
        return plain
    loaded = {plain.precision: plain}

    draft = load("bfloat16") if plain.precision != "bfloat16" else plain
    loaded["bfloat16"] = draft
    for quantization in QUANTIZATIONS:
        with suppress(InputError):  # weights that cannot be rounded
            loaded[quantization] = language_model(draft.model, quantization=quantization)
    precision = fastest_step(target, loaded)
    logger.info("draft_dtype: %s for %s, the fastest step", precision, name)
    return loaded[precision]


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


def wrap_model(model: Any, role: str) -> LanguageModel:
    """``model`` behind the model protocol, unless it is already; out of wrappers whose forward is the model's.

    Raises:
        InputError: it cannot be decoded, or is no model at all.
    """
    if isinstance(model, LanguageModel):
        return model
    if isinstance(model, GgufModel):
        return language_model(model)
    wrapped = language_model(unwrapped(model, role))
    wrapped.outer = None if model is wrapped.model else model
    return wrapped


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
    draft.state_input.check(target.hidden_size, target.vocab_size)


def with_states(target: LanguageModel, drafts: Sequence[LanguageModel]) -> LanguageModel:
    """``target``, which gives the states that ``drafts`` read.

    Raises:
        InputError: it has no such layers, or the drafts read different ones.
    """
    if not isinstance(target, CausalLM):
        return target
    readers = [draft.state_input for draft in drafts if isinstance(draft, CausalLM) and draft.state_input is not None]
    read = {layers for reader in readers if (layers := reader.target_layers(target.layers))}
    if len(read) > 1:
        raise InputError(f"draft: two of them read different layers of the target ({sorted(read)}); give one of them")
    return target.with_layers(read.pop()) if read else target
