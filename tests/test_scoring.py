"""Scores of texts: against what they must be, and against texts that do their worst."""

from __future__ import annotations

import itertools
import math
import sqlite3
import time
from pathlib import Path

import pytest
import torch
from specpilot.common.errors import InputError
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.models import language_model

from experiments.scoring.answer import answer_score, final_number
from experiments.scoring.code import code_score, extract_code
from experiments.scoring.perplexity import Likelihood, likelihood, perplexity, perplexity_change
from experiments.scoring.rouge import rouge_l
from experiments.scoring.sandbox import Limits, passes
from experiments.scoring.sql import SECONDS, extract_sql, run_query, sql_score

from .tiny import make


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "t5"])
def test_likelihood_is_the_models_own(architecture: str) -> None:
    model = make(architecture, vocab=32)
    prompt, tokens = [1, 2, 3], [4, 5, 6, 7]
    with torch.inference_mode():
        if model.config.is_encoder_decoder:
            decoded = torch.tensor([[0, *tokens[:-1]]])
            logits = model(input_ids=torch.tensor([prompt]), decoder_input_ids=decoded).logits[0]
        else:
            logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    expected = sum(float(row.log_softmax(-1)[token]) for row, token in zip(logits, tokens, strict=True))
    found = likelihood(language_model(model), prompt, tokens)
    assert found.tokens == 4
    assert found.log_p == pytest.approx(expected, abs=1e-3)


def test_perplexity_is_under_the_targets_own_distribution() -> None:
    """A greedy text has the perplexity that the target's own probabilities give it, not 1."""
    decoder = SpeculativeDecoder(make(), make(layers=1))
    generation = decoder.generate([1, 2], temperature=0, max_new_tokens=8)
    assert likelihood(decoder.target, [1, 2], generation.tokens).log_p < -0.1


def test_perplexity_of_several_outputs() -> None:
    half, eighth = Likelihood(3 * math.log(1 / 2), 3), Likelihood(math.log(1 / 8), 1)
    found = perplexity([half, eighth])
    assert found["value"] == pytest.approx(64 ** (1 / 4))
    assert (found["low"], found["high"]) == (pytest.approx(2), pytest.approx(8))
    assert perplexity_change([half, half], [eighth, eighth])["value"] == pytest.approx(2 / 8 - 1)


def test_rouge_l() -> None:
    assert rouge_l("the cat sat", "the cat sat") == 1
    assert rouge_l("", "the cat") == 0
    assert rouge_l("the cat on mat", "the cat sat on the mat") == pytest.approx(2 * 4 / (4 + 6))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 3 + 4 = 7\n#### 7", "7"),
        ("#### 1,250 dollars", "1250"),
        ("It costs $18.50.", "18.50"),
        ("first 3, then -4", "-4"),
        ("no idea", None),
        ("7 in all ####", "7"),
    ],
)
def test_the_answer_of_a_text(text: str, number: str | None) -> None:
    assert str(final_number(text)) == str(number)


def test_answers_match_as_numbers() -> None:
    assert answer_score("#### 1,000.0", "… #### 1000") == 1
    assert answer_score("#### 1001", "#### 1000") == answer_score("none", "#### 1000") == 0


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "shop.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE item (name TEXT, price REAL)")
        connection.executemany("INSERT INTO item VALUES (?, ?)", [("pen", 2), ("ink", 5), ("cap", 2)])
    connection.close()
    return path


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
GOLD = "SELECT name FROM item WHERE price < 4"


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("SELECT name FROM item WHERE price = 2 ORDER BY name;", 1),  # order does not matter where gold has none
        ("Here it is:\n```sql\nselect name from item where price <= 2\n```\nDone.", 1),
        ("SELECT name FROM item", 0),
        ("SELECT name FROM items", 0),
        ("I do not know", 0),
        ("SELECT name FROM item WHERE price < 4; DROP TABLE item", 1),  # the first statement alone
        (ENDLESS, 0),
        ("SELECT zeroblob(2000000000)", 0),
    ],
)
def test_execution_accuracy(database: Path, text: str, score: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock moves by a second each time it is read, so that only the endless query takes long."""
    clock = itertools.count()
    monkeypatch.setattr(time, "monotonic", clock.__next__)
    assert sql_score(text, GOLD, database) == score
    assert (next(clock) > SECONDS) == (text == ENDLESS)


def test_order_counts_where_gold_asks_for_it(database: Path) -> None:
    gold = "SELECT name FROM item ORDER BY price, name"
    assert sql_score(gold, gold, database) == 1
    assert sql_score("SELECT name FROM item ORDER BY name DESC", gold, database) == 0


@pytest.mark.parametrize("statement", ["DELETE FROM item", "ATTACH 'other.db' AS o", "PRAGMA user_version = 3"])
def test_queries_only_read(database: Path, statement: str) -> None:
    with pytest.raises(sqlite3.Error):
        run_query(database, statement)
    assert len(run_query(database, "SELECT * FROM item")) == 3
    assert list(database.parent.iterdir()) == [database]


def test_databases_that_do_not_open(tmp_path: Path, database: Path) -> None:
    (tmp_path / "text.sqlite").write_text("no database " * 200)
    for name in ("text.sqlite", "missing.sqlite"):
        with pytest.raises(InputError, match=rf"{name}: the database does not open") as error:
            sql_score(GOLD, GOLD, tmp_path / name)
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="the reference query does not run"):
        sql_score(GOLD, "SELECT x FROM y", database)


def test_where_the_query_is() -> None:
    assert extract_sql("The query: SELECT a\nFROM b\n\nThat is all.") == "SELECT a\nFROM b"
    assert extract_sql("nothing") == ""


QUICK = Limits(seconds=1.0, memory_mib=256)
SLOW = Limits(seconds=20.0, memory_mib=256)


def test_programs_that_pass_and_fail() -> None:
    assert passes("import math, collections, re\nassert math.pi > 3\nopen('x', 'w').write('y')", SLOW)
    assert not passes("assert 1 > 2", SLOW)
    assert not passes("def f(:", SLOW)


@pytest.mark.parametrize(
    "program",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "x = 'a' * 10**9",
        "import socket; socket.socket()",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.fork()",
        "import os; os.system('true')",
        "import ctypes; ctypes.CDLL(None)",
        "open('FILE', 'w')",
        "import os; os.kill(os.getppid(), 9)",
        "x = []\nwhile True: x.append(bytes(10**6))",
        "def f(): f()\nf()",
    ],
)
def test_programs_that_do_their_worst(program: str, tmp_path: Path) -> None:
    assert not passes(program.replace("FILE", str(tmp_path / "file")), SLOW)
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("program", ["while True: pass", "import time; time.sleep(99)"])
def test_programs_that_never_end_are_killed(program: str) -> None:
    assert not passes(program, QUICK)


def test_human_eval() -> None:
    prompt = "def double(x):\n"
    tests = "def check(f):\n    assert f(2) == 4\n"
    assert code_score("    return 2 * x\n\ndef other():\n    return (", prompt, tests, "double", SLOW) == 1
    assert code_score("    return x\n", prompt, tests, "double", SLOW) == 0
    assert code_score("Sure:\n```python\ndef double(x):\n    return x + x\n```", prompt, tests, "double", SLOW) == 1
    assert extract_code("```\n    return 1\n```", prompt) == "def double(x):\n    return 1\n"
