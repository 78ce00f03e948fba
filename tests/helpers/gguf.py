"""A random model as a GGUF file."""

import json
from pathlib import Path

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from experiments.gguf import write_gguf

from .tiny import byte_tokenizer, make

VOCABULARY = 258  # bytes, an end token, and what the one merge makes


def random_llama(folder: Path) -> tuple[Path, str]:
    """Write a random Llama as a GGUF file and as a transformers folder, by the documented conversion; return both."""
    plain = byte_tokenizer()
    described = json.loads(plain.backend_tokenizer.to_str())
    # llama.cpp knows no byte-level BPE without any merge.
    described["model"] |= {"vocab": described["model"]["vocab"] | {"ab": VOCABULARY - 1}, "merges": [["a", "b"]]}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(described)), eos_token="<|end|>",
        chat_template=plain.chat_template,
    )  # fmt: skip
    model = make(vocab=VOCABULARY)
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    for part in (model, tokenizer):
        part.save_pretrained(folder / "random")
    write_gguf(str(folder / "random"), folder / "random.gguf", "f32")
    return folder / "random.gguf", str(folder / "random")
