"""Workloads: their rows as questions, answers in Spec-Bench's format, and its report logic over them."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specpilot import main as cli
from specpilot.common.errors import InputError
from transformers import AutoTokenizer

from experiments.scoring.tasks import Question, load_questions
from experiments.workloads import questions
from experiments.workloads.questions import score

from .tiny import save_pair


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def databases(tmp_path: Path) -> Path:
    folder = tmp_path / "database" / "shop"
    folder.mkdir(parents=True)
    with sqlite3.connect(folder / "shop.sqlite") as connection:
        connection.execute("CREATE TABLE item (name TEXT, price REAL)")
        connection.execute("INSERT INTO item VALUES ('pen', 2)")
    connection.close()
    return tmp_path / "database"


ROWS: dict[str, dict[str, Any]] = {
    "spec-bench": {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."], "reference": ["a", "b"]},
    "mt-bench": {"prompt_id": 9, "category": "math", "prompt": ["What is 1 + 1?", "And 2 + 2?"], "reference": []},
    "alpaca": {"instruction": "Add.", "input": "1 and 2", "output": "3"},
    "gsm8k": {"question": "1 + 1?", "answer": "It is 2.\n#### 2"},
    "humaneval": {"task_id": "H/0", "prompt": "def f():\n", "test": "def check(f):\n    f()", "entry_point": "f"},
    "spider": {"db_id": "shop", "question": "What is cheap?", "query": "SELECT name FROM item"},
    "xsum": {"id": "7", "document": "Long text.", "summary": "Text."},
}
KINDS = {"spec-bench": "rouge", "mt-bench": "", "alpaca": "rouge", "gsm8k": "answer", "humaneval": "code"}


@pytest.mark.parametrize("task", list(ROWS))
def test_rows_become_questions(task: str, tmp_path: Path, databases: Path) -> None:
    file = write(tmp_path / "rows.jsonl", [ROWS[task]] * 3)
    found = load_questions(task, file, limit=2, databases=databases)
    assert len(found) == 2
    one = found[0]
    assert one.kind == KINDS.get(task, {"spider": "sql", "xsum": "rouge"}.get(task))
    assert one.id != ""
    assert len(one.turns) == (2 if task in ("spec-bench", "mt-bench") else 1)
    if task == "spider":
        assert "item(name text, price real)" in one.turns[0]
        assert score(one, "SELECT name FROM item WHERE price < 3;", run_code=False) == 1
    if task == "gsm8k":
        assert score(one, "#### 2.0", run_code=False) == 1
    if task == "humaneval":
        assert score(one, "    return 1\n", run_code=False) is None  # off unless asked for
        assert score(one, "    return 1\n", run_code=True) == 1
        assert score(one, "    return 1 / 0\n", run_code=True) == 0
    if task == "mt-bench":
        assert score(one, "anything", run_code=True) is None


def test_any_prompts_are_questions(tmp_path: Path) -> None:
    file = write(tmp_path / "p.jsonl", [{"prompt": "Say hi.", "response": "hi there"}, {"prompt": "Say ho."}])
    one, other = load_questions("prompts", file)
    assert score(one, "hi there", run_code=False) == 1
    assert other.kind == ""
    assert len(load_questions("prompts", "builtin", split="test", limit=5)) == 5


@pytest.mark.parametrize(
    ("task", "row", "message"),
    [
        ("gsm8k", {"question": "1?"}, "row 1 has no column 'answer'"),
        ("spec-bench", {"turns": []}, "has no column 'category'"),
        ("spec-bench", {"turns": [], "category": "x"}, "an empty question"),
        ("spec-bench", {"turns": [" "], "category": "x"}, "an empty question"),
        ("trivia", {"prompt": "x"}, "task='trivia': choose one of prompts, spec-bench"),
        ("spider", ROWS["spider"], "databases: Spider's questions"),
    ],
)
def test_rows_that_are_no_questions(task: str, row: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        load_questions(task, write(tmp_path / "rows.jsonl", [row]))


def test_homes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the task 'spec-bench' has no hub dataset; give its file"):
        load_questions("spec-bench", "builtin")
    file = write(tmp_path / "rows.jsonl", [ROWS["spider"]])
    with pytest.raises(InputError, match=r"shop.sqlite: the database does not open"):
        load_questions("spider", file, databases=tmp_path / "elsewhere")


def spec_bench_speedups(ours: Path, base: Path, tokenizer: Any, categories: list[str]) -> float:
    """The report's logic from its description: means over questions; the baseline's text is encoded again."""

    def lines(path: Path) -> list[dict[str, Any]]:
        every = [json.loads(line) for line in path.read_text().splitlines()]
        return [line["choices"][0] for line in every if line["category"] in categories]

    speeds = [sum(one["new_tokens"]) / sum(one["wall_time"]) for one in lines(ours)]
    plain = []
    for one in lines(base):
        tokens = sum(len(tokenizer(turn).input_ids) - 1 for turn in one["turns"])
        plain.append(tokens / sum(one["wall_time"]))
    return float(np.mean(speeds) / np.mean(plain))


def test_spec_benchs_report_reads_our_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, draft = save_pair(tmp_path)
    rows = [ROWS["spec-bench"], {"question_id": 82, "category": "qa", "turns": ["Who?"]}]
    rows += [{"question_id": 83, "category": "qa", "turns": ["Why?"]}]
    words = f"bench questions --task spec-bench --target {target} --draft {draft} --max-new-tokens 9 --no-chat"
    words += f" --prompts {write(tmp_path / 'q.jsonl', rows)} --length 2 --output {tmp_path / 'out'} --top-k null"
    assert cli.main(words.split()) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    ours, base = tmp_path / "out" / "token-wise.jsonl", tmp_path / "out" / "autoregressive.jsonl"
    tokenizer = AutoTokenizer.from_pretrained(target)
    for name, categories in {"overall": ["writing", "qa"], "qa": ["qa"], "mt_bench": ["writing"]}.items():
        expected = spec_bench_speedups(ours, base, tokenizer, categories)
        assert result["speed"][name]["spec_bench"] == pytest.approx(expected)
    for line in map(json.loads, ours.read_text().splitlines()):
        choice = line["choices"][0]
        assert set(line) == {"question_id", "category", "answer_id", "model_id", "choices", "tstamp"}
        assert sum(choice["accept_lengths"]) == sum(choice["new_tokens"])
        assert len(choice["accept_lengths"]) == sum(choice["decoding_steps"])
        assert len(choice["turns"]) == len(choice["wall_time"]) == (2 if line["question_id"] == 81 else 1)
    assert set(result["quality"]) == {"autoregressive", "token-wise"}
    assert result["quality"]["autoregressive"]["scored"] == 1
    assert "perplexity" in result["quality"]["token-wise"]


def test_a_run_that_was_cut_short_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Answers that were given are kept, their times with them; what a setting changes is asked again."""
    target, draft = save_pair(tmp_path)
    rows = [{"prompt": "Say hi.", "response": "hi"}, {"prompt": "Say ho."}, {"prompt": "Say no."}]
    words = f"bench questions --target {target} --draft {draft} --max-new-tokens 6 --no-chat --length 2"
    words += f" --prompts {write(tmp_path / 'q.jsonl', rows)} --output {tmp_path / 'out'}"

    class Killed(Exception):
        pass

    asked = 0

    def until_killed(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 6:  # two warm up, three are stored
            raise Killed
        return given(*arguments)

    given = questions.answer_question
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(questions, "answer_question", until_killed)
        with pytest.raises(Killed):
            cli.main(words.split())
        first = {file.name: file.read_bytes() for file in (tmp_path / "out" / "records").iterdir()}
        assert len(first) == 3
        assert not (tmp_path / "out" / "token-wise.jsonl").exists()
        asked = -9
        assert cli.main(words.split()) == 0
        assert asked == -9 + 2 + 3  # the three that are left, after a warm-up each
        for name, content in first.items():
            assert (tmp_path / "out" / "records" / name).read_bytes() == content
        once = [json.loads(capsys.readouterr().out.splitlines()[-1])]
        for _ in range(2):
            assert cli.main(words.split()) == 0
            once.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
        assert asked == -9 + 2 + 3
        assert once[0] == once[1] == once[2]
        asked = -9
        assert cli.main([*words.split(), "--temperature", "0.5"]) == 0
        assert asked == -9 + 2 + 6


def test_a_question_without_a_reference_has_no_score() -> None:
    assert score(Question(1, "x", ("?",)), "text", run_code=True) is None
