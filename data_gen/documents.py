"""Texts for training draft models: files of text and conversations, and datasets of the target's answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from ..common.errors import InputError
from ..common.files import MANIFEST
from ..infer.prompting import as_plain_text, encode_prompt, text_of, turn_end, uses_template
from .columns import Example, answer_text, as_prompt, read_examples
from .dataset import read_manifest, shard_files
from .kinds import LABELLED, AnswerRow, read_shard
from .options import TextFormOptions
from .prompts import report
from .rows import RowSource, name_of

PLAIN = TextFormOptions()
KINDS: dict[str, type[AnswerRow]] = {AnswerRow.kind: AnswerRow, **LABELLED}


@dataclass(frozen=True)
class Document:
    """A text, with the tokens that a draft would have to propose.

    Attributes:
        id: determines whether the document is held out.
        tokens: the tokens.
        start: index of the first token that a draft would have to propose.
        prompts: start and end (excluded) of each later prompt, whose tokens are not proposed.
    """

    id: str
    tokens: list[int]
    start: int
    prompts: tuple[tuple[int, int], ...] = ()

    @property
    def learned(self) -> list[bool]:
        """Return true for each token that a draft would have to propose."""
        learned = [index >= self.start for index in range(len(self.tokens))]
        for first, last in self.prompts:
            learned[first:last] = [False] * (last - first)
        return learned


def read_documents(
    sources: Sequence[RowSource],
    tokenizer: PreTrainedTokenizerBase,
    form: TextFormOptions = PLAIN,
    *,
    stops: Collection[int] = (),
    day: str | None = None,
    target: str | None = None,
) -> list[Document]:
    """Return the documents of ``sources``, in order.

    Args:
        sources: folders of datasets by ``specpilot data``, or sources of :func:`~.rows.read_rows`. A prompt and its
            answers become a conversation by the chat template, or are concatenated. A prompt without an answer is plain
            text.
        tokenizer: tokenizer of the target.
        form: options of the conversion of rows to text.
        stops: token ids that end the target's texts.
        day: date for the chat template.
        target: fingerprint of the model whose answers a dataset must contain; None for any model.

    Raises:
        InputError: a source is missing or damaged, or contains answers of another model.
    """
    documents: list[Document] = []
    for source in sources:
        notes = Counter[str]()
        folder = Path(source).expanduser() if isinstance(source, str | Path) else None
        if folder is not None and (folder / MANIFEST).is_file():
            texts = answers(folder, target)
        else:
            texts = _texts(source, tokenizer, form, stops, day, notes)
        documents += islice(texts, form.limit)
        report(name_of(source), notes)
    return documents


def most_frequent(
    documents: Iterable[Document], count: int, among: Sequence[int], always: Collection[int] = (), name: str = "count"
) -> list[int]:
    """Return the ``count`` most frequent of the tokens ``among`` where a draft proposes, in ascending order.

    Of equally frequent tokens, low ids come first: they are the tokenizer's first merges and frequent in other text.

    Args:
        documents: the texts.
        count: number of tokens.
        among: the tokens to choose from.
        always: tokens of ``among`` that are kept however rare they are.
        name: name of the option of ``count`` in error messages.

    Raises:
        InputError: ``among`` has fewer tokens.
    """
    if count > len(among):
        raise InputError(f"{name}={count}: the model has {len(among)} tokens; choose at most that many")
    counts = Counter(
        token
        for document in documents
        for token, learned in zip(document.tokens, document.learned, strict=True)
        if learned
    )
    return sorted(sorted(among, key=lambda token: (token not in always, -counts[token], token))[:count])


def answers(folder: Path, target: str | None) -> Iterator[Document]:
    """Yield the texts of a dataset by ``specpilot data``; ``target`` as for :func:`read_documents`.

    Raises:
        InputError: the dataset has no texts of a target, is incomplete or damaged, or is of another target.
    """
    manifest = read_manifest(folder, *KINDS, complete=True)
    if target is not None and manifest.fingerprint["target"] != target:
        raise InputError(
            f"{folder}: contains answers of another target, {manifest.target}; make answers with this target"
        )
    for file in shard_files(folder):
        for row in read_shard(file, KINDS[manifest.kind]):
            if row.x:
                yield Document(row.prompt_id, row.prompt_ids + row.x, len(row.prompt_ids))


def _texts(
    source: RowSource,
    tokenizer: PreTrainedTokenizerBase,
    form: TextFormOptions,
    stops: Collection[int],
    day: str | None,
    notes: Counter[str],
) -> Iterator[Document]:
    """Yield the documents of a source of rows; arguments as for :func:`read_documents`."""
    ends = {chat: turn_end(tokenizer, stops, chat=chat) for chat in (False, uses_template(tokenizer, form.chat))}
    examples = read_examples(source, split=form.split, column=form.column, answer=form.answer_column, notes=notes)
    for number, example in enumerate(examples, 1):
        try:
            yield from _of_turns(example, tokenizer, ends, day, notes)
        except InputError as error:
            raise InputError(f"{name_of(source)}: row {number}: {error}") from None


def _of_turns(
    example: Example,
    tokenizer: PreTrainedTokenizerBase,
    ends: Mapping[bool, list[int]],
    day: str | None,
    notes: Counter[str],
) -> Iterator[Document]:
    """Yield the documents of a row. A document ends where a prompt does not continue the text before it.

    Args:
        example: the row.
        tokenizer: tokenizer of the target.
        ends: tokens that end a plain text (false) and an answer in the chat template (true).
        day: date for the chat template.
        notes: counts the rows from which a part was left out.
    """
    turns, tokens = example.turns, list[int]()
    start, prompts = 0, list[tuple[int, int]]()
    answers = [index for index, turn in enumerate(turns) if index and turn["role"] == "assistant"]
    if not answers:
        if not example.plain:
            notes[
                "no answer, so the prompt is learned as text; 'specpilot data answers' makes answers of the target"
            ] += 1
        text = encode_prompt(tokenizer, text_of(turns[-1]["content"]))
        yield Document(example.id, [*text, *ends[False]], 0)
        return
    if answers[-1] + 1 < len(turns):
        notes["the turns after the last answer are left out"] += 1
    chat = True in ends
    for index in answers:
        if turns[index].get("weight") == 0:  # in OpenAI's form: not to be learned
            continue
        answer = answer_text(turns[index])
        prompt = as_prompt(turns[:index])
        head = encode_prompt(tokenizer, prompt if chat else as_plain_text(tokenizer, prompt), chat=chat, day=day)
        if tokens and head[: len(tokens)] == tokens:
            prompts.append((len(tokens), len(head)))
        else:
            if tokens:
                yield Document(example.id, tokens, start, tuple(prompts))
            start, prompts = len(head), []
        tokens = [*head, *tokenizer(answer, add_special_tokens=False)["input_ids"], *ends[chat]]
    if tokens:
        yield Document(example.id, tokens, start, tuple(prompts))
