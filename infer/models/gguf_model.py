"""A GGUF model, loaded by llama.cpp: its weights once, for any number of contexts."""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from ...common.errors import InputError
from ...controllers.checkpoints.fingerprint import FingerprintedModel
from .gguf_file import GgufFile
from .llama_context import LlamaContext, first_error, library

SMALL = 8 << 20  # bytes of weights that several threads read no faster than one
CACHE_KINDS = {"float32": 0, "float16": 1, "bfloat16": 30, "auto": 1}  # ggml's types of keys and values, by dtype


@dataclass(frozen=True)
class GgufConfig:
    """The part of a configuration of transformers that is asked for whatever runs the model."""

    model_type: str
    is_encoder_decoder: bool = False


class GgufModel(FingerprintedModel):
    """A model in a GGUF file.

    Attributes:
        file: its metadata and tensors.
        config: its kind, as of a model of transformers.
        generation_config: the token that ends a text, by the file.
        training: never.
        vocab_size, hidden_size, context: as for ``LanguageModel``.
        parameters: how many it has.
        threads: that share its work: PyTorch's number, one for a small model.

    Args:
        dtype: of keys and values: ``float32``, ``float16``, ``bfloat16``; ``auto`` is llama.cpp's own, float16. Weights
            are computed with as they are in the file.

    Raises:
        InputError: the extra ``gguf`` is missing, the file is damaged, or the model is none that llama.cpp knows and
            that can be rolled back.
    """

    training = False

    def __init__(self, path: Path, dtype: str = "float32") -> None:
        if dtype not in CACHE_KINDS:
            raise InputError(f"dtype={dtype!r}: a GGUF model's keys and values are {', '.join(CACHE_KINDS)}")
        llama = library()
        self.file = GgufFile(path)
        self.name_or_path = str(path)
        self.device, self.dtype = torch.device("cpu"), torch.float32  # of its logits
        self._kind = CACHE_KINDS[dtype]
        settings = llama.llama_model_default_params()
        settings.n_gpu_layers = 0
        _ = first_error()  # of something else
        pointer = llama.llama_model_load_from_file(str(path).encode(), settings)
        if not pointer:
            raise InputError(f"{path}: llama.cpp cannot load it ({first_error()}); fetch it again, or another model")
        self.pointer = ctypes.c_void_p(pointer)
        weakref.finalize(self, llama.llama_model_free, self.pointer)
        self._check(llama)
        vocabulary = llama.llama_model_get_vocab(self.pointer)
        self.vocab_size = int(llama.llama_vocab_n_tokens(vocabulary))
        self.hidden_size = int(llama.llama_model_n_embd(self.pointer))
        self.context = int(llama.llama_model_n_ctx_train(self.pointer))
        self.parameters = int(llama.llama_model_n_params(self.pointer))
        self.threads = 1 if llama.llama_model_size(self.pointer) < SMALL else torch.get_num_threads()
        ends = [
            token
            for token in {int(llama.llama_vocab_eos(vocabulary)), int(llama.llama_vocab_eot(vocabulary))}
            if token >= 0
        ]
        self.generation_config = GenerationConfig(eos_token_id=sorted(ends) or None)
        self.config = GgufConfig(self.file.architecture)

    def _check(self, llama: Any) -> None:
        kind, problem = self.file.architecture, None
        if llama.llama_model_has_encoder(self.pointer) or not llama.llama_model_has_decoder(self.pointer):
            problem = "has an encoder; a decoder-only language model is needed"
        elif llama.llama_model_is_recurrent(self.pointer) or llama.llama_model_is_hybrid(self.pointer):
            problem = "keeps a recurrent state, which cannot be rolled back after a rejection"
        elif llama.llama_model_is_diffusion(self.pointer):
            problem = "generates by diffusion; an autoregressive model is needed"
        if problem is not None:
            raise InputError(f"{self.name_or_path}: {kind} {problem}")

    def new_context(self, cells: int, sequences: int) -> LlamaContext:
        """A context that reads with these weights."""
        return LlamaContext(
            self.pointer, self, cells=cells, sequences=sequences,
            vocab_size=self.vocab_size, hidden_size=self.hidden_size, kind=self._kind, threads=self.threads,
        )  # fmt: skip

    def tokenize(self, text: str) -> list[int]:
        """Token ids of ``text`` by llama.cpp's own tokenizer, special tokens among them where their text stands."""
        llama, data = library(), text.encode()
        vocabulary = llama.llama_model_get_vocab(self.pointer)
        tokens = (ctypes.c_int32 * (len(data) + 8))()
        count = llama.llama_tokenize(vocabulary, data, len(data), tokens, len(tokens), True, True)
        return list(tokens[: max(0, count)])

    def fingerprint(self) -> str:
        return self.file.fingerprint

    @cached_property
    def output_embedding(self) -> Tensor:
        """(V, d) what logits are computed with, float32."""
        tied = "output.weight" not in self.file.tensors
        return self.file.tensor("token_embd.weight" if tied else "output.weight")
