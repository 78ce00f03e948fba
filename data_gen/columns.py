"""What the columns of a row mean: its prompt, and perhaps the answer. The table of forms is in docs/formats.md."""

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

# Columns of prompts and of answers; of several the first counts.
CONVERSATIONS = ("messages", "conversations", "conversation", "turns")
PROMPTS = ("prompt", "instruction", "question", "query", "problem", "input", "text")
ANSWERS = ("completion", "response", "answer", "output", "solution", "reference")
ASKED = ("instruction", "question", "query", "problem")  # prompts that a column of CONTEXTS belongs to
CONTEXTS = ("input", "context")
SYSTEMS = ("system", "system_prompt")
PREFERENCES = ("chosen", "rejected")
UNREAD = ("tools", "functions", "documents", "chat_template_kwargs")  # what a chat template may show besides messages
# Columns that are about a row; any other text beside a prompt may be its answer.
ABOUT = {
    "id", "_id", "idx", "uuid", "prompt_id", "question_id", "conversation_id", "custom_id", "task_id", "domain",
    "category", "subject", "topic", "level", "difficulty", "type", "tag", "tags", "task", "source", "dataset", "split",
    "lang", "language", "model", "meta", "metadata", "url", "title", "name", "author", "license", "hash", "created",
    "timestamp", "date", *SYSTEMS, *CONTEXTS, *UNREAD,
}  # fmt: skip
NO_ANSWER = "none"  # as answer column: the rows are prompts alone
ROLES = {
    "human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "model": "assistant",
    "observation": "tool", "function_response": "tool", "ipython": "tool",
    "developer": "system", **{role: role for role in ("system", "user", "assistant", "tool")},
}  # fmt: skip
SAYING = {"role", "content", "name", "id", "weight"}  # what an answer's message may hold


@dataclass(frozen=True)
class Example:
    """What a row says.

    Attributes:
        id: unique in its source, or a hash of the prompt.
        domain: groups prompts in reports.
        turns: the messages; those of the assistant are the answers.
        plain: whether the row is text without turns.
    """

    id: str
    domain: str
    turns: list[Message]
    plain: bool = False


def prompt_of(turns: Sequence[Message]) -> str | list[Message]:
    """``turns`` without the answers at their end; see :func:`as_prompt`."""
    end = len(turns)
    while end and turns[end - 1]["role"] == "assistant":
        end -= 1
    return as_prompt(turns[:end])


def as_prompt(turns: Sequence[Message]) -> str | list[Message]:
    """``turns`` as a prompt; a single one of the user is text."""
    alone = len(turns) == 1 and turns[0].keys() == {"role", "content"} and turns[0]["role"] == "user"
    return text_of(turns[0]["content"]) if alone else [*turns]


def as_text(prompt: str | list[Message]) -> str:
    """A prompt in one string: text as it is, messages as JSON."""
    return prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)


def answer_text(message: Message) -> str:
    """The text of an answer.

    Raises:
        InputError: it is empty, or holds more than text, such as calls of tools.
    """
    more = [key for key, value in message.items() if key not in SAYING and value not in ("", [], {})]
    if more:
        raise InputError(f"an answer holds {more[0]!r}, and only its text would be learned; leave the row out")
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
    """The examples of ``source``, in its order.

    Args:
        split: see :func:`~.rows.read_rows`.
        column: the column that holds the prompt or the conversation. Default: found by its name.
        answer: the column that holds the answer, or ``"none"``. Default: found by its name.
        answers: whether answers are wanted; a row whose answer is not found is then refused.
        notes: counts the rows from which something is left out, by what it is.

    Raises:
        InputError: a row has no prompt in a known form, or its answer cannot be read; names the row and its columns.
    """
    for number, given in enumerate(read_rows(source, split=split), 1):
        row = _of_batch({name: value for name, value in given.items() if value is not None})
        try:
            name, turns = _question(row, column)
            if answers:
                turns = _answered(row, name, turns, answer)
            elif turns[-1]["role"] == "assistant" or row.keys() & {*ANSWERS, *PREFERENCES} - {name}:
                notes["their answers are left out: the target answers itself"] += 1
            if len(turns) > 1 and all(turn["role"] == "user" for turn in turns):
                turns = turns[:1]
                notes["only the first question is taken: the others follow answers that are not there"] += 1
            for left in (key for key in UNREAD if isinstance(row.get(key), Sized) and len(row[key])):
                notes[f"their {left} are left out: the chat template is given the messages alone"] += 1
            as_prompts(turns)  # checks the messages
            prompt = prompt_of(turns)
            if not prompt or not as_text(prompt).strip():
                raise InputError(f"the prompt is empty or not text: {reprlib.repr(row[name])}")
        except InputError as error:
            raise InputError(f"{name_of(source)}: row {number}: {error}") from None
        label = row.get("id", hashlib.sha256(as_text(prompt).encode()).hexdigest()[:16])
        yield Example(str(label), str(row.get("domain", "all")), turns, plain=name == "text")


