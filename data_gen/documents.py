"""Text to train draft models on: files of text and conversations, and datasets of the target's own answers."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..common.errors import InputError
from ..infer.prompting import encode_prompt
from .dataset import MANIFEST, read_manifest, shard_files
from .kinds import AcceptanceRow, AnswerRow, RoundsRow, read_shard
from .prompts import read_rows

KINDS: dict[str, type[AnswerRow]] = {kind.kind: kind for kind in (AnswerRow, AcceptanceRow, RoundsRow)}


@dataclass(frozen=True)
class Document:
    """A text; its tokens from ``start`` on are what a draft would have to propose.

    Attributes:
        id: decides whether it is held out.
    """

    id: str
    tokens: list[int]
    start: int


def read_documents(
    sources: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    target: str | None = None,
    chat: bool = True,
    limit: int | None = None,
) -> list[Document]:
    """The documents of ``sources``, in order.

    Args:
        sources: files, folders or hub datasets of rows with a ``prompt`` and perhaps a ``response``, which make a
            conversation by the chat template, or by mere concatenation; a prompt without a response is plain text. Or
            folders of datasets by ``specpilot data``.
        target: fingerprint of the model whose answers such datasets must hold. Default: any.
        chat: apply the chat template.
        limit: maximum number of documents of each source.

    Raises:
        InputError: a source is missing, damaged, or holds the answers of another model.
    """
    documents: list[Document] = []
    for source in sources:
        folder = Path(source).expanduser()
        found = answers(folder, target) if (folder / MANIFEST).is_file() else _texts(source, tokenizer, chat)
        documents += [document for document, _ in zip(found, range(limit or 2**62), strict=False)]
    return documents


def most_frequent(
    documents: Iterable[Document], count: int, among: Sequence[int], always: Collection[int] = ()
) -> list[int]:
    """The ``count`` of the tokens ``among`` that are most frequent where a draft proposes, ascending.

    Equally frequent ones are taken in order: low ids are the tokenizer's first merges, and frequent in other text.

    Args:
        always: tokens that are kept however rare, as far as they are ``among`` them.

    Raises:
        InputError: there are fewer.
    """
    if count > len(among):
        raise InputError(f"{count} tokens to keep: the model has {len(among)}; keep at most as many")
    counts = Counter(token for document in documents for token in document.tokens[document.start :])
    return sorted(sorted(among, key=lambda token: (token not in always, -counts[token], token))[:count])


def answers(folder: Path, target: str | None) -> Iterator[Document]:
    """The texts of a dataset by ``specpilot data``; ``target`` is as for :func:`read_documents`.

    Raises:
        InputError: it holds no texts of a target, is incomplete or damaged, or is of another target.
    """
    manifest = read_manifest(folder, *KINDS, complete=True)
    if target is not None and manifest["fingerprint"]["target"] != target:
        raise InputError(f"{folder}: the answers of another target, {manifest['target']}; give answers of this one")
    for file in shard_files(folder):
        for row in read_shard(file, KINDS[manifest["kind"]]):
            if row.x:
                yield Document(row.prompt_id, row.prompt_ids + row.x, len(row.prompt_ids))


def _texts(source: str, tokenizer: PreTrainedTokenizerBase, chat: bool) -> Iterator[Document]:
    end: list[int] = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    for number, row in enumerate(read_rows(source), 1):
        prompt, response = _text(source, number, row, "prompt"), row.get("response")
        name = str(row.get("id", hashlib.sha256(prompt.encode()).hexdigest()[:16]))
        if response is None:
            tokens = encode_prompt(tokenizer, prompt)
            yield Document(name, [*tokens, *end], 0)
            continue
        head = encode_prompt(tokenizer, prompt, chat=chat)
        answer = tokenizer(_text(source, number, row, "response"), add_special_tokens=False)["input_ids"]
        yield Document(name, [*head, *answer, *end], len(head))


def _text(source: str, number: int, row: dict[str, Any], column: str) -> str:
    text = row.get(column)
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{source}: row {number}: {column} is missing, empty or not text: {text!r}")
    return text
