"""Prompts to decode: built-in prompts, or prompts of a file, a folder, a dataset or rows in Python."""

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
    """A prompt.

    Attributes:
        id: unique name in the source.
        domain: group of the prompt in reports.
        prompt: text or messages.
    """

    id: str
    domain: str
    prompt: str | list[Message]

    @property
    def text(self) -> str:
        """The prompt as a string; messages as JSON."""
        return as_text(self.prompt)

    def encode(
        self, tokenizer: PreTrainedTokenizerBase | None, *, chat: bool | Auto, system: str | None,
        day: str | None = None, context: int | None = None, encoder: bool = False,
    ) -> list[int]:  # fmt: skip
        """Return the prompt's token ids; see :func:`~..infer.prompting.encode_prompt` for the arguments.

        A system message of the prompt takes precedence over ``system``.

        Raises:
            InputError: the prompt is a conversation and ``chat`` is false; or the tokenizer cannot encode it; or it
                fills the ``context``.
        """
        try:
            prompt = self.prompt if chat is not False else as_plain_text(tokenizer, self.prompt)
            has_system = not isinstance(prompt, str) and prompt[0]["role"] == "system"
            system = None if has_system else system
            ids = encode_prompt(tokenizer, prompt, chat=chat, system=system, day=day, encoder=encoder)
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
    """Return the prompts of ``source``, in their order and without duplicates.

    Args:
        source: a file, folder, hub dataset or built-in name, or rows from Python; see :func:`~.rows.read_rows`.
        column, split, domains, limit, skip: as the options of ``specpilot data``, see :class:`.PromptOptions`.
        misspelt: keywords that are not options. Each of them is an error that names a similar option.

    Raises:
        InputError: a keyword is not an option; or an error of :func:`prompts_of`.
    """
    check_names(PromptOptions, misspelt)
    python_values: dict[str, Any] = {
        "prompts": source,
        "domains": domains,
    }  # rows and lists, which the fields take in Python
    return prompts_of(PromptOptions(column=column, split=split, limit=limit, skip=skip, **python_values))


def prompts_of(options: PromptOptions) -> list[PromptRow]:
    """Return the prompts that ``options`` name, in their order and without duplicates.

    Columns ``id`` and ``domain`` are used if present. Answers in the rows are left out, and a line reports it.

    Raises:
        InputError: the source, the column or the split does not exist, or a prompt is empty or not text.
    """
    name = name_of(options.prompts)
    prompts = read_prompts(options.prompts, column=options.column, split=options.split)
    unique = list({p.text: p for p in reversed(prompts)}.values())[::-1]
    if repeated := [name for name, count in Counter(p.id for p in unique).items() if count > 1]:
        raise InputError(
            f"{name}: several prompts have the id {repeated[0]!r}; give each prompt an id of its own, or no id"
        )
    if options.domains is not None:
        domains = {p.domain for p in unique}
        if unknown := [domain for domain in options.domains if domain not in domains]:
            raise InputError(f"domains: no prompt of {unknown[0]!r} in {name}; it has {listed(sorted(domains))}")
        unique = [p for p in unique if p.domain in options.domains]
    if options.skip >= len(unique):
        raise InputError(
            f"skip={options.skip}: {name} has {counted(len(unique), 'prompt')}, so none is left; skip fewer, or give "
            "more prompts"
        )
    return unique[options.skip :][: options.limit]


def read_prompts(source: RowSource, *, column: str | None = None, split: str = "train") -> list[PromptRow]:
    """Return all prompts of ``source``, in its order; arguments and errors as for :func:`prompts_of`."""
    if isinstance(source, str) and source in FILES:
        if split not in BUILTIN_SPLITS:
            raise InputError(f"split={split!r}: the built-in prompts have {', '.join(BUILTIN_SPLITS)}")
        return [PromptRow(p.id, p.domain, p.prompt) for p in builtin_prompts(source) if p.split == split]
    notes = Counter[str]()
    examples = read_examples(source, split=split, column=column, answers=False, notes=notes)
    prompts = [PromptRow(example.id, example.domain, prompt_of(example.turns)) for example in examples]
    report(name_of(source), notes)
    return prompts


def report(name: str, notes: Counter[str]) -> None:
    """Print the parts that were left out of the rows of a source to standard error."""
    for note, count in notes.items():
        print(f"{name}: {counted(count, 'row')}: {note}", file=sys.stderr)


def fingerprint(prompts: list[PromptRow]) -> str:
    """Return the SHA-256 over ids and texts, in order."""
    digest = hashlib.sha256()
    for p in prompts:
        digest.update(f"{p.id}\0{p.text}\0".encode())
    return digest.hexdigest()
