"""Models and tokenizers, loaded by name onto a device."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.quantizers.auto import AutoHfQuantizer

from ..controllers.errors import InputError
from .model_files import find_files, one_line

DTYPES: dict[str, torch.dtype | Literal["auto"]] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
    "auto": "auto",
}
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")  # computed by accelerate

DeviceMap = str | Mapping[str, str | int]


def pick_device(device: str) -> torch.device:
    """``"auto"`` is CUDA where there is one, else the CPU; anything else is taken at its word.

    Raises:
        InputError: the device does not exist here.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return _existing(device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"device={device!r}: not available on this machine; use 'auto' or 'cpu'") from error


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

    Raises:
        InputError: there is no such model, it is no language model, a file of it is damaged or incomplete, a library it
            needs is missing, or a device does not exist here or has no such dtype.
    """
    if dtype not in DTYPES:
        raise InputError(f"dtype={dtype!r}: choose one of {', '.join(DTYPES)}")
    if device_map is not None:
        _check_device_map(device_map, device)
    elif offload_folder is not None:
        raise InputError(
            f"offload_folder={str(offload_folder)!r}: only a device_map offloads; give one, or leave it out"
        )
    place = pick_device(device)
    check_dtype(DTYPES[dtype], place)
    source = find_files(name, revision)
    options: dict[str, Any] = {
        "revision": revision,
        "trust_remote_code": trust_remote_code,
        "local_files_only": source.local_files_only,
    }
    with _refusing(name, "cannot be loaded as a language model"):
        config = AutoConfig.from_pretrained(source.path, **options)
    if config.is_encoder_decoder and decoder_only:
        raise InputError(f"{name}: an encoder-decoder model; a causal (decoder-only) language model is needed")

    quantised = _quantisation(name, config)
    if device_map is None and quantised is not None:  # weights in such a format are loaded in place, never moved
        _require_accelerate(f"{name}: weights quantised with {quantised}")
        device_map = {"": str(place)}
    problem = "cannot be loaded as a language model"
    if quantised is not None:
        problem = f"its weights are quantised with {quantised} and cannot be loaded here"
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with _refusing(name, problem):
        loaded: Any = kind.from_pretrained(
            source.path,
            dtype=DTYPES[dtype],
            device_map=device_map,
            offload_folder=offload_folder,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            output_loading_info=True,
            **options,
        )
    model, report = loaded
    _check_complete(name, report)
    if device_map is None:
        check_dtype(model.dtype, place)
        model = model.to(place)
    return model.eval().requires_grad_(False)  # type: ignore[no-any-return]


load_causal_lm = partial(load_model, decoder_only=True)  # what datasets, training and benchmarks are made for


def load_tokenizer(
    name: str | Path, *, revision: str | None = None, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer that belongs to the model ``name``.

    Raises:
        InputError: there is none.
    """
    source = find_files(name, revision)
    with _refusing(name, "has no tokenizer that can be loaded"):
        return AutoTokenizer.from_pretrained(
            source.path,
            revision=revision,
            trust_remote_code=trust_remote_code,
            local_files_only=source.local_files_only,
        )


def check_same_tokenizer(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> None:
    """Target and draft must give every id the same meaning.

    Raises:
        InputError: they don't; names the first difference.
    """
    ours, theirs = target.get_vocab(), draft.get_vocab()
    if ours != theirs:
        differing = sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
        token = differing[0]
        raise InputError(
            f"target and draft do not share a tokenizer: {len(differing)} tokens differ, the first is {token!r} "
            f"(id {ours.get(token)} in the target, {theirs.get(token)} in the draft); choose a draft of the same family"
        )


def check_dtype(dtype: torch.dtype | Literal["auto"], device: torch.device) -> None:
    """Refuse a dtype that ``device`` does not have.

    Raises:
        InputError: float64 on an Apple GPU.
    """
    if dtype == torch.float64 and device.type == "mps":
        raise InputError(f"dtype='float64': not available on device='{device}'; use dtype='float32' or device='cpu'")


def is_dispatched(model: nn.Module) -> bool:
    """Whether accelerate's hooks move this model's inputs and weights, because a device map spread it.

    Weights on ``cpu`` beside a GPU, or on ``disk``, are then on the ``meta`` device outside their module's forward, and
    only calling the modules gives results; ``model.to`` raises.
    """
    return any(_hook(module) is not None for module in model.modules())


def input_device(model: PreTrainedModel) -> torch.device:
    """The device on which ``model``'s input embeddings are computed: where to put token ids.

    ``model.device``, the first parameter's, is ``meta`` where that parameter is offloaded.
    """
    embeddings: Any = model.get_input_embeddings()
    hook = _hook(embeddings)
    return torch.device(embeddings.weight.device if hook is None else hook.execution_device)


def _hook(module: nn.Module) -> Any:
    """The hook accelerate put on ``module``, or None."""
    return vars(module).get("_hf_hook")


def _check_device_map(device_map: DeviceMap, device: str) -> None:
    """Refuse a device map beside a device, without accelerate, or with devices that do not exist here."""
    if device != "auto":
        raise InputError(f"device={device!r} and device_map={device_map!r}: both place the model; give one of them")
    _require_accelerate(f"device_map={device_map!r}")
    if not device_map:
        raise InputError(f"device_map={device_map!r}: empty; give 'auto', or a device for each module")
    if isinstance(device_map, str):
        places: list[str | int] = [] if device_map in DEVICE_MAPS else [device_map]
    else:
        places = [place for place in device_map.values() if place != "disk"]
    for place in places:
        try:
            _existing(place)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise InputError(
                f"device_map={device_map!r}: {place!r} is not available on this machine; use 'auto', or give each "
                "module 'cpu', 'disk' or a device that is"
            ) from error


def _existing(device: str | int) -> torch.device:
    """The device, which must hold tensors; raises what torch raises where it does not exist."""
    chosen = torch.device(device)
    torch.empty(0, device=chosen)
    if chosen.type == "meta":
        raise NotImplementedError("tensors on the meta device have no values")
    return chosen


def _require_accelerate(what: str) -> None:
    if find_spec("accelerate") is None:
        raise InputError(f"{what}: needs the package accelerate; pip install accelerate")


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
    with _refusing(name, "its quantization_config is damaged"):
        method, known = found.get("quant_method"), AutoHfQuantizer.supports_quant_method(found)
    if not known:
        raise InputError(f"{name}: weights quantised with {method!r}, which transformers does not read; take others")
    return str(method or "bitsandbytes")


def _check_complete(name: str | Path, report: Mapping[str, Any]) -> None:
    """Refuse weights that are missing or have another shape than the model's."""
    mismatched = sorted(report["mismatched_keys"])
    if mismatched:
        weight, found, needed = mismatched[0]
        raise InputError(
            f"{name}: {weight} and {len(mismatched) - 1} more weights do not have the shape config.json asks for "
            f"({tuple(found)} instead of {tuple(needed)}); fetch the model again"
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise InputError(f"{name}: the weights of {missing[0]} and {len(missing) - 1} more are missing from its files")


@contextmanager
def _refusing(name: str | Path, problem: str) -> Iterator[None]:
    """Turn whatever transformers raises over a checkpoint's files into one line: they may hold anything."""
    try:
        yield
    except InputError:
        raise
    except SafetensorError as error:
        raise InputError(f"{name}: a weight file is truncated or damaged ({error}); fetch it again") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{name}: {problem}: a file is damaged, not JSON ({error}); fetch it again") from error
    except Exception as error:
        raise InputError(f"{name}: {problem} ({one_line(error)})") from error
