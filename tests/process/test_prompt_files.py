"""A file of prompts becomes a file of texts in the same order, also after kills.

Each text equals that of a single call.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from specpilot.cli.main import main
from specpilot.common.errors import disk_error
from specpilot.data_gen.columns import read_examples
from specpilot.data_gen.text_file import TextFile, settings_file
from specpilot.infer.decoder import SpeculativeDecoder

from ..helpers.processes import kill_and_resume

TURNS = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Yes?"}]
AGAIN = {"role": "user", "content": "Again."}
ROWS = [
    *({"prompt": f"Count to {number}."} for number in (3, 8, 8)),
    {"id": "talk", "messages": [*TURNS, AGAIN]},
    {"conversations": [{"from": "human", "value": "One\u2028line."}]},
]
TIMES = 4  # so that some are written before each kill


def words(folder: Path, *more: str) -> tuple[str, ...]:
    output = ("--output", str(folder / "texts.jsonl"), "--max-new-tokens", "10", "--seed", "3")
    return ("generate", "--prompts", str(folder.parent / "prompts.jsonl"), *output, *more)


def answer(folder: Path) -> int:
    return main(words(folder, "--max-running", "2", "--trace"))


@pytest.fixture(scope="module")
def texts_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the texts of a killed and continued run, and those of an uninterrupted run."""
    top = tmp_path_factory.mktemp("batch")
    (top / "prompts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS * TIMES))
    whole = top / "texts-whole" / "texts.jsonl"

    def check(folder: Path) -> None:
        file = folder / "texts.jsonl"
        assert not file.exists() or {*file.read_bytes().splitlines()} <= {*whole.read_bytes().splitlines()}

    kill_and_resume(answer, top / "texts", check)
    return top / "texts"


def read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "texts.jsonl").read_text(encoding="utf-8").split("\n")[:-1]]


@pytest.mark.thorough
def test_killed_is_the_same_in_the_end(texts_file: Path) -> None:
    whole = texts_file.with_name("texts-whole")
    assert (texts_file / "texts.jsonl").read_bytes() == (whole / "texts.jsonl").read_bytes()
    assert sorted(path.name for path in texts_file.rglob("*")) == sorted(path.name for path in whole.rglob("*"))


def test_each_text_is_the_one_made_alone(texts_file: Path) -> None:
    """A single call with the text's seed gives the text.

    Rounds add up to the text, and equal prompts have different texts.
    """
    rows = read(texts_file)
    prompts = [*(row["prompt"] for row in ROWS[:3]), ROWS[3]["messages"], ROWS[4]["conversations"][0]["value"]]
    assert [row["prompt"] for row in rows] == prompts * TIMES
    assert rows[3]["id"] == "talk"
    assert rows[1]["completion"] != rows[2]["completion"]
    assert (
        json.loads(settings_file(texts_file / "texts.jsonl").read_text())["chat"] is True
    )  # not "auto", the tokenizer's
    decoder = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length=4)
    for row in rows[: len(ROWS)]:
        expected = decoder.generate(row["prompt"], chat=True, seed=row["seed"], max_new_tokens=10)
        assert (row["completion"], row["finish_reason"]) == (expected.text, expected.finish_reason)
        assert (
            row["tokens"] == expected.tokens == [token for round_row in row["rounds"] for token in round_row["emitted"]]
        )


def test_torn_lines_and_other_settings(texts_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = texts_file / "texts.jsonl"
    content = file.read_bytes()
    lines = content.splitlines(keepends=True)
    again = words(texts_file, "--trace")
    file.write_bytes(b"".join(lines[:3]) + lines[3][:20])
    assert main(again) == 0
    assert "continues after 3 texts" in " ".join(capsys.readouterr().err.split())  # long paths wrap
    assert file.read_bytes() == content
    for words_of, message in (
        ([*again, "--temperature", "0"], "temperature was 1.0 and is 0.0"),
        (words(texts_file), "trace was True and is False"),
    ):
        assert main(words_of) == 2
        assert message in capsys.readouterr().err
    for at, line, message in (
        (1, b"{\n", "texts.jsonl:2: not JSON"),
        (2, lines[0], "texts.jsonl:3: is not the text"),
    ):
        file.write_bytes(b"".join([*lines[:at], line, *lines[at + 1 :]]))
        assert main(again) == 2
        assert message in capsys.readouterr().err
    file.write_bytes(content)


def test_several_samples(texts_file: Path) -> None:
    """Each sample of a prompt has a row. A complete file is not changed."""
    folder = texts_file.with_name("samples")
    for limit, samples in (("1", [0, 1]), ("2", [0, 1, 0, 1]), ("2", [0, 1, 0, 1])):
        assert main(words(folder, "--n", "2", "--limit", limit)) == 0
        assert [row["sample"] for row in read(folder)] == samples
    assert read(folder)[0].keys() == {"id", "prompt", "sample", "seed", "completion", "finish_reason"}
    read_back = read_examples(str(folder / "texts.jsonl"), notes=Counter())
    assert [conversation.turns[-1]["content"] for conversation in read_back] == [
        row["completion"] for row in read(folder)
    ]


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    """The error names the file also when a line is appended, although the system's error names none."""
    (tmp_path / "texts.jsonl").symlink_to("/dev/full")
    file = TextFile(tmp_path / "texts.jsonl", {}, [{"seed": 1}])
    with pytest.raises(OSError, match="No space left") as raised:
        file.write({"completion": "text"}, 0)
    file.close()
    assert disk_error(raised.value).startswith(f"{tmp_path / 'texts.jsonl'}: ")
