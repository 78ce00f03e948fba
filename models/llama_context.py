"""One context of llama.cpp: the keys and values of some sequences, and the batches that are read into them.

Calls use the library's functions as ``llama_cpp`` binds them, with pointers as plain integers and batches in numpy
arrays. Drafts are small, so that building a batch field by field would take longer than reading it.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..common.errors import InputError, optional_import

MAX_SEQUENCES = 256  # maximum number of sequences of a context in llama.cpp
BATCH = 512  # maximum number of tokens of one call of llama_decode
FLOAT32 = 0  # ggml's type
PAD = 256  # the number of cells of a context is a multiple of this

_LOG: list[str] = []  # llama.cpp's latest error messages, which it would otherwise print to standard error


@cache
def library() -> Any:
    """Load llama.cpp, initialise it, and return the module of its functions.

    The last 20 error messages of llama.cpp are stored; its other messages are discarded.

    Raises:
        InputError: the extra ``gguf`` is not installed, or its library cannot be loaded.
    """
    with optional_import("gguf"):
        try:
            from llama_cpp import llama_cpp
        except (OSError, RuntimeError) as error:
            raise InputError(
                f"llama_cpp: its library cannot be loaded ({error}); install specpilot[gguf] again"
            ) from None
    llama_cpp.llama_log_set(_CALLBACK, None)
    llama_cpp.llama_backend_init()
    return llama_cpp


ERROR = 4  # GGML_LOG_LEVEL_ERROR


def _store_error(level: int, text: bytes, data: object) -> None:
    """Store an error message of llama.cpp."""
    if level == ERROR:
        _LOG.append(text.decode(errors="replace").strip())
        del _LOG[:-20]


# A global, because llama.cpp calls it until the process ends.
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(_store_error)


def first_error() -> str:
    """Return the first stored error message of llama.cpp, which names the cause, and remove all stored messages."""
    message = _LOG[0] if _LOG else "it gives no reason"
    _LOG.clear()
    return message.partition(": ")[2] or message


class Entry(NamedTuple):
    """A token to read.

    Attributes:
        token: token id.
        position: number of tokens before it in its text.
        sequence: the sequence that it becomes part of; the token attends to earlier tokens of this sequence.
    """

    token: int
    position: int
    sequence: int


class LlamaContext:
    """A context with cells for ``cells`` tokens, which ``sequences`` sequences share.

    Args:
        model: llama.cpp's model.
        owner: the object that frees the model when nothing refers to the object any longer.
        vocab_size: V.
        hidden_size: d.
        kind: ggml's type of keys and values.
        threads: number of threads that read a batch.

    Attributes:
        states: whether hidden states are computed with the logits.

    Raises:
        InputError: there is not enough memory for the context.
    """

    def __init__(
        self,
        model: Any,
        owner: object,
        *,
        cells: int,
        sequences: int,
        vocab_size: int,
        hidden_size: int,
        kind: int,
        threads: int,
    ) -> None:
        llama, self.owner = library(), owner
        self.llama, self.cells, self.sequences = llama, cells, sequences
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        settings = llama.llama_context_default_params()
        settings.n_ctx, settings.n_seq_max = cells, sequences
        settings.n_batch = settings.n_ubatch = BATCH
        settings.n_threads = settings.n_threads_batch = threads
        settings.type_k = settings.type_v = kind
        settings.pooling_type = llama.LLAMA_POOLING_TYPE_NONE
        settings.embeddings = settings.kv_unified = settings.swa_full = True
        if kind == FLOAT32:  # flash attention rounds to float16, independently of the cache's type
            settings.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_DISABLED
        settings.no_perf = True
        pointer = llama.llama_init_from_model(model, settings)
        if not pointer:
            raise InputError(f"llama.cpp: no context for {cells} tokens ({first_error()}); give a shorter text")
        self.pointer = ctypes.c_void_p(pointer)
        self.close = weakref.finalize(self, llama.llama_free, self.pointer)
        self.memory = ctypes.c_void_p(llama.llama_get_memory(self.pointer))
        self.states = True
        self._batch = Batch(llama)
        self._views: dict[tuple[int, int, int], Tensor] = {}
        self._logits = _integer_function(llama, "llama_get_logits")
        self._states = _integer_function(llama, "llama_get_embeddings")

    def read(self, entries: Sequence[Entry]) -> tuple[Tensor, Tensor]:
        """Read n ``entries``, and return copies of their logits (n, V) and hidden states (n, d).

        Raises:
            RuntimeError: llama.cpp reports an error.
        """
        if not self.states:
            self.llama.llama_set_embeddings(self.pointer, True)
            self.states = True
        parts = []
        for start in range(0, len(entries), BATCH):
            batch = entries[start : start + BATCH]
            self._decode(self._batch.fill(batch, outputs=True))
            logits = self._view(self._logits, len(batch), self.vocab_size)
            parts.append((logits.clone(), self._view(self._states, len(batch), self.hidden_size).clone()))
        if len(parts) == 1:
            return parts[0]
        return torch.cat([logits for logits, _ in parts]), torch.cat([states for _, states in parts])

    def _view(self, function: Any, n: int, width: int) -> Tensor:
        """Return a view (n, width) of the numbers that ``function`` points to, which is valid until the next call."""
        address = function(self.pointer)
        view = self._views.get((address, n, width))
        if view is None:
            block = (ctypes.c_float * (n * width)).from_address(address)
            view = self._views[address, n, width] = torch.frombuffer(block, dtype=torch.float32).view(n, width)
        return view

    def read_without_outputs(self, entries: Sequence[Entry]) -> None:
        """Read ``entries`` without computing logits and hidden states.

        Raises:
            RuntimeError: llama.cpp reports an error.
        """
        if self.states:
            self.llama.llama_set_embeddings(self.pointer, False)
            self.states = False
        for start in range(0, len(entries), BATCH):
            self._decode(self._batch.fill(entries[start : start + BATCH], outputs=False))

    def _decode(self, batch: Any) -> None:
        """Run llama.cpp on a batch.

        Raises:
            RuntimeError: llama.cpp reports an error.
        """
        status = self.llama.llama_decode(self.pointer, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode: {status} ({first_error()})")

    def forget(self, sequence: int, start: int = 0) -> None:
        """Remove the tokens of ``sequence`` from position ``start`` on."""
        self.llama.llama_memory_seq_rm(self.memory, sequence, start, -1)

    def copy(self, source: int, to: int, start: int, end: int) -> None:
        """Let sequence ``to`` share the tokens of ``source`` at positions from ``start`` up to ``end``."""
        if start < end:
            self.llama.llama_memory_seq_cp(self.memory, source, to, start, end)


class Batch:
    """A ``llama_batch`` whose arrays are written through numpy views, which is faster than field by field.

    Args:
        llama: the module of llama.cpp's functions, see :func:`library`.
    """

    def __init__(self, llama: Any) -> None:
        self.struct = llama.llama_batch_init(BATCH, 0, 1)
        self.free = weakref.finalize(self, llama.llama_batch_free, self.struct)
        names = "token", "pos", "n_seq_id", "logits"
        self.tokens, self.positions, counts, self.outputs = (
            np.ctypeslib.as_array(getattr(self.struct, name), (BATCH,)) for name in names
        )
        counts[:] = 1  # a token belongs to one sequence
        self.sequences = [self.struct.seq_id[i] for i in range(BATCH)]

    def fill(self, entries: Sequence[Entry], outputs: bool) -> Any:
        """Return llama.cpp's batch of ``entries``, at most ``BATCH``; ``outputs``: whether all of them have results."""
        for i, (token, position, sequence) in enumerate(entries):
            self.tokens[i], self.positions[i], self.sequences[i][0] = token, position, sequence
        self.outputs[: len(entries)] = outputs
        self.struct.n_tokens = len(entries)
        return self.struct


def _integer_function(llama: Any, name: str) -> Any:
    """Return llama.cpp's function ``name`` of a context with an integer result, which is faster than a pointer."""
    return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)((name, llama._lib))
