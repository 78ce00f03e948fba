"""Prompts to decode: the built-in ones, or those of a file, a folder, a dataset, or rows given in Python."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Never

from transformers import PreTrainedTokenizerBase

from ..common.errors import InputError, counted, listed
from ..common.options import check_names
from ..infer.options import Auto
from ..infer.prompting import Message, as_plain_text, encode_prompt
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
        self, tokenizer: PreTrainedTokenizerBase | None, *, chat: bool | Auto, system: str | None,
        day: str | None = None, context: int | None = None, encoder: bool = False,
    ) -> list[int]:  # fmt: skip
        """The prompt's token ids; see :func:`~..infer.prompting.encode_prompt`. Its own system message counts.

        Raises:
            InputError: it is a conversation and ``chat`` is false; the tokenizer cannot encode it; or it fills the
                ``context``.
        """
        try:
            prompt = self.prompt if chat is not False else as_plain_text(tokenizer, self.prompt)
            own = not isinstance(prompt, str) and prompt[0]["role"] == "system"
            ids = encode_prompt(tokenizer, prompt, chat=chat, system=None if own else system, day=day, encoder=encoder)
            if context is not None and len(ids) >= context:
                raise InputError(f"{counted(len(ids), 'token')}, but the context holds {context}; leave it out")
            return ids
        except InputError as error:
            raise InputError(f"prompt {self.id}: {error}") from error


def load_prompts(
    source: RowSource,
    *,
    column: str | None = None,
    split: str = "train",
    domains: Sequence[str] | None = None,
    limit: int | None = None,
    skip: int = 0,
    **misspelt: Never,
) -> list[PromptRow]:
    """The prompts of ``source``, in their order and without duplicates.

    Args:
        source: a file, folder, hub dataset or built-in name, or rows from Python; see :func:`~.rows.read_rows`.
        column, split, domains, limit, skip: as the options of ``specpilot data``, see :class:`.PromptOptions`.
        misspelt: takes no keyword; an unknown one is an error that names the option it resembles.

    Raises:
        InputError: as :func:`prompts_of`, or there is no such option.
    """
    check_names(PromptOptions, misspelt)
    objects: dict[str, Any] = {"prompts": source, "domains": domains}  # rows and lists, which the fields take in Python
    return prompts_of(PromptOptions(column=column, split=split, limit=limit, skip=skip, **objects))


def prompts_of(options: PromptOptions) -> list[PromptRow]:
    """The prompts that ``options`` name, in their order and without duplicates.

    Columns ``id`` and ``domain`` are used if present. Answers in the rows are left out, with a line that says so.

    Raises:
        InputError: the source, the column or the split does not exist, or a prompt is empty or not text.
    """
    name = name_of(options.prompts)
    prompts = read_prompts(options.prompts, column=options.column, split=options.split)
    unique = list({p.text: p for p in reversed(prompts)}.values())[::-1]
    if repeated := [one for one, count in Counter(p.id for p in unique).items() if count > 1]:
        raise InputError(
            f"{name}: several prompts have the id {repeated[0]!r}; give each prompt an id of its own, or no id"
        )
    if options.domains is not None:
        known = {p.domain for p in unique}
        if unknown := [domain for domain in options.domains if domain not in known]:
            raise InputError(f"domains: no prompt of {unknown[0]!r} in {name}; it has {listed(sorted(known))}")
        unique = [p for p in unique if p.domain in options.domains]
    if options.skip >= len(unique):
        raise InputError(
            f"skip={options.skip}: {name} has {counted(len(unique), 'prompt')}, so none is left; skip fewer, or give "
            "more prompts"
        )
    return unique[options.skip :][: options.limit]


def read_prompts(source: RowSource, *, column: str | None = None, split: str = "train") -> list[PromptRow]:
    """All prompts of ``source`` in its order; arguments and errors as for :func:`prompts_of`."""
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
        print(f"{name}: {counted(count, 'row')}: {note}", file=sys.stderr)


def fingerprint(prompts: list[PromptRow]) -> str:
    """SHA-256 over ids and texts, in order."""
    digest = hashlib.sha256()
    for p in prompts:
        digest.update(f"{p.id}\0{p.text}\0".encode())
    return digest.hexdigest()
