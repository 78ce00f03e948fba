"""EAGLE-3 drafts on disk, in the format of the library speculators or of EAGLE-3's authors, in safetensors.

The folder holds ``config.json`` and ``model.safetensors``, or shards with an index. It has no tokenizer. The draft uses
the target's embedding and output projection if the folder has none. The tensor ``d2t`` maps the trimmed vocabulary:
output i is the token i + d2t[i].

:func:`save_eagle3` writes the keys of both formats into one ``config.json``: vLLM and the library speculators read
``speculators_config`` and ``transformer_layer_config``, SGLang reads the keys of the authors' format. The weights have
the authors' names, which vLLM and SGLang read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub.errors import EntryNotFoundError
from safetensors.torch import load_file, save
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from ...common.errors import InputError
from ...common.files import replacing_folder, shorten_paths
from ...common.json_file import JsonObject, build, naming_file, read_object
from .. import LoadedModel
from ..eagle import NAME, Eagle3Input, FirstLayer, NormedHead
from ..lean_forward import STATIC_ROPE
from ..trimmed_head import TrimmedHead, spread_logits
from .draft_folder import Part, check_output_folder, check_weights, require_lender, stored_file, weights_to_store
from .model_files import HubKeywords

KIND, ORIGINAL = "speculators_model_type", "LlamaForCausalLMEagle3"
WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
SHARD = re.compile(r"[\w-][\w.-]*\.safetensors")  # the name of a shard, without a folder
LAYERS = ("llama", "qwen3")  # supported architectures of the draft's layer
AGAIN = "fetch the draft again"
DEFAULT_LAYERS = 3  # number of the target's layers that a draft reads if the file does not name the layers
EMBEDDING, HEAD, FUSED = "model.embed_tokens.weight", "lm_head.weight", f"{NAME}.fc.weight"
LONGEST = 2**20  # minimum context of a draft, in tokens
LAYER_KEYS = (  # the keys of a draft's layer that are written
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "hidden_act", "max_position_embeddings", "rms_norm_eps", "attention_bias",
    "initializer_range",
)  # fmt: skip
UNUSED = ("t2d", "verifier_norm.weight", "verifier_lm_head.weight")  # used in training only


@dataclass(frozen=True)
class Eagle3File:
    """The keys of ``config.json`` that determine the draft's computation, under the names of speculators."""

    transformer_layer_config: JsonObject
    draft_vocab_size: int
    norm_before_residual: bool
    target_hidden_size: int | None = None
    eagle_aux_hidden_state_layer_ids: list[int] | None = None
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False

    @classmethod
    def of(cls, name: str | Path, keys: JsonObject) -> Eagle3File:
        """Read the keys of ``config.json``.

        Raises:
            InputError: a key is missing or of another type, or the checkpoint is of another kind.
        """
        kind = keys.get(KIND)
        if kind not in (None, "eagle3"):
            raise InputError(f"{name}: a checkpoint of speculators of kind {kind!r}; 'eagle3' can be read")
        values = {key: keys[key] for key in cls.__dataclass_fields__ if keys.get(key) is not None}
        with naming_file(Path(f"{name}/{CONFIG}"), AGAIN):
            if kind is None:
                values |= _translate_original(keys)
            return build(cls, values)


def _translate_original(keys: JsonObject) -> JsonObject:
    """Translate the keys of a draft by EAGLE-3's authors, whose file has the keys of its layer and a few more.

    Raises:
        InputError: the draft reads only the target's last state.
    """
    eagle_keys = keys.get("eagle_config") or {}
    if not eagle_keys.get("use_aux_hidden_state", True):
        raise InputError("use_aux_hidden_state=false: a draft that reads the target's last state alone; give another")
    names = ("eagle_aux_hidden_state_layer_ids", "norm_before_fc")
    return {
        "transformer_layer_config": dict(keys),
        "norm_before_residual": keys.get("norm_before_residual", False),
        "draft_vocab_size": keys.get("draft_vocab_size") or keys.get("vocab_size"),
        **{name: eagle_keys[name] for name in names if eagle_keys.get(name) is not None},
    }


def is_eagle3(keys: JsonObject) -> bool:
    """Return true if the keys of a ``config.json`` are those of a draft by speculators or by EAGLE-3's authors."""
    kinds = keys.get("architectures") or ()
    return KIND in keys or ORIGINAL in kinds or ("LlamaForCausalLM" in kinds and "draft_vocab_size" in keys)


