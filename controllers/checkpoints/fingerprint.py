"""Fingerprints of a model pair: hashes of target, draft and tokenizer that saving and loading do not change.

A model's hash covers its configuration and a digest of its weights, because a head trained for one draft does not fit
another draft of the same shape. The hash of a checkpoint is the same in float32, float64, bfloat16 and float16.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...common.errors import InputError
from .stored_weights import sample, stored_samples

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

# Keys of a configuration that describe its origin or its execution, not the computed function.
VOLATILE = frozenset(
    {
        *("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype", "use_cache"),
        *("output_attentions", "output_hidden_states", "return_dict", "problem_type", "id2label", "label2id"),
        *("chunk_size_feed_forward", "initializer_range", "pretraining_tp", "_attn_implementation", "auto_map"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "sep_token_id"),
    }
)


def config_fingerprint(config: PreTrainedConfig) -> str:
    """Return the SHA-256 (hexadecimal) of the architecture described by ``config``, as canonical JSON.

    Values that equal the class's defaults are left out, so that a new field in a version of the library does not change
    the hash.
    """
    values, defaults = config.to_dict(), type(config)().to_dict()
    settings = {
        key: value
        for key, value in values.items()
        if key == "model_type" or (key not in VOLATILE and value is not None and value != defaults.get(key))
    }
    return _sha256_json(settings)


def weights_digest(module: nn.Module, stored: Mapping[str, Tensor] | None = None) -> str:
    """Return the SHA-256 (hexadecimal) of name, shape and up to 64 evenly spaced values of each parameter.

    The values are rounded to bfloat16.

    Args:
        module: the model.
        stored: values to use instead of the module's, by parameter name.

    Raises:
        InputError: a parameter is offloaded and not in ``stored``.
    """
    digest = hashlib.sha256()
    with torch.no_grad():
        for name, parameter in sorted(module.named_parameters()):
            digest.update(f"{name}:{tuple(parameter.shape)}:".encode())
            if parameter.is_meta and name not in (stored or {}):
                raise InputError(
                    f"device_map: {name} is offloaded and not found in the model's files; load the model without a "
                    "device map, or on devices that hold all of it"
                )
            values = stored[name] if stored and name in stored else sample(parameter).float().cpu()
            digest.update(values.to(torch.bfloat16).view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


class FingerprintedModel(ABC):
    """A model that does not come from transformers and computes its hash itself."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return the SHA-256 (hexadecimal) of the architecture and the weights."""


def model_fingerprint(model: PreTrainedModel | FingerprintedModel) -> str:
    """Return the SHA-256 (hexadecimal) of a model's architecture and of a digest of its weights.

    For a float16 model and for offloaded weights, the values in the model's safetensors files are used (see
    :mod:`.stored_weights`). If the files of a float16 model are missing, the values in memory are used, and the
    fingerprint differs from that of the model in float32.
    """
    if isinstance(model, FingerprintedModel):
        return model.fingerprint()
    return _sha256_json([config_fingerprint(model.config), weights_digest(model, stored_samples(model))])


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the SHA-256 (hexadecimal) of vocabulary, merges and special tokens, which saving does not change."""
    if tokenizer.is_fast:
        vocabulary = json.loads(tokenizer.backend_tokenizer.to_str())
        for state in ("truncation", "padding"):  # set by the last call of the tokenizer
            vocabulary.pop(state, None)
    else:
        vocabulary = tokenizer.get_vocab()
    special = {name: tokenizer.convert_tokens_to_ids(token) for name, token in tokenizer.special_tokens_map.items()}
    return _sha256_json([vocabulary, special])


@dataclass(frozen=True)
class PairFingerprint:
    """Hashes of a target, its draft (None for a router) and their tokenizer, each of 64 hexadecimal digits."""

    target: str
    draft: str | None
    tokenizer: str

    @classmethod
    def of(
        cls,
        target_model: PreTrainedModel | FingerprintedModel,
        draft_model: PreTrainedModel | FingerprintedModel,
        tokenizer: PreTrainedTokenizerBase,
    ) -> PairFingerprint:
        """Return the hashes of two models and their tokenizer."""
        return cls(model_fingerprint(target_model), model_fingerprint(draft_model), tokenizer_fingerprint(tokenizer))

    def to_dict(self) -> dict[str, str | None]:
        return asdict(self)


def _sha256_json(value: object) -> str:
    """Return the SHA-256 (hexadecimal) of ``value`` as canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()
