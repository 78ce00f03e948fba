"""Language models behind one protocol, and their KV caches.

:func:`language_model` wraps a loaded model. The rest of the package uses only the interface of :class:`LanguageModel`.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from .base import LanguageModel, LoadedModel, TextReader, count_parameters, output_embedding
from .causal_lm import CausalLM
from .early_exit import EarlyExit
from .encoder_decoder import EncoderDecoder
from .forwards import Graphs
from .gguf_model import GgufModel
from .kv_cache import RaggedKVCache
from .lean_forward import LeanForward
from .linear import Quantization, not_quantized, packing_obstacle
from .llama_cpp import LlamaCpp
from .read import Read, TreeMask, ancestors_of
from .self_check import check_reading_in_parts
from .text_cache import TextCache

__all__ = [
    "CausalLM",
    "EarlyExit",
    "EncoderDecoder",
    "GgufModel",
    "LanguageModel",
    "LlamaCpp",
    "LoadedModel",
    "RaggedKVCache",
    "Read",
    "TextCache",
    "TextReader",
    "TreeMask",
    "ancestors_of",
    "count_parameters",
    "language_model",
    "output_embedding",
]


def language_model(
    model: LoadedModel, *, quantization: Quantization | None = None, graphs: Graphs = "on"
) -> LanguageModel:
    """Wrap a decoder-only or encoder-decoder ``model``, or a GGUF model.

    Args:
        model: the loaded model.
        quantization: number format of 8 or 4 bits to which a draft's weights are rounded; None for no rounding.
        graphs: whether CUDA graphs replay short forwards on a GPU (:mod:`.static_forward`); ``"compiled"`` also
            compiles the small kernels of these forwards.

    Raises:
        InputError: the architecture cannot be decoded exactly, or its weights cannot be rounded.
    """
    if quantization is not None:
        reason = "it is a GGUF file" if isinstance(model, GgufModel) else rounding_obstacle(model)
        if reason is not None:
            raise not_quantized(quantization, model.name_or_path or "this draft", reason)
    if isinstance(model, GgufModel):
        return LlamaCpp(model)
    if model.config.is_encoder_decoder:
        return EncoderDecoder(model, quantization)
    wrapped = CausalLM(model, quantization, graphs)
    check_reading_in_parts(wrapped)
    return wrapped


def rounding_obstacle(model: PreTrainedModel) -> str | None:
    """Return the reason why the weights of ``model`` cannot be rounded, as a clause; None if they can."""
    if model.dtype != torch.bfloat16:
        return f"they are in {str(model.dtype).removeprefix('torch.')}, not bfloat16"
    return None if LeanForward.fits(model) else packing_obstacle(model)
