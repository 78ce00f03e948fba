"""Tokenizers and chat templates in GGUF files, as tokenizers of transformers."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ...common.errors import InputError, optional_import
from ..gguf_model import GgufFile, GgufModel
from .model_files import error_line

TOKENIZER_KEY = "tokenizer.huggingface.json"  # the key with the tokenizer of transformers, which some files have
# Names in llama.cpp of GPT-2's split with single digits, for which transformers' reader uses GPT-2's split.
SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
CONTROL = 3  # ggml's type of special tokens


def load_gguf_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer in the GGUF file ``path``.

    If the file contains the tokenizer of transformers, this is returned. Otherwise llama.cpp's is converted.

    Raises:
        InputError: there is no tokenizer that transformers can represent.
    """
    metadata = GgufFile(path).metadata
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    serialized = (
        metadata[TOKENIZER_KEY] if TOKENIZER_KEY in metadata else _convert_tokenizer(path, metadata, len(tokens))
    )
    keys = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "pad_token": "padding_token_id"}
    ids = {name: metadata.get(f"tokenizer.ggml.{key}") for name, key in keys.items()}
    special = {name: tokens[index] for name, index in ids.items() if index is not None}
    types = metadata.get("tokenizer.ggml.token_type", [])
    control_tokens = [token for token, kind in zip(tokens, types, strict=False) if kind == CONTROL]
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(serialized),
        extra_special_tokens=[token for token in control_tokens if token not in special.values()],
        chat_template=metadata.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        name_or_path=str(path),
        **special,
    )


def _convert_tokenizer(path: Path, metadata: dict[str, Any], size: int) -> str:
    """Convert llama.cpp's tokenizer to the content of a ``tokenizer.json``, with the reader of transformers.

    Raises:
        InputError: transformers cannot convert it.
    """
    with optional_import("gguf"):
        import gguf  # noqa: F401 — older versions of transformers read the file by it
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    except Exception as error:  # transformers' readers raise any type of error for unknown tokenizers
        raise InputError(
            f"{path}: its vocabulary cannot be converted ({error_line(error)}); name a tokenizer (--tokenizer)"
        ) from error
    if metadata.get("tokenizer.ggml.pre") in SINGLE_DIGITS:
        split = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
        tokenizer.backend_tokenizer.pre_tokenizer = split
    serialized = json.loads(tokenizer.backend_tokenizer.to_str())
    # Some classes add special tokens that the model does not have.
    serialized["added_tokens"] = [token for token in serialized["added_tokens"] if token["id"] < size]
    return json.dumps(serialized)


PROBE = "In 1998 the Hare's 12,345 km² café-run — naïve? — cost $3.50;\n\n\tif x != y:  return {x: [1, 22, 333]}"


def check_gguf_tokens(file: GgufFile, tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that ids stand for the same tokens in a model's file and in ``tokenizer``.

    Raises:
        InputError: an id stands for different tokens; the message names the first such id.
    """
    tokens = file.metadata.get("tokenizer.ggml.tokens", [])
    vocabulary = tokenizer.get_vocab()
    differing = sorted(index for token, index in vocabulary.items() if index >= len(tokens) or tokens[index] != token)
    if differing:
        index = differing[0]
        file_token = repr(tokens[index]) if index < len(tokens) else "nothing"
        raise InputError(
            f"{file.path}: is of another tokenizer: {len(differing)} tokens differ, the first is id {index}, "
            f"{tokenizer.convert_ids_to_tokens(index)!r} in the tokenizer and {file_token} in the file; give a model "
            "of the same family"
        )


def check_gguf_tokenizer(model: GgufModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Compare ``tokenizer`` with the one in a model's file: all tokens, and the split of an example text.

    A different split gives a warning, because the model would continue another sequence of tokens than with llama.cpp.

    Raises:
        InputError: an id stands for different tokens.
    """
    check_gguf_tokens(model.file, tokenizer)
    if list(tokenizer(PROBE, add_special_tokens=False)["input_ids"]) != model.tokenize(PROBE):
        warnings.warn(
            f"{model.name_or_path}: the tokenizer splits text otherwise than llama.cpp does; name the model's own by "
            "tokenizer (--tokenizer)",
            stacklevel=4,
        )