def load_eagle3(
    name: str | Path,
    path: str,
    keys: JsonObject,
    *,
    lender: Callable[[], LoadedModel | None],
    dtype: torch.dtype | Literal["auto"],
    device: torch.device,
    revision: str | None,
    local_files_only: bool,
) -> PreTrainedModel:
    """Load the draft in the folder or hub repository ``path``.

    Args:
        name: the draft's name, for messages.
        keys: the keys of its ``config.json``.
        lender: returns the target of the draft, or None; called if the draft has no embedding or output projection.
        dtype: precision of the weights; ``"auto"`` is that of the file.
        device: the device of the draft.
        revision, local_files_only: as for transformers.

    Raises:
        InputError: a file is missing or damaged, or the draft does not belong to the target.
    """
    file = Eagle3File.of(name, keys)
    hub: HubKeywords = {"revision": revision, "local_files_only": local_files_only}
    stored, file_weights = _stored_weights(path, hub)
    weights = {_weight_name(key, file): value for key, value in file_weights.items() if key not in UNUSED}
    tokens = _tokens(stored, weights.pop("d2t", None), len(weights[HEAD]) if HEAD in weights else None, file)
    config = _layer_config(name, file, weights)
    model = build_model(config, file, tokens)
    missing = {EMBEDDING, HEAD} - weights.keys()
    check_weights(stored, weights, {key: value for key, value in model.state_dict().items() if key not in missing})
    precision = weights.get(HEAD, weights[FUSED]).dtype if isinstance(dtype, str) else dtype
    weights = {key: value.to(device, precision) for key, value in weights.items()}
    target, shape = lender() if missing else None, model.get_input_embeddings().weight.shape
    if EMBEDDING in missing:
        weights[EMBEDDING] = _target_weight(name, "embedding", target, shape).to(device, precision)
    if HEAD in missing:
        rows = _target_weight(name, "output projection", target, shape)
        weights[HEAD] = (rows if len(tokens) == len(rows) else rows[tokens]).to(device, precision)
    set_weights(model, weights, tokens, shares_embedding=EMBEDDING in missing)
    model.config._name_or_path = str(path)
    return model  # type: ignore[no-any-return]


def build_model(config: PreTrainedConfig, file: Eagle3File, tokens: Sequence[int]) -> Any:
    """Return an EAGLE-3 draft without weights, which :func:`set_weights` sets.

    Args:
        config: configuration of its layers.
        file: the keys of ``config.json``.
        tokens: the token of each output.
    """
    with torch.device("meta"), no_init_weights():  # no memory, because a damaged file may describe any shapes
        model = AutoModelForCausalLM.from_config(config)
        _rebuild(model, config, file, tokens)
    return model


def set_weights(model: Any, weights: Mapping[str, Tensor], tokens: Sequence[int], *, shares_embedding: bool) -> None:
    """Set all ``weights`` of a draft of :func:`build_model`; they are not copied.

    Args:
        tokens: the token of each output.
        shares_embedding: whether the embedding is the target's.
    """
    device = weights[HEAD].device
    model.load_state_dict(weights, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config).to(device)  # not one of the weights
    model.lm_head.tokens = torch.tensor(tokens, device=device)
    model.get_submodule(NAME).shares_embedding = shares_embedding


def is_eagle3_folder(folder: Path) -> bool:
    """Return true if ``folder`` has a ``config.json`` of a draft by speculators."""
    return (folder / CONFIG).is_file() and KIND in read_object(folder / CONFIG, AGAIN)


