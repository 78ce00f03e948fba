"""The initial model of a draft's training: layers of the target, an EAGLE-3 draft, or an existing draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.initialization import no_init_weights

from ..common.errors import InputError, naming
from ..infer.loading.pair import load_draft
from ..infer.options import LoadingKeywords
from ..models import CausalLM, GgufModel
from ..models.causal_lm import layer_modules
from ..models.eagle import find_state_input
from ..models.early_exit import layers_name
from ..models.loading.draft_folder import Shared, SharedTarget, find_shared_target, shared_names
from ..models.loading.eagle3_folder import EMBEDDING, FUSED, HEAD, Eagle3File, build_model, layer_config, set_weights
from ..models.longrope import longrope_switch
from ..models.trimmed_head import keep_trimmed, kept_tokens, trim_head
from .options import DraftTrainingOptions

FIRST_LAYER, FINAL_NORM = "model.layers.0.", "lm_head.norm.weight"  # names of weights of an EAGLE-3 draft
LIKE_LLAMA = ("llama", "mistral", "qwen2", "qwen3")  # architectures with layers from which an EAGLE-3 draft begins
DEEP = 7  # number of layers from which the usual layers of an EAGLE-3 draft exist and differ
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
def new_draft(target: PreTrainedModel, layers: Sequence[int], draft_tokens: Sequence[int] | None) -> PreTrainedModel:
    """Return a float32 model of the target's class with the target's ``layers``, with logits for ``draft_tokens``.

    The weights are copies, except the embedding, which is the target's if that is in float32. No weight requires
    gradients.

    Args:
        target: the target.
        layers: indices of layers.
        draft_tokens: the tokens of the logits; None for all.

    Raises:
        InputError: the target is no decoder-only language model or is quantised, or its architecture does not allow
            models with fewer layers.
    """
    config: Any = target.config
    kind = config.model_type
    _check_target(target)
    for setting in TOGETHER:
        if vars(config).get(setting):
            raise InputError(f"{kind}: no shorter model can be made of this architecture, because of its {setting}")
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
        number, _, parameter = inner.partition(".")
        if inner == name:
            weights[name] = value
        elif number in moved:
            weights[f"{prefix}.{moved[number]}.{parameter}"] = value
    expected_shapes = {name: value.shape for name, value in draft.state_dict().items()}
    if expected_shapes != {name: value.shape for name, value in weights.items()}:
        raise InputError(f"{problem}: its layers differ in form")
    draft.load_state_dict(weights)
    draft = draft.float().to(target.device)
    embedding: Any = target.get_input_embeddings().weight
    draft.get_input_embeddings().weight = (
        embedding if embedding.dtype == torch.float32 else nn.Parameter(embedding.float())
    )
    if draft_tokens is not None:
        trim_head(draft, draft_tokens)
    CausalLM._check(draft)
    return draft.eval().requires_grad_(False)  # type: ignore[no-any-return]


def _check_target(target: PreTrainedModel) -> None:
    """Check that drafts can be made for ``target``.

    Raises:
        InputError: ``target`` is no decoder-only language model, or its weights are quantised.
    """
    config: Any = target.config
    if config.is_encoder_decoder or config.get_text_config(decoder=True) is not config:
        raise InputError(
            f"{config.model_type}: a draft can only be made of a decoder-only language model; choose another target"
        )
    if vars(config).get("quantization_config") is not None:
        raise InputError(
            f"{config.model_type}: a draft cannot be made of quantised weights; use the target in full precision"
        )


def choose_state_layers(count: int) -> tuple[int, ...]:
    """Return the layers, of a target with ``count`` layers, whose outputs a new EAGLE-3 draft reads; 1 is the first.

    These are layers 2, n // 2 and n - 3, as in the paper's code. Targets with fewer than seven layers have no such
    three layers; then the draft reads layers 1, (n + 1) // 2 and n - 1.

    Raises:
        InputError: the target has fewer than three layers.
    """
    if count >= DEEP:
        return 2, count // 2, count - 3
    if count < 3:
        raise InputError(
            f"features: an EAGLE-3 draft reads three of the target's layers, and the target has {count}; leave it out"
        )
    return (1, 2, 3) if count < 5 else (1, (count + 1) // 2, count - 1)


@torch.no_grad()
def new_eagle3(
    target: PreTrainedModel, layers: Sequence[int], draft_tokens: Sequence[int] | None, seed: int = 0
) -> PreTrainedModel:
    """Return a float32 EAGLE-3 draft with one layer of Llama, with logits for ``draft_tokens``.

    The embedding is the target's, and the output projection begins with rows of the target's. The other weights are
    those of the layer, its norms, and the projection W (d, L·d) of the outputs of L target layers. They begin as random
    numbers. If the target's layers are like Llama's, they begin as the weights of the target's last layer instead, so
    that the draft begins as an early exit. No weight requires gradients.

    Args:
        target: the target.
        layers: the L layers of the target whose outputs are read; 1 is the first.
        draft_tokens: the tokens of the logits; None for all.
        seed: seed of random weights.

    Raises:
        InputError: the target is no decoder-only language model, is quantised, has longrope, lacks one of ``layers``,
            or its embedding and its output projection do not both have the hidden size and a row for each token.
    """
    config: Any = target.config
    kind = config.model_type
    _check_target(target)
    if longrope_switch(config) is not None:
        raise InputError(f"features: the states of a {kind} with longrope are not supported; leave it out")
    layer_modules(target, layers, config.num_hidden_layers)
    embedding: Any = target.get_input_embeddings().weight
    head: Any = target.get_output_embeddings().weight
    width, vocabulary = config.hidden_size, len(head)
    if embedding.shape != (vocabulary, width) or head.shape != embedding.shape:
        raise InputError(
            f"features: the embedding of {kind} has the shape {tuple(embedding.shape)}, its output projection "
            f"{tuple(head.shape)}; an EAGLE-3 draft needs {vocabulary} rows of the hidden size {width} in both; leave "
            "it out"
        )
    tokens = list(range(vocabulary)) if draft_tokens is None else list(draft_tokens)
    file = Eagle3File(
        transformer_layer_config=_layer_keys(config, vocabulary),
        draft_vocab_size=len(tokens),
        norm_before_residual=False,
        target_hidden_size=width,
        eagle_aux_hidden_state_layer_ids=list(layers),
    )
    model = build_model(layer_config("llama", file.transformer_layer_config, file), file, tokens)
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        if value.ndim == 1:
            weights[name] = torch.ones(value.shape)
        elif name not in (EMBEDDING, HEAD):
            weights[name] = torch.randn(value.shape, generator=generator) * model.config.initializer_range
    if kind in LIKE_LLAMA:
        _copy_last_layer(target, weights)
    weights = {name: value.to(head.device) for name, value in weights.items()}
    weights[EMBEDDING] = embedding.detach().float()
    weights[HEAD] = head.detach()[tokens].float()
    set_weights(model, weights, tokens, shares_embedding=True)
    return model.eval().requires_grad_(False)  # type: ignore[no-any-return]


def _layer_keys(config: Any, vocabulary: int) -> dict[str, Any]:
    """Return the keys of a layer of Llama with the sizes of the target's layers."""

    def number(name: str, default: int) -> int:
        value = getattr(config, name, None)
        return value if isinstance(value, int) else default

    heads = config.num_attention_heads
    rope = getattr(config, "rope_parameters", None) or {}
    theta = rope.get("rope_theta")
    return {
        "vocab_size": vocabulary,
        "hidden_size": config.hidden_size,
        "intermediate_size": number("intermediate_size", 4 * config.hidden_size),
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": number("num_key_value_heads", heads),
        "head_dim": number("head_dim", config.hidden_size // heads),
        "hidden_act": "silu",
        "max_position_embeddings": number("max_position_embeddings", 2048),
        "rms_norm_eps": float(getattr(config, "rms_norm_eps", 1e-5)),
        "rope_theta": 10000.0 if theta is None else float(theta),
        "attention_bias": False,
    }


def _copy_last_layer(target: PreTrainedModel, weights: dict[str, Tensor]) -> None:
    """Set ``weights`` of an EAGLE-3 draft to those of the target's last layer and final norm, where shapes agree.

    Projections with 2d columns get the target's weights in the columns of the state. W copies the last of its states.
    """
    decoder: Any = target.get_decoder()
    for name, value in decoder.layers[-1].state_dict().items():
        new_name = FIRST_LAYER + name.replace("input_layernorm", "hidden_norm")
        if new_name not in weights:
            continue  # biases, and norms of queries and keys
        extra_columns = weights[new_name].shape[-1] - value.shape[-1]
        if weights[new_name].shape[:-1] == value.shape[:-1] and extra_columns in (0, value.shape[-1]):
            weights[new_name][..., extra_columns:] = value.float().cpu()
    weights[FINAL_NORM] = decoder.norm.weight.float().cpu()
    width = weights[FUSED].shape[0]
    weights[FUSED][:, -width:] += torch.eye(width)


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


def initial_draft(
    target: PreTrainedModel, settings: DraftTrainingOptions, draft_tokens: list[int] | None
) -> PreTrainedModel:
    """Return a new draft: one of the target's layers, or with the option ``features`` an EAGLE-3 draft.

    Args:
        target: the target.
        settings: options of the training.
        draft_tokens: the tokens that the draft can propose; None for all.

    Raises:
        InputError: no draft can be made for the target.
    """
    count = target.config.num_hidden_layers
    if settings.features is not None:
        draft = new_eagle3(target, choose_state_layers(count), draft_tokens, settings.seed)
        keep_trimmed(draft)
        return draft
    chosen = choose_layers(3 if settings.layers is None else settings.layers, count)
    return new_draft(target, chosen, draft_tokens)


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
    if isinstance(draft, GgufModel):
        raise InputError(f"initial={name!r}: a GGUF file cannot be trained; choose a draft in transformers' format")
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


def shared_with(
    draft: PreTrainedModel, target: PreTrainedModel, settings: DraftTrainingOptions, fingerprint: str
) -> SharedTarget | None:
    """Return the untrained weights that ``draft`` shares with ``target``; None if there are none.

    An initial draft in transformers' format has copies of these weights. They are recognised by their values.

    Args:
        draft: the draft before the training.
        target: the target.
        settings: options of the training.
        fingerprint: the target's fingerprint.
    """
    if (reader := find_state_input(draft)) is not None:
        return SharedTarget(settings.target, fingerprint, ["input"]) if reader.shares_embedding else None
    if settings.initial is None:
        return SharedTarget(settings.target, fingerprint, ["input"] if settings.own_output else ["input", "output"])
    shared = find_shared_target(draft)
    if shared is not None or kept_tokens(draft) is not None:
        return shared
    layers: dict[Shared, tuple[Any, Any]] = {
        "input": (draft.get_input_embeddings(), target.get_input_embeddings()),
        "output": (draft.get_output_embeddings(), target.get_output_embeddings()),
    }
    equal = [part for part, pair in layers.items() if _are_equal(*pair)]
    return SharedTarget(settings.target, fingerprint, equal) if equal else None


def freeze_shared(
    draft: PreTrainedModel, target: PreTrainedModel, settings: DraftTrainingOptions, fingerprint: str
) -> set[str]:
    """Freeze the weights of ``draft`` that are the target's, and return their names.

    All other weights then require gradients. Arguments are those of :func:`shared_with`.
    """
    shared = shared_names(draft, shared_with(draft, target, settings, fingerprint))
    for name, parameter in draft.named_parameters():
        parameter.requires_grad_(name not in shared)
    return shared


def _are_equal(layer: nn.Module, target_layer: nn.Module) -> bool:
    """Return true if ``layer`` has the weights of ``target_layer``, rounded to the target's precision."""
    weights, target_weights = layer.state_dict(), target_layer.state_dict()
    return weights.keys() == target_weights.keys() and all(
        value.shape == target_weights[name].shape and torch.equal(value.to(target_weights[name]), target_weights[name])
        for name, value in weights.items()
    )