def _of_batch(row: Record) -> Record:
    """The request in a row of an OpenAI batch file, or the row itself."""
    body = row.get("body")
    if not isinstance(body, Mapping) or not row.keys() & {"custom_id", "url", "method"}:
        return row
    taken = {name: body[name] for name in ("messages", "prompt", "input", *UNREAD) if body.get(name) is not None}
    return taken | ({"id": row["custom_id"]} if "custom_id" in row else {})


def _question(row: Record, column: str | None) -> tuple[str, list[Message]]:
    """The column of the prompt, and its turns, with the row's context and system message."""
    there = ", ".join(sorted(row)) or "none"
    name = column or next((name for name in (*CONVERSATIONS, *PROMPTS) if name in row), None)
    if name is None and row.keys() & {*PREFERENCES}:
        raise InputError(f"has preferences but no prompt; it has {there}; choose one answer with --column chosen")
    if name is None or name not in row:
        missing = "of a known form" if name is None else repr(name)
        raise InputError(
            f"no column {missing} contains a prompt; it has {there}; name the prompt's column with --column"
        )
    turns = _turns(row[name], name)
    context = next((row[key] for key in CONTEXTS if name in ASKED and isinstance(row.get(key), str)), "")
    if context.strip() and len(turns) == 1:
        turns = [turns[0] | {"content": f"{text_of(turns[0]['content'])}\n\n{context}"}]
    system = next((row[key] for key in SYSTEMS if isinstance(row.get(key), str)), "")
    if system.strip() and turns[0]["role"] != "system":
        turns = [{"role": "system", "content": system}, *turns]
    return name, turns


def _answered(row: Record, name: str, turns: list[Message], column: str | None) -> list[Message]:
    """``turns`` with their answer, if there is one.

    Raises:
        InputError: it cannot be told which column holds the answer, or what is there is empty or not text.
    """
    if column == NO_ANSWER or (column is None and turns[-1]["role"] == "assistant"):
        return turns
    used = {name, *(CONTEXTS if name in ASKED else ())}
    found = column or next((other for other in ANSWERS if other in row and other not in used), None)
    there = ", ".join(sorted(row))
    if found is None:
        if row.keys() & {*PREFERENCES} - used:
            raise InputError(
                "has several answers, chosen and rejected; name the answer to learn with --answer-column chosen"
            )
        others = [
            key for key in row if key not in ABOUT | used and isinstance(row[key], str | list | dict) and row[key]
        ]
        if others and name != "text":
            raise InputError(
                f"no column of a known form holds the answer; it has {there}; name it with --answer-column, or learn "
                f"prompts alone with --answer-column {NO_ANSWER}"
            )
        return turns
    if found not in row:
        raise InputError(
            f"no column {found!r} contains an answer; it has {there}; name another column with --answer-column"
        )
    value = row[found]
    if found == "reference" and isinstance(value, list) and (not value or len(value) == len(turns)):
        pairs = zip(turns, value, strict=False)
        return [one for turn, text in pairs for one in (turn, {"role": "assistant", "content": text})] or turns
    given = [{"role": "assistant", "content": value}] if isinstance(value, str) else _turns(value, found)
    if given[: len(turns)] == turns:  # a whole conversation
        given = given[len(turns) :]
    if not given or given[0]["role"] == "user" or given[-1]["role"] != "assistant":
        raise InputError(f"{found} holds no answer to the prompt; name its column with --answer-column")
    return [*turns, *given]


def _turns(value: object, name: str) -> list[Message]:
    """The messages in a column: text, texts, or messages in OpenAI's or ShareGPT's form."""
    if isinstance(value, str) and name in CONVERSATIONS and value.lstrip().startswith("["):
        with naming_file(name, "give text or a list of messages"):
            value = parse_json(value)
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list | tuple) or not value:
        raise InputError(f"{name} is empty or not text: {reprlib.repr(value)}; give text or a list of messages")
    if all(isinstance(one, str) for one in value):
        return [{"role": "user", "content": text} for text in value]
    return [_message(one, f"{name}[{place}]") for place, one in enumerate(value)]


def _message(given: object, name: str) -> Message:
    if not isinstance(given, Mapping):
        raise InputError(f"{name} is not a message: {reprlib.repr(given)}; give {{'role': …, 'content': …}}")
    message = {key: value for key, value in given.items() if value is not None}
    role = message.pop("role", message.pop("from", None))
    content = message.pop("content", message.pop("value", None))
    if role not in ROLES:
        raise InputError(f"{name}: the role {role!r} is unknown; choose one of {', '.join(ROLES)}")
    if content is None and not message.get("tool_calls"):
        raise InputError(f"{name} has no content; it has {', '.join(map(str, message)) or 'a role alone'}")
    return {"role": ROLES[role], "content": "" if content is None else content, **message}
