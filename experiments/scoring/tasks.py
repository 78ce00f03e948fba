"""Public workloads as questions: their columns, the text given to the model, and the reference for scoring.

A workload is a function from a row to a question, and an entry in ``TASKS``. Rows are read from a file, a folder or the
hub.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specpilot.common.errors import InputError
from specpilot.data_gen.prompts import load_prompts, read_rows

from .database import schema

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Question:
    """One question.

    Attributes:
        id: id in the source, a number or a text.
        category: groups questions in reports.
        turns: the user's messages; each follows the model's answer to the previous one.
        kind: method of scoring: ``rouge``, ``answer`` (a number), ``sql``, ``code``; empty for none.
        reference: data for scoring, by name.
    """

    id: int | str
    category: str
    turns: tuple[str, ...]
    kind: str = ""
    reference: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """A workload: its hub dataset, the split, and the function that makes a question from a row."""

    hub: str
    split: str
    question: Callable[[Row, Path | None], Question]


def _rouge(reference: object) -> dict[str, Any]:
    return {"kind": "rouge", "reference": {"text": str(reference)}} if reference else {}


def _alpaca(row: Row, _: Path | None) -> Question:
    more = str(row.get("input") or "").strip()
    text = f"{row['instruction']}\n\n{more}" if more else str(row["instruction"])
    return Question(row.get("id", ""), "alpaca", (text,), **_rouge(row.get("output")))


def _gsm8k(row: Row, _: Path | None) -> Question:
    text = f"{row['question']}\nEnd with the answer after ####."
    return Question(row.get("id", ""), "math_reasoning", (text,), "answer", {"text": str(row["answer"])})


def _human_eval(row: Row, _: Path | None) -> Question:
    reference = {"prompt": str(row["prompt"]), "tests": str(row["test"]), "entry_point": str(row["entry_point"])}
    return Question(row["task_id"], "coding", (str(row["prompt"]),), "code", reference)


def _conversation(row: Row, _: Path | None) -> Question:
    """Spec-Bench's and MT-Bench's question files (``turns``), and MT-Bench on the hub (``prompt``, a list)."""
    given = row["turns"] if "turns" in row else row["prompt"]
    turns = tuple(map(str, given if isinstance(given, list) else [given]))
    answers = row.get("reference") or []
    found = _rouge(answers[-1]) if isinstance(answers, list) and 0 < len(answers) == len(turns) else {}
    return Question(row.get("question_id", row.get("prompt_id", "")), str(row["category"]), turns, **found)


def _spider(row: Row, databases: Path | None) -> Question:
    if databases is None:
        raise InputError("databases: Spider's questions need its databases; give the folder that holds them")
    name = str(row["db_id"])
    file = databases / name / f"{name}.sqlite"
    text = f"Database {name} with tables:\n{schema(file)}\n\nQuestion: {row['question']}\nSQL:"
    return Question(
        row.get("id", ""), "text-to-sql", (text,), "sql", {"query": str(row["query"]), "database": str(file)}
    )


def _xsum(row: Row, _: Path | None) -> Question:
    text = f"Article: {row['document']}\n\nSummarize the above article in 1 sentence."
    return Question(row.get("id", ""), "summarization", (text,), **_rouge(row["summary"]))


TASKS: dict[str, Task] = {
    "spec-bench": Task("", "test", _conversation),
    "mt-bench": Task("HuggingFaceH4/mt_bench_prompts", "train", _conversation),
    "alpaca": Task("tatsu-lab/alpaca", "train", _alpaca),
    "gsm8k": Task("openai/gsm8k:main", "test", _gsm8k),
    "humaneval": Task("openai/openai_humaneval", "test", _human_eval),
    "spider": Task("xlangai/spider", "validation", _spider),
    "xsum": Task("EdinburghNLP/xsum", "test", _xsum),
}


def load_questions(
    task: str,
    source: str,
    *,
    column: str = "prompt",
    split: str = "test",
    limit: int | None = None,
    skip: int = 0,
    domains: Sequence[str] | None = None,
    databases: Path | None = None,
) -> list[Question]:
    """The first ``limit`` questions of ``task``, or of any prompts (task ``prompts``).

    Args:
        task: a name in ``TASKS``, or ``prompts`` for rows with a prompt in ``column`` and optionally a ``response``.
        skip: number of questions to skip first.
        domains: for the task ``prompts``, take only prompts of these domains.
        source: as for prompts; ``builtin`` is the task's hub dataset.
        databases: Spider's folder ``database``.

    Raises:
        InputError: there is no such task, or a row lacks one of its columns.
    """
    if task == "prompts":
        rows = load_prompts(source, column=column, split=split, limit=limit, skip=skip, domains=domains)
        given = (
            {}
            if source == "builtin"
            else {row.get(column): row.get("response") for row in read_rows(source, split=split)}
        )
        return [Question(row.id, row.domain, (row.prompt,), **_rouge(given.get(row.prompt))) for row in rows]
    if task not in TASKS:
        raise InputError(f"task={task!r}: choose one of {', '.join(['prompts', *TASKS])}")
    kind = TASKS[task]
    if source == "builtin" and not kind.hub:
        raise InputError(f"prompts: the task {task!r} has no hub dataset; give its file of questions")
    place, split = (kind.hub, kind.split) if source == "builtin" else (source, split)
    found = read_rows(place, split=split)
    if skip >= len(found):
        raise InputError(f"skip={skip}: {place} has {len(found)} questions, so none is left; skip fewer")
    questions = []
    for number, row in enumerate(found[skip:][:limit], skip + 1):
        try:
            question = kind.question(row, databases)
        except KeyError as error:
            raise InputError(
                f"{place}: row {number} has no column {error}, which the task {task!r} needs; it has "
                f"{', '.join(sorted(row))}"
            ) from None
        if not question.turns or not all(turn.strip() for turn in question.turns):
            raise InputError(f"{place}: row {number} holds an empty question")
        questions.append(question if question.id != "" else _numbered(question, number))
    return questions


def _numbered(question: Question, number: int) -> Question:
    return Question(number, question.category, question.turns, question.kind, question.reference)
