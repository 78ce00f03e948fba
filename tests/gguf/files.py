"""GGUF files for the tests: the shipped pair and random Llamas, written by the recipe that users have."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (extra gguf): run make test-gguf")


from experiments.gguf import write_gguf

from ..tiny import byte_tokenizer, make

VOCABULARY = 258  # bytes, an end token, and what the one merge makes


def merging_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes with one merge: llama.cpp knows no byte-level BPE without any."""
    plain = byte_tokenizer()
    described = json.loads(plain.backend_tokenizer.to_str())
    described["model"]["vocab"]["ab"] = VOCABULARY - 1
    described["model"]["merges"] = [["a", "b"]]
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(described)),
        eos_token="<|end|>",
        chat_template=plain.chat_template,
    )


def random_llama(folder: Path, name: str, *, seed: int = 0, layers: int = 2, kind: str = "f32") -> tuple[Path, str]:
    """A GGUF file of a random Llama, and the folder of the same model for transformers."""
    model = make(seed=seed, vocab=VOCABULARY, layers=layers)
    tokenizer = merging_tokenizer()
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder / name)
    tokenizer.save_pretrained(folder / name)
    path = folder / f"{name}-{kind}.gguf"
    write_gguf(str(folder / name), path, kind)
    return path, str(folder / name)
