"""Loads models and tokenizers by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import RLock
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
from ...common.files import shorten_paths
from ...common.json_file import JsonObject
from .. import GgufModel, LoadedModel
from ..base import input_device
from ..model_snapshot import unwrap
from .devices import (
    DTYPES,
    DeviceMap,
    check_device_map,
    check_dtype,
    pick_device,
    require_accelerate,
    single_device_map,
)
from .draft_folder import MARK, load_saved_draft
from .eagle3_folder import is_eagle3, load_eagle3
from .generation_defaults import stop_tokens
from .gguf_tokenizer import load_gguf_tokenizer
from .model_files import Source, check_format, find_files, gguf_path, is_gguf, refusing
from .progress_bars import without_loading_bars

PIECES = ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model")  # SentencePiece's files


class LoadingLock:
    """Lets one thread load models at a time.

    transformers replaces ``PreTrainedModel.tie_weights`` while it reads weights. Of two loads at once, one may leave
    the replacement in place, so that the weights of later models are not tied. A forked child has a lock of its own,
    because the thread that holds the lock does not exist there.
    """

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()


_loading = LoadingLock()


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
    """Load a causal language model or an encoder-decoder, in evaluation mode and without gradients.

    A checkpoint with quantised weights (bitsandbytes, GPTQ, AWQ, compressed-tensors, torchao, FP8, …) can be loaded if
    the library for its format is installed; ``dtype="auto"`` is then the precision that it was made for.

    Args:
        name: an included model such as ``tiny`` (see ``specpilot.checkpoints``), a folder in transformers' format, or a
            hub id.
        dtype: ``float32``, ``bfloat16``, ``float16``, ``float64``, or ``auto``, the checkpoint's precision.
        device: the device of the whole model: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, …
        revision: branch, tag or commit on the hub.
        trust_remote_code: whether code in the checkpoint may run.
        decoder_only: whether an encoder-decoder is refused before its weights are downloaded.
        device_map: spread the model over devices with accelerate: ``auto``, or a device for each module name, such as
            ``{"model.layers": 0, "model.norm": "cpu", "lm_head": "disk", …}``.
        offload_folder: folder for weights on ``disk`` that cannot be read from the checkpoint directly.
        target: the target that the model drafts for, or its name; a named target is loaded if the draft uses its
            weights.

    Raises:
        InputError: there is no such model, it is not a language model, a file is damaged or incomplete, a required
            library is missing, or a device does not exist here or does not support the dtype.
    """
    if dtype not in DTYPES:
        raise InputError(f"dtype={dtype!r}: choose one of {', '.join(DTYPES)}")
    if device_map is not None:
        check_device_map(device_map, device)
        device_map = single_device_map(device_map)
    elif offload_folder is not None:
        raise InputError(
            f"offload_folder={str(offload_folder)!r}: only a device_map offloads; give one, or leave it out"
        )
    with _loading:
        placed_on = pick_device(device)
        check_dtype(DTYPES[dtype], placed_on)
        source = find_files(name, revision)
        options: dict[str, Any] = {"trust_remote_code": trust_remote_code, **source.hub}
        check_format(name, source)
        lender = partial(_load_target, target, dtype, device, trust_remote_code)
        keys = _config_keys(name, source)
        if is_eagle3(keys):
            if device_map is not None:
                raise InputError(f"device_map: {name} is an EAGLE-3 draft, which is on one device; leave it out")
            with refusing(name, "cannot be loaded as an EAGLE-3 draft"):
                model = load_eagle3(
                    name, source.path, keys, lender=lender, dtype=DTYPES[dtype], device=placed_on, **source.hub
                )  # fmt: skip
            return model.eval().requires_grad_(False)  # type: ignore[no-any-return]
        with refusing(name, "cannot be loaded as a language model"):
            config = AutoConfig.from_pretrained(source.path, **options)
        if config.is_encoder_decoder and decoder_only:
            raise InputError(f"{name}: an encoder-decoder model; a causal (decoder-only) language model is needed")
        if vars(config).get(MARK) is not None:
            if device_map is not None:
                raise InputError(
                    f"device_map: {name} is a draft made by specpilot, which is on one device; leave it out"
                )
            with refusing(name, "cannot be loaded as a draft"):
                model = load_saved_draft(
                    name, source.path, config, lender=lender, dtype=DTYPES[dtype], device=placed_on, **options
                )
            return model.eval().requires_grad_(False)  # type: ignore[no-any-return]
        options |= {"dtype": DTYPES[dtype], "device_map": device_map, "offload_folder": offload_folder}
        model = _read_weights(name, source.path, config, placed_on, options)
        if source.adapter is not None:
            model = _add_adapter(name, source.adapter, model)
        return model.eval().requires_grad_(False)  # type: ignore[no-any-return]


def _read_weights(
    name: str | Path, path: str, config: PreTrainedConfig, device: torch.device, options: dict[str, Any]
) -> PreTrainedModel:
    """Load a model that transformers can read, onto ``device`` or by the device map of ``options``.

    Args:
        name: the model's name, for messages.
        path: its folder or hub id.
        config: its configuration.
        device: the device.
        options: keywords of ``from_pretrained``.

    Raises:
        InputError: a file is damaged or incomplete, or a required library is missing.
    """
    quantised = _quantisation(name, config)
    problem = "cannot be loaded as a language model"
    if quantised is not None:
        problem = f"its weights are quantised with {quantised} and cannot be loaded here"
        if options["device_map"] is None:  # such weights are loaded onto their device and cannot be moved
            require_accelerate(f"{name}: weights quantised with {quantised}")
            options = options | {"device_map": {"": str(device)}}
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with refusing(name, problem), without_loading_bars():
        loaded: Any = kind.from_pretrained(
            path,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # _check_complete refuses these with the names of the weights
            output_loading_info=True,
            **options,
        )
    model, report = loaded
    _check_complete(name, report)
    if options["device_map"] is None:
        check_dtype(model.dtype, device)
        model = model.to(device)
    return model  # type: ignore[no-any-return]


def _add_adapter(name: str | Path, adapter: Source, model: PreTrainedModel) -> PreTrainedModel:
    """Return ``model`` with an adapter in its layers.

    Raises:
        InputError: the adapter does not fit.
    """
    from peft import PeftModel

    with refusing(name, "its adapter does not fit its base model"):
        wrapped = PeftModel.from_pretrained(model, adapter.path, torch_device=str(input_device(model)), **adapter.hub)
    model = unwrap(wrapped, str(name))
    model.config._name_or_path = str(name)
    return model


def _load_target(
    target: LoadedModel | str | Path | None, dtype: str, device: str, trust_remote_code: bool
) -> LoadedModel | None:
    """Return the target; load it if ``target`` is a name."""
    if not isinstance(target, str | Path):
        return target
    return load_any_model(target, dtype=dtype, device=device, trust_remote_code=trust_remote_code)


def load_any_model(name: str | Path, **options: Any) -> LoadedModel:
    """Load a GGUF file with llama.cpp, or any other model with :func:`load_model`.

    Args:
        name: the path of a GGUF file, or a name as for :func:`load_model`.
        options: keywords of :func:`load_model`.

    Raises:
        InputError: the model cannot be loaded, or a GGUF model does not have an option.
    """
    if not is_gguf(name):
        return load_model(name, **options)
    if options.get("device", "auto") not in ("auto", "cpu"):
        raise InputError(f"device={options['device']!r}: llama.cpp runs {name} on the CPU; use 'auto' or 'cpu'")
    options.pop("target", None)
    for option in ("device_map", "offload_folder", "revision"):
        if options.get(option) is not None:
            raise InputError(f"{option}={options[option]!r}: not supported for {name}, a GGUF file; leave it out")
    return GgufModel(gguf_path(name), options.get("dtype", "float32"))


def has_tokenizer(name: str | Path) -> bool:
    """Return true if the model ``name`` has a tokenizer; EAGLE-3 drafts have none.

    Raises:
        InputError: there is no such model.
    """
    return is_gguf(name) or not is_eagle3(_config_keys(name, find_files(name)))


def _config_keys(name: str | Path, source: Source) -> JsonObject:
    """Return the keys of the model's ``config.json``."""
    with refusing(name, "cannot be loaded as a language model"):
        keys, _ = PreTrainedConfig.get_config_dict(source.path, **source.hub)
    return keys


