"""The tokenizer and chat template in a GGUF file, as transformers' own."""

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
from .model_files import one_line

OWN = "tokenizer.huggingface.json"  # the key of a file that carries transformers' tokenizer as well
# llama.cpp's splits of GPT-2 with every digit by itself, which transformers' reader takes for GPT-2's.
SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
CONTROL = 3  # ggml's type of special tokens


def load_gguf_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in the GGUF file ``path``: transformers' own where the file carries it, else made of llama.cpp's.

    Raises:
        InputError: there is none that transformers can express.
    """
    metadata = GgufFile(path).metadata
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    described = metadata[OWN] if OWN in metadata else _described(path, metadata, len(tokens))
    named = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "pad_token": "padding_token_id"}
    ids = {name: metadata.get(f"tokenizer.ggml.{key}") for name, key in named.items()}
    special = {name: tokens[index] for name, index in ids.items() if index is not None}
    types = metadata.get("tokenizer.ggml.token_type", [])
    others = [token for token, kind in zip(tokens, types, strict=False) if kind == CONTROL]
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(described),
        extra_special_tokens=[token for token in others if token not in special.values()],
        chat_template=metadata.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        name_or_path=str(path),
        **special,
    )


def _described(path: Path, metadata: dict[str, Any], size: int) -> str:
    """The tokenizer that transformers makes of llama.cpp's, as a ``tokenizer.json``.

    Raises:
        InputError: it makes none.
    """
    with optional_import("gguf"):
        import gguf  # noqa: F401 — older versions of transformers read the file by it
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    except Exception as error:  # transformers' readers raise anything over what they do not know
        raise InputError(
            f"{path}: no tokenizer can be made of the file's ({one_line(error)}); name one by tokenizer (--tokenizer)"
        ) from error
    if metadata.get("tokenizer.ggml.pre") in SINGLE_DIGITS:
        split = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
        tokenizer.backend_tokenizer.pre_tokenizer = split
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    # Some classes add special tokens of their own, which the model has never seen.
    described["added_tokens"] = [token for token in described["added_tokens"] if token["id"] < size]
    return json.dumps(described)


PROBE = "In 1998 the Hare's 12,345 km² café-run — naïve? — cost $3.50;\n\n\tif x != y:  return {x: [1, 22, 333]}"


def check_gguf_tokens(file: GgufFile, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a model in whose file ids have another meaning than in ``tokenizer``.

    Raises:
        InputError: naming the first of them.
    """
    tokens = file.metadata.get("tokenizer.ggml.tokens", [])
    vocabulary = tokenizer.get_vocab()
    differing = sorted(index for token, index in vocabulary.items() if index >= len(tokens) or tokens[index] != token)
    if differing:
        index = differing[0]
        theirs = repr(tokens[index]) if index < len(tokens) else "nothing"
        raise InputError(
            f"{file.path}: is of another tokenizer: {len(differing)} tokens differ, the first is id {index}, "
            f"{tokenizer.convert_ids_to_tokens(index)!r} in the tokenizer and {theirs} in the file; give a model of "
            "the same family"
        )


def check_gguf_tokenizer(model: GgufModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Compare a tokenizer with the one in a model's file: its tokens, and by an example how it splits text.

    Text that is split otherwise is no error, but what follows it would be another text's than llama.cpp's: a warning.

    Raises:
        InputError: an id has another meaning.
    """
    check_gguf_tokens(model.file, tokenizer)
    if list(tokenizer(PROBE, add_special_tokens=False)["input_ids"]) != model.tokenize(PROBE):
        warnings.warn(
            f"{model.name_or_path}: the tokenizer splits text otherwise than llama.cpp does; name the model's own by "
            "tokenizer (--tokenizer)",
            stacklevel=4,
        )
