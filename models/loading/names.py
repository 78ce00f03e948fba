"""Models and tokenizers, loaded by name onto a device."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.quantizers.auto import AutoHfQuantizer

from ...common.errors import InputError, counted, listed
from ...common.files import without_places
from ...common.json_file import JsonObject
from .. import GgufModel, LoadedModel
from ..base import input_device
from ..given import unwrapped
from .devices import (
    DTYPES,
    DeviceMap,
    check_device_map,
    check_dtype,
    on_one_device,
    pick_device,
    require_accelerate,
)
from .draft_folder import MARK, load_saved_draft
from .eagle3_folder import is_eagle3, load_eagle3
from .generation_defaults import stop_tokens
from .gguf_tokenizer import load_gguf_tokenizer
from .model_files import Source, check_format, find_files, gguf_path, is_gguf, refusing
from .progress_bars import without_loading_bars

PIECES = ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model")  # SentencePiece's files


def load_model(
    name: str | Path,
    *,
    dtype: str = "float32",
    device: str = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
    decoder_only: bool = False,
    device_map: DeviceMap | None = None,
    offload_folder: str | Path | None = None,
    target: LoadedModel | str | Path | None = None,
) -> PreTrainedModel:
    """A language model in evaluation mode, without gradients: a causal one or an encoder-decoder.

    A checkpoint whose weights are quantised (bitsandbytes, GPTQ, AWQ, compressed-tensors, torchao, FP8, …) is loaded
    where the library for its format is installed; ``dtype="auto"`` is then what it was made for.

    Args:
        name: ``tiny`` and the like (see ``specpilot.checkpoints``), a folder in transformers' format, or a hub id.
        dtype: ``float32``, ``bfloat16``, ``float16``, ``float64``, or ``auto``, the checkpoint's own.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, … One device for the whole model.
        revision: branch, tag or commit on the hub.
        decoder_only: refuse an encoder-decoder, before its weights are fetched.
        device_map: spread the model over devices instead, by accelerate: ``auto``, or a device for each module name,
            such as ``{"model.layers": 0, "model.norm": "cpu", "lm_head": "disk", …}``.
        offload_folder: where weights on ``disk`` are kept that cannot be read from the checkpoint as they are.
        target: the target that the model is to draft for, or its name, which is loaded if the draft uses its embedding.

    Raises:
        InputError: there is no such model, it is no language model, a file of it is damaged or incomplete, a library it
            needs is missing, or a device does not exist here or has no such dtype.
    """
    if dtype not in DTYPES:
        raise InputError(f"dtype={dtype!r}: choose one of {', '.join(DTYPES)}")
    if device_map is not None:
        check_device_map(device_map, device)
        device_map = on_one_device(device_map)
    elif offload_folder is not None:
        raise InputError(
            f"offload_folder={str(offload_folder)!r}: only a device_map offloads; give one, or leave it out"
        )
    place = pick_device(device)
    check_dtype(DTYPES[dtype], place)
    source = find_files(name, revision)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code, **source.hub}
    check_format(name, source)
    lender = partial(_lender, target, dtype, device, trust_remote_code)
    found = _config_keys(name, source)
    if is_eagle3(found):
        if device_map is not None:
            raise InputError(f"device_map: {name} is an EAGLE-3 draft, which is on one device; leave it out")
        with refusing(name, "cannot be loaded as an EAGLE-3 draft"):
            model = load_eagle3(
                name, source.path, found, lender=lender, dtype=DTYPES[dtype], place=place, **source.hub
            )  # fmt: skip
        return model.eval().requires_grad_(False)  # type: ignore[no-any-return]
    with refusing(name, "cannot be loaded as a language model"):
        config = AutoConfig.from_pretrained(source.path, **options)
    if config.is_encoder_decoder and decoder_only:
        raise InputError(f"{name}: an encoder-decoder model; a causal (decoder-only) language model is needed")
    if vars(config).get(MARK) is not None:
        if device_map is not None:
            raise InputError(f"device_map: {name} is a draft made by specpilot, which is on one device; leave it out")
        with refusing(name, "cannot be loaded as a draft"):
            model = load_saved_draft(
                name, source.path, config, lender=lender, dtype=DTYPES[dtype], place=place, **options
            )
        return model.eval().requires_grad_(False)  # type: ignore[no-any-return]
    options |= {"dtype": DTYPES[dtype], "device_map": device_map, "offload_folder": offload_folder}
    model = _read_weights(name, source.path, config, place, options)
    if source.adapter is not None:
        model = _adapted(name, source.adapter, model)
    return model.eval().requires_grad_(False)  # type: ignore[no-any-return]


def _read_weights(
    name: str | Path, path: str, config: PreTrainedConfig, place: torch.device, options: dict[str, Any]
) -> PreTrainedModel:
    """The model of ``config`` with the weights of its files, on ``place`` or where the device map puts it."""
    quantised = _quantisation(name, config)
    problem = "cannot be loaded as a language model"
    if quantised is not None:
        problem = f"its weights are quantised with {quantised} and cannot be loaded here"
        if options["device_map"] is None:  # weights in such a format are loaded in place, never moved
            require_accelerate(f"{name}: weights quantised with {quantised}")
            options = options | {"device_map": {"": str(place)}}
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with refusing(name, problem), without_loading_bars():
        loaded: Any = kind.from_pretrained(
            path,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            output_loading_info=True,
            **options,
        )
    model, report = loaded
    _check_complete(name, report)
    if options["device_map"] is None:
        check_dtype(model.dtype, place)
        model = model.to(place)
    return model  # type: ignore[no-any-return]


def _adapted(name: str | Path, adapter: Source, model: PreTrainedModel) -> PreTrainedModel:
    """``model`` with an adapter in its layers."""
    from peft import PeftModel

    with refusing(name, "its adapter does not fit its base model"):
        wrapped = PeftModel.from_pretrained(model, adapter.path, torch_device=str(input_device(model)), **adapter.hub)
    model = unwrapped(wrapped, str(name))
    model.config._name_or_path = str(name)
    return model


def _lender(
    target: LoadedModel | str | Path | None, dtype: str, device: str, trust_remote_code: bool
) -> LoadedModel | None:
    """The target, loaded if it is given by name."""
    if not isinstance(target, str | Path):
        return target
    return load_any_model(target, dtype=dtype, device=device, trust_remote_code=trust_remote_code)


def load_any_model(name: str | Path, **options: Any) -> LoadedModel:
    """A GGUF file's model, by llama.cpp, or whatever :func:`load_model` takes, with the same ``options``.

    Raises:
        InputError: it cannot be loaded, or an option is none of a GGUF model's.
    """
    if not is_gguf(name):
        return load_model(name, **options)
    if options.get("device", "auto") not in ("auto", "cpu"):
        raise InputError(f"device={options['device']!r}: llama.cpp runs {name} on the CPU; use 'auto' or 'cpu'")
    options.pop("target", None)
    for option in ("device_map", "offload_folder", "revision"):
        if options.get(option) is not None:
            raise InputError(f"{option}={options[option]!r}: none for {name}, a GGUF file; leave it out")
    return GgufModel(gguf_path(name), options.get("dtype", "float32"))


def has_own_tokenizer(name: str | Path) -> bool:
    """Whether a tokenizer comes with the model ``name``; none does with EAGLE-3 drafts.

    Raises:
        InputError: there is no such model.
    """
    return not is_eagle3(_config_keys(name, find_files(name)))


def _config_keys(name: str | Path, source: Source) -> JsonObject:
    """The keys of the model's ``config.json``."""
    with refusing(name, "cannot be loaded as a language model"):
        found, _ = PreTrainedConfig.get_config_dict(source.path, **source.hub)
    return found


