"""Language models behind one protocol, and their KV caches.

``language_model`` puts a model of transformers behind it; everything else in the package asks for no more than
:class:`LanguageModel` has.
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
    """``model`` behind the protocol, whichever kind it is.

    Raises:
        InputError: it is of a kind that cannot be decoded exactly.
    """
    wrapped = EncoderDecoder(model) if model.config.is_encoder_decoder else CausalLM(model)
    if compile:
        wrapped.compile()
    return wrapped
