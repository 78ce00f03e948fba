"""The training text, split by a hash of the rows' ids and packed into windows, and the tokenizer.

A document is ``<|user|>prompt<|assistant|>response<|end|>``, as in the chat template.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from specpilot.common.errors import InputError
from specpilot.data_gen.rows import read_rows
from specpilot.infer.prompting import encode_prompt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

PAD, END, SYSTEM, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] -}}"
    "{%- if message['role'] == 'assistant' -%}{{- '<|end|>' -}}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
HELD_OUT_EVERY = 20  # one row in twenty is held out


@dataclass(frozen=True)
class Document:
    """One prompt and its response; ``source`` is the file or dataset it came from."""

    id: str
    domain: str
    prompt: str
    response: str
    source: str
    license: str

    @property
    def held_out(self) -> bool:
        return int.from_bytes(hashlib.sha256(self.id.encode()).digest()[:8]) % HELD_OUT_EVERY == 0


def load_documents(data: str, sources: list[str]) -> list[Document]:
    """Return the documents of every source: files ``<data>/<source>.jsonl`` if ``data`` is a folder, else hub datasets.

    Raises:
        InputError: a source is missing, or a row of it has no ``prompt`` and ``response``.
    """
    documents = []
    for source in sources:
        local = Path(data).expanduser() / f"{source}.jsonl"
        for number, row in enumerate(read_rows(str(local) if Path(data).expanduser().is_dir() else source)):
            if not row.get("prompt") or not row.get("response"):
                raise InputError(f"{source}: row {number} has no 'prompt' and 'response'")
            documents.append(
                Document(
                    id=str(row.get("id", f"{source}-{number}")),
                    domain=str(row.get("domain", source)),
                    prompt=row["prompt"],
                    response=row["response"],
                    source=source,
                    license=str(row.get("license", "unknown")),
                )
            )
    return documents


@dataclass(frozen=True)
class Packed:
    """Concatenated documents, cut into windows.

    Attributes:
        tokens: (N, T) token ids.
        is_response: (N, T) whether the token belongs to a response (its ``<|end|>`` included).
    """

    tokens: Tensor
    is_response: Tensor


def encode(tokenizer: PreTrainedTokenizerBase, prompt: str, response: str) -> tuple[list[int], int]:
    """Return the token ids of one document, and the number of prompt tokens."""
    head = encode_prompt(tokenizer, prompt, chat=True)
    tail: list[int] = tokenizer(response, add_special_tokens=False)["input_ids"]
    return head + tail + [tokenizer.eos_token_id], len(head)


def pack(documents: Iterable[tuple[list[int], int]], window: int, seed: int) -> Packed:
    """Shuffle and concatenate encoded documents (ids, prompt length), and cut windows of ``window`` tokens.

    Documents longer than a window are left out, since their second half would be trained without the prompt.
    """
    encoded = [(ids, head) for ids, head in documents if len(ids) <= window]
    random.Random(seed).shuffle(encoded)
    tokens: list[int] = []
    response: list[bool] = []
    for ids, head in encoded:
        tokens += ids
        response += [False] * head + [True] * (len(ids) - head)
    n = len(tokens) // window
    if n == 0:
        raise InputError(f"the text holds {len(tokens)} tokens, less than one window of {window}; give more text")
    return Packed(
        tokens=torch.tensor(tokens[: n * window], dtype=torch.long).view(n, window),
        is_response=torch.tensor(response[: n * window], dtype=torch.bool).view(n, window),
    )


def count_sources(documents: Iterable[Document]) -> list[tuple[str, str, int]]:
    """Return the source, the licence and the number of documents of each source, sorted, for the model cards."""
    counts = Counter((d.source, d.license) for d in documents)
    return [(source, licence, rows) for (source, licence), rows in sorted(counts.items())]


def train_tokenizer(texts: Iterable[str], vocab_size: int, context: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE of ``vocab_size`` entries (Sennrich et al. 2016); digits are single tokens."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    special = [PAD, END, SYSTEM, USER, ASSISTANT]
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[SYSTEM, USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
