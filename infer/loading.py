"""Models and tokenizers by name: a shipped tiny model, a local folder, or an id on the Hugging Face hub."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ..checkpoints import shipped
from ..controllers.errors import InputError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


def pick_device(device: str) -> torch.device:
    """``"auto"`` is CUDA where there is one, else the CPU; anything else is taken at its word.

    Raises:
        InputError: the device does not exist here.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"device={device!r}: not available on this machine; use 'auto' or 'cpu'") from error
    return chosen


def load_model(
    name: str,
    *,
    dtype: str = "float32",
    device: str = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
    decoder_only: bool = False,
) -> PreTrainedModel:
    """A language model in evaluation mode, without gradients: a causal one or an encoder-decoder.

    Args:
        name: ``tiny`` and the like (see ``specpilot.checkpoints``), a folder in transformers' format, or a hub id.
        dtype: ``float32``, ``bfloat16``, ``float16`` or ``float64``.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, …
        decoder_only: refuse an encoder-decoder, before its weights are fetched.

    Raises:
        InputError: there is no such model, it is no language model, or its weights are truncated or incomplete.
    """
    if dtype not in DTYPES:
        raise InputError(f"dtype={dtype!r}: choose one of {', '.join(DTYPES)}")
    place = pick_device(device)
    source = _source(name)
    try:
        config = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=trust_remote_code)
        if config.is_encoder_decoder and decoder_only:
            raise InputError(f"{name}: an encoder-decoder model; a causal (decoder-only) language model is needed")
        kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        loaded: Any = kind.from_pretrained(
            source,
            revision=revision,
            trust_remote_code=trust_remote_code,
            dtype=DTYPES[dtype],
            use_safetensors=True,
            output_loading_info=True,
        )
    except InputError:
        raise
    except SafetensorError as error:
        raise InputError(f"{name}: a weight file is truncated or damaged ({error}); fetch it again") from error
    except (OSError, ValueError, RuntimeError) as error:  # not found, of another type, of the wrong shape
        raise InputError(f"{name}: cannot be loaded as a language model ({_first_line(error)})") from error
    model, report = loaded
    missing = sorted(report["missing_keys"])
    if missing:
        raise InputError(f"{name}: the weights of {missing[0]} and {len(missing) - 1} more are missing from its files")
    return model.to(place).eval().requires_grad_(False)  # type: ignore[no-any-return]


load_causal_lm = partial(load_model, decoder_only=True)  # what datasets, training and benchmarks are made for


def load_tokenizer(
    name: str, *, revision: str | None = None, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer that belongs to the model ``name``.

    Raises:
        InputError: there is none.
    """
    source = _source(name)
    try:
        return AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise InputError(f"{name}: has no tokenizer that can be loaded ({_first_line(error)})") from error


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


def _source(name: str) -> str:
    local = shipped(name)
    if local is not None:
        return str(local)
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError(f"{name}: the folder holds no config.json, so it is no model in transformers' format")
        return str(path)
    if path.exists() or name.startswith((".", "/", "~")):
        raise InputError(f"{name}: no such model folder")
    return name


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
