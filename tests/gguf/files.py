"""GGUF files for the tests: the shipped pair and random Llamas, written by the recipe that users have."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (extra gguf): run make test-gguf")

from specpilot.infer.models import CausalLM, LlamaCpp, language_model
from specpilot.infer.models.gguf_model import GgufModel

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


def both(folder: Path, name: str = "target", **options: int) -> tuple[LlamaCpp, CausalLM]:
    """One random Llama, by llama.cpp and by transformers."""
    from specpilot.infer.loading.names import load_model

    path, place = random_llama(folder, name, **options)
    ours, theirs = language_model(GgufModel(path)), language_model(load_model(place))
    assert isinstance(ours, LlamaCpp)
    assert isinstance(theirs, CausalLM)
    return ours, theirs
