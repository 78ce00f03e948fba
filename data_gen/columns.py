"""Finds the prompt and the answer in the columns of a row. ``docs/formats.md`` has the table of supported forms."""

from __future__ import annotations

import hashlib
import json
import reprlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass

from ..common.errors import InputError
from ..common.json_file import naming_file, parse_json
from ..infer.prompting import Message, as_prompts, text_of
from .rows import Record, RowSource, name_of, read_rows

# Names of columns of prompts and of answers; the first name that a row has counts.
CONVERSATIONS = ("messages", "conversations", "conversation", "turns")
PROMPTS = ("prompt", "instruction", "question", "query", "problem", "input", "text")
ANSWERS = ("completion", "response", "answer", "output", "solution", "reference")
WITH_CONTEXT = ("instruction", "question", "query", "problem")  # prompts to which a column of CONTEXTS belongs
CONTEXTS = ("input", "context")
SYSTEMS = ("system", "system_prompt")
PREFERENCES = ("chosen", "rejected")
UNREAD = (
    "tools",
    "functions",
    "documents",
    "chat_template_kwargs",
)  # fields that a chat template may show besides messages
# Columns with facts about a row. Any other column of text beside a prompt may be its answer.
ABOUT = {
    "id", "_id", "idx", "uuid", "prompt_id", "question_id", "conversation_id", "custom_id", "task_id", "domain",
    "category", "subject", "topic", "level", "difficulty", "type", "tag", "tags", "task", "source", "dataset", "split",
    "lang", "language", "model", "meta", "metadata", "url", "title", "name", "author", "license", "hash", "created",
    "timestamp", "date", *SYSTEMS, *CONTEXTS, *UNREAD,
}  # fmt: skip
NO_ANSWER = "none"  # value of --answer-column for rows that only have prompts
ROLES = {
    "human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "model": "assistant",
    "observation": "tool", "function_response": "tool", "ipython": "tool",
    "developer": "system", **{role: role for role in ("system", "user", "assistant", "tool")},
}  # fmt: skip
ANSWER_KEYS = {"role", "content", "name", "id", "weight"}  # keys that the message of an answer may have


@dataclass(frozen=True)
class Example:
    """The prompt and the answers of a row.

    Attributes:
        id: the row's id, or a hash of the prompt.
        domain: group of the prompt in reports.
        turns: the messages; messages of the assistant are answers.
        plain: whether the row is text without turns.
    """

    id: str
    domain: str
    turns: list[Message]
    plain: bool = False


def prompt_of(turns: Sequence[Message]) -> str | list[Message]:
    """Return ``turns`` without the answers at their end, in the form of :func:`as_prompt`."""
    end = len(turns)
    while end and turns[end - 1]["role"] == "assistant":
        end -= 1
    return as_prompt(turns[:end])


def as_prompt(turns: Sequence[Message]) -> str | list[Message]:
    """Return ``turns`` as a prompt. A single message of the user becomes text."""
    is_single_question = len(turns) == 1 and turns[0].keys() == {"role", "content"} and turns[0]["role"] == "user"
    return text_of(turns[0]["content"]) if is_single_question else [*turns]


def as_text(prompt: str | list[Message]) -> str:
    """Return a prompt as a string: text unchanged, messages as JSON."""
    return prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)


def answer_text(message: Message) -> str:
    """Return the text of an answer.

    Raises:
        InputError: the answer is empty, or contains more than text, such as calls of tools.
    """
    further_keys = [key for key, value in message.items() if key not in ANSWER_KEYS and value not in ("", [], {})]
    if further_keys:
        raise InputError(
            f"an answer contains {further_keys[0]!r}, but only its text would be learned; leave the row out"
        )
    text = text_of(message["content"])
    if not text.strip():
        raise InputError("the answer is empty; leave the row out, or its answer column if it has none")
    return text


def read_examples(
    source: RowSource,
    *,
    split: str = "train",
    column: str | None = None,
    answer: str | None = None,
    answers: bool = True,
    notes: Counter[str],
) -> Iterator[Example]:
    """Yield the examples of ``source``, in its order.

    Args:
        source: the rows, see :func:`~.rows.read_rows`.
        split: the split of the rows.
        column: the column of the prompt or conversation. By default, the first column with a usual name.
        answer: the column of the answer, or ``"none"``. By default, the first column with a usual name.
        answers: whether answers are needed; a row without a recognised answer is then refused.
        notes: counts the rows from which a part was left out, by a description of the part.

    Raises:
        InputError: a row has no prompt in a known form, or its answer cannot be read. The message names the row and its
            columns.
    """
    for number, columns in enumerate(read_rows(source, split=split), 1):
        row = _of_batch({name: value for name, value in columns.items() if value is not None})
        try:
            name, turns = _question(row, column)
            if answers:
                turns = _answered(row, name, turns, answer)
            elif turns[-1]["role"] == "assistant" or row.keys() & {*ANSWERS, *PREFERENCES} - {name}:
                notes["answers are left out, because the target answers the prompts"] += 1
            if len(turns) > 1 and all(turn["role"] == "user" for turn in turns):
                turns = turns[:1]
                notes["only the first question is used, because the others follow missing answers"] += 1
            for unread in (key for key in UNREAD if isinstance(row.get(key), Sized) and len(row[key])):
                notes[f"{unread} are left out, because the chat template only gets the messages"] += 1
            as_prompts(turns)  # checks the messages
            prompt = prompt_of(turns)
            if not prompt or not as_text(prompt).strip():
                raise InputError(f"the prompt is empty or not text: {reprlib.repr(row[name])}")
        except InputError as error:
            raise InputError(f"{name_of(source)}: row {number}: {error}") from None
        label = row.get("id", hashlib.sha256(as_text(prompt).encode()).hexdigest()[:16])
        yield Example(str(label), str(row.get("domain", "all")), turns, plain=name == "text")


