"""The initial model of a draft's training: layers of the target, or an existing draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.initialization import no_init_weights

from ..common.errors import InputError, naming
from ..infer.loading.pair import load_draft
from ..infer.options import LoadingKeywords
from ..models import CausalLM, GgufModel
from ..models.eagle import StateInput, add_state_input, find_state_input
from ..models.early_exit import layers_name
from ..models.loading.draft_folder import SharedTarget, find_shared_target
from ..models.trimmed_head import keep_trimmed, trim_head
from .options import DraftTrainingOptions

TOGETHER = ("num_kv_shared_layers", "attention_types")  # settings of all layers together


def choose_layers(layers: int | Sequence[int], count: int) -> list[int]:
    """Return indices of the target's layers: those in a list, or the first ``layers`` - 1 and the last.

    Args:
        layers: indices of layers, or their number.
        count: number of the target's layers.

    Raises:
        InputError: the target has no such layer.
    """
    if isinstance(layers, int):
        if not 1 <= layers <= count:
            raise InputError(f"layers={layers}: the target has {count} layers; choose 1 to {count}")
        return [*range(layers - 1), count - 1]
    for layer in layers:
        if layer >= count:
            raise InputError(f"layers={list(layers)}: the target has no layer {layer}, only 0 to {count - 1}")
    return list(layers)


@torch.no_grad()
def new_draft(
    target: PreTrainedModel, layers: Sequence[int], kept: Sequence[int] | None, *, reads_states: bool = False
) -> PreTrainedModel:
    """Return a float32 model of the target's class with the target's ``layers``, with logits for ``kept``.

    The weights are copies, except the embedding, which is the target's if that is in float32. No weight requires
    gradients.

    Args:
        target: the target.
        layers: indices of layers.
        kept: the tokens of the logits; None for all.
        reads_states: add a :class:`.StateInput`.

    Raises:
        InputError: no shorter model of the target's architecture can be made.
    """
    config: Any = target.config
    kind = config.model_type
    if config.is_encoder_decoder or config.get_text_config(decoder=True) is not config:
        raise InputError(f"{kind}: a draft can only be made of a decoder-only language model; choose another target")
    for setting in TOGETHER:
        if vars(config).get(setting):
            raise InputError(f"{kind}: no shorter model can be made of this architecture, because of its {setting}")
    if vars(config).get("quantization_config") is not None:
        raise InputError(f"{kind}: a draft cannot be made of quantised weights; use the target in full precision")
    count = config.num_hidden_layers
    problem = f"{kind}: no shorter model can be made of this architecture"
    try:
        shorter = shorter_config(config, layers)
        with no_init_weights():
            draft: PreTrainedModel = type(target)(shorter)
    except (ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        raise InputError(f"{problem} ({type(error).__name__}: {error})") from error
    prefix = layers_name(target, count)
    moved = {str(old): str(new) for new, old in enumerate(layers)}
    weights = {}
    for name, value in target.state_dict().items():
        inner = name.removeprefix(f"{prefix}.")
        number, _, rest = inner.partition(".")
        if inner == name:
            weights[name] = value
        elif number in moved:
            weights[f"{prefix}.{moved[number]}.{rest}"] = value
    needed = {name: value.shape for name, value in draft.state_dict().items()}
    if needed != {name: value.shape for name, value in weights.items()}:
        raise InputError(f"{problem}: its layers differ in form")
    draft.load_state_dict(weights)
    draft = draft.float().to(target.device)
    embedding: Any = target.get_input_embeddings().weight
    draft.get_input_embeddings().weight = (
        embedding if embedding.dtype == torch.float32 else nn.Parameter(embedding.float())
    )
    if kept is not None:
        trim_head(draft, kept)
    CausalLM._check(draft)
    if reads_states:
        if not CausalLM(draft.eval()).together:
            raise InputError(f"features: a {kind} does not take the masks of training by positions; leave it out")
        add_state_input(draft).begin(float(embedding.float().square().mean().sqrt()))
    return draft.eval().requires_grad_(False)  # type: ignore[no-any-return]


def shorter_config(config: Any, layers: Sequence[int]) -> PreTrainedConfig:
    """Return the configuration of a model with some ``layers`` of that of ``config``, and an untied output head.

    Lists with an entry for each layer, such as ``layer_types``, keep those of ``layers``.
    """
    values = config.to_dict()
    count = config.num_hidden_layers
    for name, value in values.items():
        if "layer" in name and isinstance(value, list) and len(value) == count:
            values[name] = [value[layer] for layer in layers]
    values[config.attribute_map.get("num_hidden_layers", "num_hidden_layers")] = len(layers)
    values["tie_word_embeddings"] = False
    return type(config)(**values)  # type: ignore[no-any-return]


def of_layers(target: PreTrainedModel, settings: DraftTrainingOptions, kept: list[int] | None) -> PreTrainedModel:
    """Return a draft of the target's layers.

    Args:
        target: the target.
        settings: options of the training.
        kept: the tokens that the draft can propose; None for all.

    Raises:
        InputError: no shorter model of the target's architecture can be made.
    """
    reads_states = settings.features is not None
    layers = settings.layers
    if layers is None:
        layers = 1 if reads_states else 3
    chosen = choose_layers(layers, target.config.num_hidden_layers)
    return new_draft(target, chosen, kept, reads_states=reads_states)


def load_initial(
    target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: DraftTrainingOptions
) -> PreTrainedModel:
    """Return the draft ``settings.initial`` in float32, with logits for the tokens that it can propose.

    Raises:
        InputError: the draft cannot be loaded or trained, or has other tokens than the target.
    """
    name = settings.initial
    assert name is not None
    loading: LoadingKeywords = {
        "dtype": "float32", "device": settings.device, "trust_remote_code": settings.trust_remote_code
    }  # fmt: skip
    with naming("initial", name):
        draft = load_draft(name, target, tokenizer, loading, decoder_only=True)
    if isinstance(draft, GgufModel) or not isinstance(find_state_input(draft), StateInput | None):
        kind = "a GGUF file" if isinstance(draft, GgufModel) else "an EAGLE-3 draft"
        raise InputError(f"initial={name!r}: {kind} cannot be trained; choose a draft in transformers' format")
    if vars(draft.config).get("quantization_config") is not None:
        raise InputError(f"initial={name!r}: has quantised weights; use the model in full precision")
    embeddings: list[Any] = [draft.get_input_embeddings(), target.get_input_embeddings()]
    draft_tokens, target_tokens = (len(embedding.weight) for embedding in embeddings)
    if draft_tokens != target_tokens:
        raise InputError(
            f"initial={name!r}: has {draft_tokens} tokens, but the target {target_tokens}; choose a draft with as many "
            "tokens as the target"
        )
    if find_state_input(draft) is None:
        settings.refuse_ignored(("positions",), "the initial draft reads tokens alone")
    keep_trimmed(draft)
    return draft


def shared_with(draft: PreTrainedModel, settings: DraftTrainingOptions, fingerprint: str) -> SharedTarget | None:
    """Return the untrained weights that ``draft`` shares with the target of ``fingerprint``; None if there are none."""
    if settings.initial is not None:
        return find_shared_target(draft)
    return SharedTarget(settings.target, fingerprint, ["input"] if settings.own_output else ["input", "output"])
