"""A GGUF model: the content of its file, and its weights, which llama.cpp loads once for any number of contexts.

The format is described in https://github.com/ggml-org/ggml/blob/master/docs/gguf.md: a header, key-value pairs, a table
of tensors, and the tensors' data, aligned. Integers are little-endian. :class:`GgufFile` takes 0.09 s of processor time
for the file of SmolLM2-135M (49,152 tokens). The reader of the package gguf, which is used to dequantise tensors, takes
2.7 s.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import mmap
import struct
import weakref
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from ..common.errors import InputError, optional_import
from ..common.files import check_no_pointer
from ..controllers.checkpoints.fingerprint import FingerprintedModel
from .llama_context import LlamaContext, first_error, library

SUFFIX = ".gguf"
MAGIC = b"GGUF"
VERSIONS = (2, 3)
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
ALIGNMENT = 32  # default alignment of the tensors' data, in bytes
DIMENSIONS = 4  # maximum number of dimensions of a tensor
SAMPLES = 64  # number of bytes of each tensor in the fingerprint
SMALL = 8 << 20  # bytes of weights below which several threads are no faster than one
CACHE_KINDS = {"float32": 0, "float16": 1, "bfloat16": 30, "auto": 1}  # ggml's types of keys and values, by dtype


@dataclass(frozen=True)
class TensorEntry:
    """A tensor in a GGUF file, without its data.

    Attributes:
        shape: the shape in the order of torch; the file has the reverse order.
        kind: the number of ggml's type, such as 0 for float32.
        offset: offset of the tensor's data in the file, in bytes.
    """

    shape: tuple[int, ...]
    kind: int
    offset: int


class GgufFile:
    """A file's metadata and table of tensors.

    Attributes:
        metadata: values by key; arrays are lists.
        tensors: entries by name, in the file's order.

    Raises:
        InputError: the file is not a GGUF file, or is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        check_no_pointer(path)
        try:
            with path.open("rb") as file:
                head = file.read(len(MAGIC))
                if head != MAGIC:
                    raise InputError(f"{path}: is not a GGUF file, although its name ends with .gguf; give a GGUF file")
                blob = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from error
        try:
            self._parse(Cursor(blob))
        except (struct.error, IndexError, UnicodeDecodeError, OverflowError, MemoryError, RecursionError) as error:
            raise InputError(f"{path}: the GGUF file is truncated or damaged; fetch it again") from error
        finally:
            blob.close()

    def _parse(self, cursor: Cursor) -> None:
        """Set ``metadata`` and ``tensors`` from the file's bytes."""
        cursor.offset = len(MAGIC)
        version, tensors, pairs = cursor.scalars("IQQ")
        if version not in VERSIONS:
            raise InputError(
                f"{self.path}: has GGUF version {version}; convert it to version {VERSIONS[0]} or {VERSIONS[1]}"
            )
        self.metadata: dict[str, Any] = {}
        for _ in range(pairs):
            key = cursor.string()
            (kind,) = cursor.scalars("I")
            self.metadata[key] = cursor.value(kind)
        entries = []
        for _ in range(tensors):
            name = cursor.string()
            (dimensions,) = cursor.scalars("I")
            if dimensions > DIMENSIONS:
                raise IndexError(f"{name} has {dimensions} dimensions")
            *sizes, kind, offset = cursor.scalars("Q" * dimensions + "IQ")
            entries.append((name, tuple(sizes[::-1]), kind, offset))
        alignment = self.metadata.get("general.alignment", ALIGNMENT)
        if type(alignment) is not int or alignment < 1:
            raise IndexError(f"general.alignment is {alignment!r}")
        start = -(-cursor.offset // alignment) * alignment
        self.tensors = {name: TensorEntry(shape, kind, start + offset) for name, shape, kind, offset in entries}
        if any(entry.offset > len(cursor.blob) for entry in self.tensors.values()):
            raise IndexError("a tensor begins behind the end")

    @property
    def architecture(self) -> str:
        """The architecture's name in llama.cpp."""
        return str(self.metadata.get("general.architecture", "unknown"))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hexadecimal) of the architecture's settings and of evenly spaced bytes of every tensor."""
        settings = {key: value for key, value in self.metadata.items() if key.startswith(f"{self.architecture}.")}
        digest = hashlib.sha256(json.dumps([self.architecture, settings], sort_keys=True).encode())
        ends = [*sorted(entry.offset for entry in self.tensors.values()), self.path.stat().st_size]
        following = dict(pairwise(ends))
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as blob:
            for name, entry in sorted(self.tensors.items()):
                digest.update(f"{name}:{entry.shape}:{entry.kind}:".encode())
                size = following[entry.offset] - entry.offset
                digest.update(bytes(blob[entry.offset + size * i // SAMPLES] for i in range(SAMPLES) if size > 0))
        return digest.hexdigest()

    def tensor(self, name: str) -> Tensor:
        """Return the values of the tensor ``name`` in float32, dequantised if necessary.

        Raises:
            InputError: the extra ``gguf`` is not installed, or does not support the tensor's type.
        """
        import numpy as np

        with optional_import("gguf"):
            from gguf import GGMLQuantizationType, dequantize
            from gguf.quants import quant_shape_to_byte_shape
        entry = self.tensors[name]
        kind = GGMLQuantizationType(entry.kind)
        if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
            plain = np.float32 if kind == GGMLQuantizationType.F32 else np.float16
            plain_values = np.memmap(self.path, plain, "r", entry.offset, entry.shape)
            return torch.from_numpy(np.array(plain_values, np.float32))
        shape = quant_shape_to_byte_shape(entry.shape, kind)
        try:
            values = dequantize(np.memmap(self.path, np.uint8, "r", entry.offset, shape), kind)
        except NotImplementedError as error:
            raise InputError(
                f"{self.path}: {name} is of type {kind.name}, which is not supported; give another file"
            ) from error
        return torch.from_numpy(np.ascontiguousarray(values, np.float32))


class Cursor:
    """Reads values from a file's bytes in order.

    Attributes:
        blob: the file's bytes.
        offset: offset of the next value in the file, in bytes.
    """

    def __init__(self, blob: mmap.mmap) -> None:
        self.blob, self.offset = blob, 0

    def scalars(self, layout: str) -> tuple[Any, ...]:
        """Read the scalars of ``layout``, in the notation of :mod:`struct`."""
        values = struct.unpack_from(f"<{layout}", self.blob, self.offset)
        self.offset += struct.calcsize(f"<{layout}")
        return values

    def string(self) -> str:
        """Read a string."""
        (length,) = self.scalars("Q")
        (value,) = self.scalars(f"{length}s")
        return str(value.decode())

    def value(self, kind: int) -> Any:
        """Read a value of the type ``kind``."""
        if kind in SCALARS:
            return self.scalars(SCALARS[kind])[0]
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            raise IndexError(f"no such type: {kind}")
        element, count = self.scalars("IQ")
        if element in SCALARS:
            return list(self.scalars(f"{count}{SCALARS[element]}"))
        return [self.value(element) for _ in range(count)]


@dataclass(frozen=True)
class GgufConfig:
    """The fields of a transformers configuration that the package reads for every model.

    Attributes:
        model_type: name of the architecture in llama.cpp.
        is_encoder_decoder: always false.
    """

    model_type: str
    is_encoder_decoder: bool = False


class GgufModel(FingerprintedModel):
    """A model in a GGUF file.

    Attributes:
        file: the file's metadata and tensors.
        config: the architecture, as in the configuration of a transformers model.
        generation_config: the tokens that end a text according to the file.
        training: always false.
        vocab_size, hidden_size, context: as for ``LanguageModel``.
        parameters: number of parameters.
        threads: number of threads of a forward: PyTorch's number, or one for a small model.

    Args:
        path: the file.
        dtype: precision of keys and values: ``float32``, ``float16``, ``bfloat16``; ``auto`` is llama.cpp's default,
            float16. Weights keep the precision of the file.

    Raises:
        InputError: the extra ``gguf`` is missing, the file is damaged, llama.cpp does not support the model, or the
            model cannot be rolled back.
    """

    training = False

    def __init__(self, path: Path, dtype: str = "float32") -> None:
        if dtype not in CACHE_KINDS:
            raise InputError(f"dtype={dtype!r}: a GGUF model's keys and values are {', '.join(CACHE_KINDS)}")
        llama = library()
        self.file = GgufFile(path)
        self.name_or_path = str(path)
        self.device, self.dtype = torch.device("cpu"), torch.float32  # of the logits
        self._kind = CACHE_KINDS[dtype]
        settings = llama.llama_model_default_params()
        settings.n_gpu_layers = 0
        _ = first_error()  # removes earlier messages
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
        """Check that the model is an autoregressive decoder whose cache can be rolled back.

        Raises:
            InputError: the model is no such decoder.
        """
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
        """Return a context for ``cells`` tokens in ``sequences`` sequences, which uses these weights."""
        return LlamaContext(
            self.pointer, self, cells=cells, sequences=sequences,
            vocab_size=self.vocab_size, hidden_size=self.hidden_size, kind=self._kind, threads=self.threads,
        )  # fmt: skip

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of ``text`` by llama.cpp's tokenizer; the text of a special token becomes its id."""
        llama, data = library(), text.encode()
        vocabulary = llama.llama_model_get_vocab(self.pointer)
        tokens = (ctypes.c_int32 * (len(data) + 8))()
        count = llama.llama_tokenize(vocabulary, data, len(data), tokens, len(tokens), True, True)
        return list(tokens[: max(0, count)])

    def fingerprint(self) -> str:
        return self.file.fingerprint

    @cached_property
    def output_embedding(self) -> Tensor:
        """The weights (V, d) that compute the logits, in float32."""
        tied = "output.weight" not in self.file.tensors
        return self.file.tensor("token_embd.weight" if tied else "output.weight")