def save_eagle3(
    model: PreTrainedModel,
    folder: Path,
    target: PreTrainedModel,
    *,
    name: str,
    speculative_tokens: int,
    dtype: torch.dtype,
    overwrite: bool = False,
) -> Path:
    """Write the EAGLE-3 draft ``model`` as a folder that vLLM and SGLang load, atomically.

    Args:
        model: the draft.
        folder: the folder to create.
        target: the draft's target.
        name: name of the target, which the file contains.
        speculative_tokens: number of tokens that engines draft by default.
        dtype: precision of the stored weights.
        overwrite: whether an existing draft is replaced.

    Raises:
        InputError: ``folder`` is not free, or a weight is not finite.
    """
    check_output_folder(folder, overwrite, is_eagle3_folder)
    config: Any = model.config
    reader, head = model.get_submodule(NAME), model.get_output_embeddings()
    assert isinstance(reader, Eagle3Input)
    assert isinstance(head, TrimmedHead)
    left_out = {EMBEDDING} if reader.shares_embedding else set[str]()
    weights = {_file_name(key): value for key, value in weights_to_store(model, left_out, dtype, folder).items()}
    tokens = head.tokens.cpu()
    if len(tokens) < config.vocab_size:
        weights["d2t"] = tokens - torch.arange(len(tokens))
        weights["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool).index_fill_(0, tokens, True)
    norm_before_residual, norm_before_fc, fc_norm, norm_output = config.eagle3["norms"]
    layer = {key: value for key, value in config.to_dict().items() if key in LAYER_KEYS}
    layer |= {"rope_theta": config.rope_parameters["rope_theta"], "tie_word_embeddings": False}
    if config.rope_parameters["rope_type"] != "default":
        layer["rope_scaling"] = {key: value for key, value in config.rope_parameters.items() if key != "rope_theta"}
    context = getattr(target.config, "max_position_embeddings", None)
    if context is not None:
        layer["max_position_embeddings"] = min(context, config.max_position_embeddings)
    file = Eagle3File(
        transformer_layer_config=layer | {"model_type": config.model_type},
        draft_vocab_size=len(tokens),
        norm_before_residual=norm_before_residual,
        target_hidden_size=reader.size,
        eagle_aux_hidden_state_layer_ids=None if reader.layers is None else list(reader.layers),
        norm_before_fc=norm_before_fc,
        fc_norm=fc_norm,
        norm_output=norm_output,
    )
    architectures = target.config.architectures or [type(target).__name__]
    verifier = {"name_or_path": shorten_paths(name), "architectures": architectures}
    proposal = {"proposal_type": "greedy", "speculative_tokens": speculative_tokens}
    keys = file.transformer_layer_config | asdict(file) | {
        "architectures": [ORIGINAL],
        "dtype": str(dtype).removeprefix("torch."),
        "torch_dtype": str(dtype).removeprefix("torch."),
        KIND: "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": verifier,
        },
    }  # fmt: skip
    with replacing_folder(folder) as new:
        (new / WEIGHTS).write_bytes(save(weights, metadata={"format": "pt"}))
        (new / CONFIG).write_text(json.dumps(keys, indent=2) + "\n", encoding="utf-8")
    return folder


def _file_name(key: str) -> str:
    """Return the name in the file of the weight ``key`` of a model of :func:`build_model`."""
    if key == "lm_head.norm.weight":
        return "norm.weight"
    return key.removeprefix(f"{NAME}.").removeprefix("model.").replace("layers.0.", "midlayer.")


def _stored_weights(path: str, hub: HubKeywords) -> tuple[Path, dict[str, Tensor]]:
    """Return the file of weights in ``path``, or their index, and the weights.

    Raises:
        InputError: there are no weights, or a file is damaged.
    """
    missing = f"{path}: an EAGLE-3 draft without {WEIGHTS}; {AGAIN}, in safetensors"
    try:
        file = stored_file(path, WEIGHTS, missing, hub)
        return file, load_file(file)
    except (InputError, EntryNotFoundError) as error:
        try:
            index = stored_file(path, INDEX, missing, hub)
        except (InputError, EntryNotFoundError):
            raise error from None
    places = read_object(index, AGAIN)
    with naming_file(index, AGAIN):
        shards = build(dict[str, str], places.get("weight_map"), "weight_map")
        if invalid_names := [shard for shard in shards.values() if not SHARD.fullmatch(shard)]:
            raise InputError(f"weight_map: {invalid_names[0]!r} is no file of weights")
    weights: dict[str, Tensor] = {}
    for shard in sorted({*shards.values()}):
        weights |= load_file(stored_file(path, shard, f"{index}: {shard} is missing; {AGAIN}", hub))
    return index, weights


def _weight_name(key: str, file: Eagle3File) -> str:
    """Return the name, in the model that is built here, of the weight ``key`` of the file."""
    key = key.replace("midlayer.", "layers.0.")
    if key == "norm.weight" and not file.norm_output:
        return "lm_head.norm.weight"
    if key.startswith(("fc.", "fc_norm.", "input_norm.")):
        return f"{NAME}.{key}"
    return f"model.{key}" if key.startswith(("layers.", "embed_tokens.", "norm.")) else key


