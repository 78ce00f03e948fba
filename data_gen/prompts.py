"""Prompts to decode: the built-in ones, or those of a file, a folder, a dataset, or rows given in Python."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from ..common.errors import InputError
from ..infer.prompting import Message, encode_prompt
from .builtin import FILES, builtin_prompts
from .columns import as_text, prompt_of, read_examples
from .options import PromptOptions
from .rows import RowSource, name_of

BUILTIN_SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class PromptRow:
    """One prompt: text or messages. ``id`` is unique in its source; ``domain`` groups prompts in reports."""

    id: str
    domain: str
    prompt: str | list[Message]

    @property
    def text(self) -> str:
        """The prompt in one string; messages as JSON."""
        return as_text(self.prompt)

    def encode(
        self, tokenizer: PreTrainedTokenizerBase | None, *, chat: bool, system: str | None, day: str | None = None
    ) -> list[int]:
        """The prompt's token ids; see :func:`~..infer.prompting.encode_prompt`. Its own system message counts.

        Raises:
            InputError: it is a conversation and ``chat`` is false; or the tokenizer cannot encode it.
        """
        if not isinstance(self.prompt, str):
            if not chat:
                raise InputError(
                    f"prompt {self.id}: a conversation, which needs the chat template; leave --no-chat out"
                )
            system = None if self.prompt[0]["role"] == "system" else system
        return encode_prompt(tokenizer, self.prompt, chat=chat, system=system, day=day)


def load_prompts(
    source: RowSource,
    *,
    column: str | None = None,
    split: str = "train",
    limit: int | None = None,
    skip: int = 0,
    domains: Sequence[str] | None = None,
) -> list[PromptRow]:
    """Prompts of ``source`` in its order, without duplicates.

    Args:
        source: ``builtin``, ``builtin-large`` (2,000 prompts of each of its domains), ``builtin-copy`` (prompts
            that invite copying, 200 in each of the splits ``train`` and ``test``), or whatever
            :func:`~.rows.read_rows` reads: files, folders, hub datasets, and ``datasets.Dataset`` objects.
        column: the column that holds the prompt or conversation; by default it is found by its name. Columns ``id``
            and ``domain`` are used if present. Answers in the rows are left out, with a line that says so.
        split: split of the built-in prompts (train, validation, test), of a hub dataset or of a ``DatasetDict``; local
            files have none.
        limit: maximum number of prompts.
        skip: number of prompts to skip first.
        domains: take only prompts of these domains.

    Raises:
        InputError: the source, the column or the split does not exist, or a prompt is empty or not text.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit={limit}: must be at least 1")
    name, prompts = name_of(source), read_prompts(source, column=column, split=split)
    unique = list({p.text: p for p in reversed(prompts)}.values())[::-1]
    if len({p.id for p in unique}) < len(unique):
        raise InputError(f"{name}: the column 'id' repeats an id; ids name the rollouts and must be unique")
    if domains is not None:
        known = {p.domain for p in unique}
        for domain in domains:
            if domain not in known:
                raise InputError(f"domains: no prompt of {domain!r} in {name}; it has {', '.join(sorted(known))}")
        unique = [p for p in unique if p.domain in domains]
    if skip >= len(unique):
        raise InputError(
            f"skip={skip}: {name} has {len(unique)} prompts, so none is left; skip fewer, or give more prompts"
        )
    return unique[skip:][:limit]


def prompts_of(options: PromptOptions) -> list[PromptRow]:
    """The prompts that ``options`` name; errors as for :func:`load_prompts`."""
    chosen = ("column", "split", "limit", "skip", "domains")
    return load_prompts(options.prompts, **{name: getattr(options, name) for name in chosen})


def read_prompts(source: RowSource, *, column: str | None = None, split: str = "train") -> list[PromptRow]:
    """All prompts of ``source`` in its order; arguments and errors as for :func:`load_prompts`."""
    if isinstance(source, str) and source in FILES:
        if split not in BUILTIN_SPLITS:
            raise InputError(f"split={split!r}: the built-in prompts have {', '.join(BUILTIN_SPLITS)}")
        return [PromptRow(p.id, p.domain, p.prompt) for p in builtin_prompts(source) if p.split == split]
    notes = Counter[str]()
    examples = read_examples(source, split=split, column=column, answers=False, notes=notes)
    prompts = [PromptRow(one.id, one.domain, prompt_of(one.turns)) for one in examples]
    report(name_of(source), notes)
    return prompts


def report(name: str, notes: Counter[str]) -> None:
    """Say on standard error what was left out of the rows of a source."""
    for note, count in notes.items():
        print(f"{name}: {count} {'row' if count == 1 else 'rows'}: {note}", file=sys.stderr)


def fingerprint(prompts: list[PromptRow]) -> str:
    """SHA-256 over ids and texts, in order."""
    digest = hashlib.sha256()
    for p in prompts:
        digest.update(f"{p.id}\0{p.text}\0".encode())
    return digest.hexdigest()