def load_tokenizer(
    name: str | Path, *, revision: str | None = None, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of the model ``name``, which may be a GGUF file.

    Raises:
        InputError: the model has no tokenizer, or it cannot be loaded.
    """
    if is_gguf(name):
        return load_gguf_tokenizer(gguf_path(name))
    source = find_files(name, revision)
    if is_eagle3(_config_keys(name, source)):
        raise InputError(f"{name}: an EAGLE-3 draft, which has no tokenizer; give it as the draft of a decoder")
    source = source.tokenizer_source
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
    """Return the ids that end texts of the model ``name``, without loading its weights.

    Raises:
        InputError: there is no such model.
    """
    if is_gguf(name):
        return stop_tokens(None, tokenizer)
    source = find_files(name)
    options: dict[str, Any] = {**source.hub}
    with refusing(name, "its configuration cannot be read"):
        try:
            generation_config = GenerationConfig.from_pretrained(source.path, **options)
        except OSError:  # without a file, transformers makes it of the model's configuration
            config = AutoConfig.from_pretrained(source.path, trust_remote_code=trust_remote_code, **options)
            generation_config = GenerationConfig.from_model_config(config)
    return stop_tokens(generation_config.eos_token_id, tokenizer)


def check_same_tokenizer(target: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase, role: str = "draft") -> None:
    """Check that ids stand for the same tokens in the target's tokenizer and in ``other``.

    Args:
        target: the target's tokenizer.
        other: the tokenizer of the draft, or another tokenizer for the target.
        role: the role of ``other``, for messages.

    Raises:
        InputError: an id stands for different tokens; the message names the first difference.
    """
    target_ids, other_ids = target.get_vocab(), other.get_vocab()
    if target_ids != other_ids:
        differing = sorted(
            token for token in target_ids.keys() | other_ids.keys() if target_ids.get(token) != other_ids.get(token)
        )
        token = differing[0]
        names = [shorten_paths(tokenizer.name_or_path) for tokenizer in (target, other)]
        raise InputError(
            f"target {names[0]} and {role} {names[1]} do not share a tokenizer: they differ in "
            f"{counted(len(differing), 'token')}, the first is {token!r} (id {target_ids.get(token)} and "
            f"{other_ids.get(token)}); name a {role} of the target's family"
        )


def _quantisation(name: str | Path, config: PreTrainedConfig) -> str | None:
    """Return the format of a checkpoint's quantised weights; None if they are not quantised.

    Raises:
        InputError: transformers does not support the format, and would read the weights as if they were not quantised.
    """
    for part in (config, config.get_text_config(decoder=True)):
        quantization = vars(part).get("quantization_config")
        if quantization is not None:
            break
    else:
        return None
    with refusing(name, "its quantization_config is damaged"):
        method, is_supported = quantization.get("quant_method"), AutoHfQuantizer.supports_quant_method(quantization)
    if not is_supported:
        raise InputError(
            f"{name}: weights quantised with {method!r}, which transformers does not read; choose other weights"
        )
    return str(method or "bitsandbytes")


def _check_complete(name: str | Path, report: Mapping[str, Any]) -> None:
    """Check that the files have all weights in the model's shapes.

    Args:
        report: the loading report of transformers.

    Raises:
        InputError: weights are missing, or have another shape.
    """
    mismatched = sorted(report["mismatched_keys"])
    if mismatched:
        _, stored, expected = mismatched[0]
        raise InputError(
            f"{name}: the weights {listed([key for key, *_ in mismatched], 1)} do not have the shape of config.json "
            f"({tuple(stored)} instead of {tuple(expected)}); fetch the model again"
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise InputError(f"{name}: the weights {listed(missing, 1)} are missing from its files; fetch the model again")