def _tokens(file: Path, d2t: Tensor | None, rows: int | None, draft: Eagle3File) -> list[int]:
    """Return the token of each output.

    Args:
        file: the file of weights, for messages.
        d2t: the map of the trimmed vocabulary, or None.
        rows: number of rows of the output projection; None if the file has none.
        draft: the keys of ``config.json``.

    Raises:
        InputError: the map is missing or invalid, or the number of rows is wrong.
    """
    outputs = draft.draft_vocab_size
    with naming_file(file, AGAIN):
        size = build(int, draft.transformer_layer_config.get("vocab_size"), "vocab_size")
    if rows not in (None, outputs):
        raise InputError(f"{file}: lm_head.weight has {rows} rows, draft_vocab_size is {outputs}; {AGAIN}")
    if d2t is None:
        if outputs != size:
            raise InputError(f"{file}: d2t is missing, which maps {outputs} of {size} tokens; {AGAIN}")
        return [*range(size)]
    tokens: list[int] = (torch.arange(len(d2t)) + d2t).tolist()
    if len(tokens) != outputs or tokens != sorted({*tokens}) or not 0 <= tokens[0] <= tokens[-1] < size:
        raise InputError(
            f"{file}: d2t must map {outputs} outputs to different tokens below {size}, in ascending order; {AGAIN}"
        )
    return tokens


def _layer_config(name: str | Path, file: Eagle3File, weights: Mapping[str, Tensor]) -> PreTrainedConfig:
    """Return the transformers configuration of the draft's layers.

    Raises:
        InputError: the architecture is not supported, or the number of layers is wrong.
    """
    values = dict(file.transformer_layer_config)
    kind = values.pop("model_type", None)
    if kind not in LAYERS:
        raise InputError(f"{name}: an EAGLE-3 draft with layers of {kind!r}; supported are {' and '.join(LAYERS)}")
    for removed in (KIND, "architectures", "tie_word_embeddings"):
        values.pop(removed, None)
    config: PreTrainedConfig = layer_config(kind, values, file)
    stored = {key.split(".")[2] for key in weights if key.startswith("model.layers.")}
    if config.num_hidden_layers != len(stored):
        raise InputError(f"{name}: num_hidden_layers={config.num_hidden_layers}, but it has {len(stored)}; {AGAIN}")
    return config


def layer_config(kind: str, values: JsonObject, file: Eagle3File) -> Any:
    """Return the configuration of layers of the architecture ``kind``.

    Args:
        values: their keys in ``config.json``.
        file: all keys of the draft.
    """
    config: Any = AutoConfig.for_model(kind, **values, tie_word_embeddings=False)
    if config.rope_parameters["rope_type"] in STATIC_ROPE:
        # Many drafts are trained on short texts and used on long ones: beyond its context a draft is worse, not wrong.
        config.max_position_embeddings = max(config.max_position_embeddings, LONGEST)
    config.eagle3 = {  # part of the fingerprint
        "layers": file.eagle_aux_hidden_state_layer_ids,
        "norms": [file.norm_before_residual, file.norm_before_fc, file.fc_norm, file.norm_output],
    }
    return config


def _rebuild(model: Any, config: Any, file: Eagle3File, tokens: Sequence[int]) -> None:
    """Turn a transformers model into an EAGLE-3 draft, whose weights are not set yet."""
    width, eps, body = config.hidden_size, config.rms_norm_eps, model.model
    layers = file.eagle_aux_hidden_state_layer_ids
    reader = Eagle3Input(
        layers, count=DEFAULT_LAYERS if layers is None else len(layers), vocabulary=config.vocab_size,
        target=file.target_hidden_size or width, width=width, eps=eps, norm_all=file.norm_before_fc,
        norm_each=file.fc_norm,
    )  # fmt: skip
    body.layers[0] = FirstLayer(body.layers[0], width, eps, norm_before_residual=file.norm_before_residual)
    weight = model.lm_head.weight.detach()[: len(tokens)]
    if file.norm_output:
        head = TrimmedHead(weight, None, tokens, config.vocab_size)
    else:
        head, body.norm = NormedHead(weight, tokens, config.vocab_size, body.norm), nn.Identity()
    model.set_output_embeddings(head)
    model.add_module(NAME, reader)
    model.register_forward_hook(spread_logits)


def _target_weight(name: str | Path, part: Part, target: LoadedModel | None, shape: torch.Size) -> Tensor:
    """Return the target's embedding or output projection, for a draft that has none.

    Raises:
        InputError: there is no target, or its weights do not fit.
    """
    target, problem = require_lender(name, "its target", target, part)
    layer = target.get_input_embeddings() if part == "embedding" else target.get_output_embeddings()
    weight: Any = layer.weight
    if weight.is_meta:
        raise InputError(f"{problem} has its {part} offloaded; choose another device_map")
    if weight.shape != shape:
        raise InputError(
            f"{problem} has a weight of shape {tuple(weight.shape)} instead of {tuple(shape)}; give the target that "
            "the draft was made for"
        )
    return weight.detach()  # type: ignore[no-any-return]