def load_tokenizer(
    name: str | Path, *, revision: str | None = None, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer that belongs to the model ``name``; that in a GGUF file, where it is one.

    Raises:
        InputError: there is none.
    """
    if is_gguf(name):
        return load_gguf_tokenizer(gguf_path(name))
    source = find_files(name, revision)
    if is_eagle3(_config_keys(name, source)):
        raise InputError(f"{name}: an EAGLE-3 draft, which has no tokenizer; give it as the draft of a decoder")
    source = source.of_tokenizer
    pieces = [file for file in PIECES if file in source.files]
    if pieces and find_spec("sentencepiece") is None and "tokenizer.json" not in source.files:
        raise InputError(
            f"{name}: its tokenizer, {pieces[0]}, needs sentencepiece: pip install 'specpilot[sentencepiece]'"
        )
    with refusing(name, "has no tokenizer that can be loaded"):
        return AutoTokenizer.from_pretrained(source.path, trust_remote_code=trust_remote_code, **source.hub)


def load_stop_tokens(
    name: str | Path, tokenizer: PreTrainedTokenizerBase, *, trust_remote_code: bool = False
) -> frozenset[int]:
    """The ids that end the texts of the model ``name``, whose weights are not loaded.

    Raises:
        InputError: there is no such model.
    """
    if is_gguf(name):
        return stop_tokens(None, tokenizer)
    source = find_files(name)
    options: dict[str, Any] = {**source.hub}
    with refusing(name, "its configuration cannot be read"):
        try:
            found = GenerationConfig.from_pretrained(source.path, **options)
        except OSError:  # there is none: transformers makes it of the model's configuration
            config = AutoConfig.from_pretrained(source.path, trust_remote_code=trust_remote_code, **options)
            found = GenerationConfig.from_model_config(config)
    return stop_tokens(found.eos_token_id, tokenizer)


def check_same_tokenizer(target: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase, role: str = "draft") -> None:
    """The target's tokenizer and that of its draft, or the ``tokenizer`` it is given, must give ids the same meaning.

    Raises:
        InputError: they don't; names the first difference.
    """
    ours, theirs = target.get_vocab(), other.get_vocab()
    if ours != theirs:
        differing = sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
        token = differing[0]
        names = [without_places(one.name_or_path) for one in (target, other)]
        raise InputError(
            f"target {names[0]} and {role} {names[1]} do not share a tokenizer: they differ in "
            f"{counted(len(differing), 'token')}, the first is {token!r} (id {ours.get(token)} and {theirs.get(token)})"
            f"; name a {role} of the target's family"
        )


def _quantisation(name: str | Path, config: PreTrainedConfig) -> str | None:
    """The format of a checkpoint's quantised weights, None where they are plain.

    Raises:
        InputError: transformers does not know it, and would read the weights as if they were plain.
    """
    for part in (config, config.get_text_config(decoder=True)):
        found = vars(part).get("quantization_config")
        if found is not None:
            break
    else:
        return None
    with refusing(name, "its quantization_config is damaged"):
        method, known = found.get("quant_method"), AutoHfQuantizer.supports_quant_method(found)
    if not known:
        raise InputError(f"{name}: weights quantised with {method!r}, which transformers does not read; take others")
    return str(method or "bitsandbytes")


def _check_complete(name: str | Path, report: Mapping[str, Any]) -> None:
    """Refuse weights that are missing or have another shape than the model's."""
    mismatched = sorted(report["mismatched_keys"])
    if mismatched:
        _, found, needed = mismatched[0]
        raise InputError(
            f"{name}: the weights {listed([key for key, *_ in mismatched], 1)} do not have the shape of config.json "
            f"({tuple(found)} instead of {tuple(needed)}); fetch the model again"
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise InputError(f"{name}: the weights {listed(missing, 1)} are missing from its files")