def _of_batch(row: Record) -> Record:
    """Return the request in a row of an OpenAI batch file; other rows unchanged."""
    body = row.get("body")
    if not isinstance(body, Mapping) or not row.keys() & {"custom_id", "url", "method"}:
        return row
    fields = {name: body[name] for name in ("messages", "prompt", "input", *UNREAD) if body.get(name) is not None}
    return fields | ({"id": row["custom_id"]} if "custom_id" in row else {})


def _question(row: Record, column: str | None) -> tuple[str, list[Message]]:
    """Return the column of the prompt, and its turns with the row's context and system message.

    Raises:
        InputError: no column contains a prompt.
    """
    columns = ", ".join(sorted(row)) or "none"
    name = column or next((name for name in (*CONVERSATIONS, *PROMPTS) if name in row), None)
    if name is None and row.keys() & {*PREFERENCES}:
        raise InputError(f"has preferences but no prompt; it has {columns}; choose one answer with --column chosen")
    if name is None or name not in row:
        missing = "of a known form" if name is None else repr(name)
        raise InputError(
            f"no column {missing} contains a prompt; it has {columns}; name the prompt's column with --column"
        )
    turns = _turns(row[name], name)
    context = next((row[key] for key in CONTEXTS if name in WITH_CONTEXT and isinstance(row.get(key), str)), "")
    if context.strip() and len(turns) == 1:
        turns = [turns[0] | {"content": f"{text_of(turns[0]['content'])}\n\n{context}"}]
    system = next((row[key] for key in SYSTEMS if isinstance(row.get(key), str)), "")
    if system.strip() and turns[0]["role"] != "system":
        turns = [{"role": "system", "content": system}, *turns]
    return name, turns


def _answered(row: Record, name: str, turns: list[Message], column: str | None) -> list[Message]:
    """Return ``turns`` with the answer of the row, if there is one.

    Raises:
        InputError: the column of the answer is not clear, or its value is empty or not text.
    """
    if column == NO_ANSWER or (column is None and turns[-1]["role"] == "assistant"):
        return turns
    used_columns = {name, *(CONTEXTS if name in WITH_CONTEXT else ())}
    answer = column or next((other for other in ANSWERS if other in row and other not in used_columns), None)
    columns = ", ".join(sorted(row))
    if answer is None:
        if row.keys() & {*PREFERENCES} - used_columns:
            raise InputError(
                "has several answers, chosen and rejected; name the answer to learn with --answer-column chosen"
            )
        candidates = [
            key
            for key in row
            if key not in ABOUT | used_columns and isinstance(row[key], str | list | dict) and row[key]
        ]
        if candidates and name != "text":
            raise InputError(
                f"no column of a known form contains the answer; it has {columns}; name the column with "
                f"--answer-column, or learn only prompts with --answer-column {NO_ANSWER}"
            )
        return turns
    if answer not in row:
        raise InputError(
            f"no column {answer!r} contains an answer; it has {columns}; name another column with --answer-column"
        )
    value = row[answer]
    if answer == "reference" and isinstance(value, list) and (not value or len(value) == len(turns)):
        pairs = zip(turns, value, strict=False)
        return [message for turn, text in pairs for message in (turn, {"role": "assistant", "content": text})] or turns
    messages = [{"role": "assistant", "content": value}] if isinstance(value, str) else _turns(value, answer)
    if messages[: len(turns)] == turns:  # a whole conversation
        messages = messages[len(turns) :]
    if not messages or messages[0]["role"] == "user" or messages[-1]["role"] != "assistant":
        raise InputError(f"{answer} holds no answer to the prompt; name the answer's column with --answer-column")
    return [*turns, *messages]


def _turns(value: object, name: str) -> list[Message]:
    """Return the messages in a column, which has a text, several texts, or messages in OpenAI's or ShareGPT's form."""
    if isinstance(value, str) and name in CONVERSATIONS and value.lstrip().startswith("["):
        with naming_file(name, "give text or a list of messages"):
            value = parse_json(value)
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list | tuple) or not value:
        raise InputError(f"{name} is empty or not text: {reprlib.repr(value)}; give text or a list of messages")
    if all(isinstance(entry, str) for entry in value):
        return [{"role": "user", "content": text} for text in value]
    return [_message(entry, f"{name}[{index}]") for index, entry in enumerate(value)]


def _message(entry: object, name: str) -> Message:
    """Return a message in OpenAI's form; ``name`` is its place in error messages."""
    if not isinstance(entry, Mapping):
        raise InputError(f"{name} is not a message: {reprlib.repr(entry)}; give {{'role': …, 'content': …}}")
    message = {key: value for key, value in entry.items() if value is not None}
    role = message.pop("role", message.pop("from", None))
    content = message.pop("content", message.pop("value", None))
    if role not in ROLES:
        raise InputError(f"{name}: the role {role!r} is unknown; choose one of {', '.join(ROLES)}")
    if content is None and not message.get("tool_calls"):
        raise InputError(f"{name} has no content; it has {', '.join(map(str, message)) or 'a role alone'}")
    return {"role": ROLES[role], "content": "" if content is None else content, **message}
