"""Loads a target and its draft by their specifications, and checks that they fit together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

from transformers import PreTrainedTokenizerBase

from ...common.console import logger
from ...common.errors import InputError, naming
from ...models import CausalLM, EncoderDecoder, GgufModel, LanguageModel, LoadedModel, language_model
from ...models.linear import QUANTIZATIONS, Quantization
from ...models.loading.gguf_tokenizer import check_gguf_tokenizer, check_gguf_tokens
from ...models.loading.model_files import is_gguf
from ...models.loading.names import check_same_tokenizer, has_tokenizer, load_any_model, load_tokenizer
from ...models.model_snapshot import unwrap
from ..costs import fastest_step
from ..model_spec import ModelSpec, Name, TargetSpec
from ..options import LoadingKeywords

Model: TypeAlias = LoadedModel | LanguageModel


def load_target(spec: TargetSpec) -> tuple[LoadedModel, PreTrainedTokenizerBase]:
    """Load the target and its tokenizer, or the tokenizer that ``spec`` names.

    Raises:
        InputError: the target or the tokenizer cannot be loaded, or both do not fit together.
    """
    name, tokenizer, trust = spec.name, spec.tokenizer, spec.trust_remote_code
    options: dict[str, Any] = {"revision": spec.revision, "trust_remote_code": trust}
    with naming("tokenizer", tokenizer), naming("target", name):
        text = (
            load_tokenizer(name, **options) if tokenizer is None else load_tokenizer(tokenizer, trust_remote_code=trust)
        )
        model = load_any_model(name, **spec.loading, **spec.placement)
        if isinstance(model, GgufModel):
            check_gguf_tokenizer(model, text)
        elif tokenizer is not None:
            check_same_tokenizer(load_tokenizer(name, **options), text, "tokenizer")
    return model, text


def load_draft_model(spec: ModelSpec, target: LanguageModel, tokenizer: PreTrainedTokenizerBase) -> LanguageModel:
    """Load a draft model in the precision of ``spec``, or in the precision with the fastest step on this machine.

    Raises:
        InputError: the model cannot be loaded (:func:`load_draft`), or its weights cannot be rounded to the precision.
    """

    def load(precision: str) -> LanguageModel:
        """Load the draft model in ``precision``."""
        chosen = replace(spec, precision=precision)
        with naming("draft", spec.name):
            draft = load_draft(spec.name, target.model, tokenizer, chosen.loading)
        wrapped = language_model(draft, quantization=draft_quantization(chosen), graphs=spec.graphs)
        check_pair(target, wrapped)
        return wrapped

    plain = load(spec.precision)
    if not spec.fastest or isinstance(plain.model, GgufModel) or plain.reads_states:
        return plain
    loaded = {plain.precision: plain}

    draft = load("bfloat16") if plain.precision != "bfloat16" else plain
    loaded["bfloat16"] = draft
    for quantization in QUANTIZATIONS:
        with suppress(InputError):  # weights that cannot be rounded
            loaded[quantization] = language_model(draft.model, quantization=quantization)
    precision = fastest_step(target, loaded)
    logger.info("draft_dtype: %s for %s, the fastest step", precision, spec.name)
    return loaded[precision]


def draft_quantization(spec: ModelSpec) -> Quantization | None:
    """Return the number format that a draft's weights are rounded to after loading; None for no rounding."""
    return spec.precision if spec.precision in QUANTIZATIONS else None


def load_draft(
    name: Name,
    target: LoadedModel,
    tokenizer: PreTrainedTokenizerBase,
    options: LoadingKeywords,
    *,
    decoder_only: bool = False,
) -> LoadedModel:
    """Load a draft model for a target.

    Args:
        name: the draft's name.
        target: the target.
        tokenizer: the target's tokenizer.
        options: options of the loading.
        decoder_only: whether an encoder-decoder is refused.

    Raises:
        InputError: the draft cannot be loaded, or has another tokenizer.
    """
    if is_gguf(name):
        model = load_any_model(name, decoder_only=decoder_only, **options)
        assert isinstance(model, GgufModel)
        check_gguf_tokens(model.file, tokenizer)
        return model
    if has_tokenizer(name):
        check_same_tokenizer(tokenizer, load_tokenizer(name, trust_remote_code=options["trust_remote_code"]))
    return load_any_model(name, target=target, decoder_only=decoder_only, **options)


def wrap_model(model: Any, role: str) -> LanguageModel:
    """Unwrap a model, and return it behind the model protocol; a :class:`LanguageModel` is returned unchanged.

    Args:
        model: the model, with or without wrappers of other libraries.
        role: ``"target"`` or ``"draft"``, for messages.

    Raises:
        InputError: the model cannot be decoded, or is not a model.
    """
    if isinstance(model, LanguageModel):
        return model
    if isinstance(model, GgufModel):
        return language_model(model)
    wrapped = language_model(unwrap(model, role))
    wrapped.outer = None if model is wrapped.model else model
    return wrapped


def check_pair(target: LanguageModel, draft: LanguageModel) -> None:
    """Check that two models can be used together.

    Raises:
        InputError: only one is an encoder-decoder, they are on different devices, or the draft reads states that the
            target does not have.
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
        raise InputError(
            f"draft: reads the target's states, which are not supported for {target.name}; choose another draft"
        )
    draft.state_input.check(target.hidden_size, target.vocab_size)


def with_states(target: LanguageModel, drafts: Sequence[LanguageModel]) -> LanguageModel:
    """Return ``target`` with the layers' outputs that ``drafts`` read among its states.

    Raises:
        InputError: the target has no such layers, or the drafts read different layers.
    """
    if not isinstance(target, CausalLM):
        return target
    readers = [draft.state_input for draft in drafts if isinstance(draft, CausalLM) and draft.state_input is not None]
    read = {reader.target_layers(target.layers) for reader in readers}
    if len(read) > 1:
        raise InputError(f"draft: two of them read different layers of the target ({sorted(read)}); give one of them")
    return target.with_layers(read.pop()) if read else target
