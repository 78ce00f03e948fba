"""Language models behind one protocol, and their KV caches.

``language_model`` wraps a model of transformers; the rest of the package uses only the interface of
:class:`LanguageModel`.
"""

from __future__ import annotations

from transformers import PreTrainedModel

from .base import LanguageModel, Read
from .causal_lm import CausalLM
from .early_exit import EarlyExit
from .encoder_decoder import EncoderDecoder
from .kv_cache import RaggedKVCache
from .text_reader import TextReader
from .tree_mask import TreeMask, ancestors_of

__all__ = [
    "CausalLM",
    "EarlyExit",
    "EncoderDecoder",
    "LanguageModel",
    "RaggedKVCache",
    "Read",
    "TextReader",
    "TreeMask",
    "ancestors_of",
    "language_model",
]


def language_model(model: PreTrainedModel, *, compile: bool = False) -> CausalLM:
    """Wrap a decoder-only or encoder-decoder ``model``.

    Raises:
        InputError: the architecture cannot be decoded exactly.
    """
    wrapped = EncoderDecoder(model) if model.config.is_encoder_decoder else CausalLM(model)
    if compile:
        wrapped.compile()
    return wrapped
