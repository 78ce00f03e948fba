"""Bad input on the command line: one clear line, exit code 2, nothing half-written left behind."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from specpilot import main as cli
from specpilot.checkpoints import FOLDER
from transformers import AutoModelForCausalLM

from .tiny import byte_tokenizer, save_pair


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    save_pair(folder)
    (folder / "prompts.txt").write_text("".join(f"prompt {i}\n" for i in range(6)))
    (folder / "long.txt").write_text("long " * 60 + "\n")
    (folder / "settings.yaml").write_text("max_new_tokens: 4\nmax_new_token: 4\n")
    (folder / "wrong.yaml").write_text("max_new_tokens: four\n")
    broken = AutoModelForCausalLM.from_pretrained(folder / "target")
    broken.get_output_embeddings().weight.data[5] = torch.nan
    broken.save_pretrained(folder / "broken")
    byte_tokenizer().save_pretrained(folder / "broken")
    other = AutoModelForCausalLM.from_pretrained(folder / "draft")
    other.save_pretrained(folder / "other")
    byte_tokenizer(extra=2).save_pretrained(folder / "other")
    weights = AutoModelForCausalLM.from_pretrained(folder / "draft")
    weights.save_pretrained(folder / "cut")
    byte_tokenizer().save_pretrained(folder / "cut")
    file = folder / "cut" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-64])
    head = folder / "tampered"
    head.mkdir()
    for source in (FOLDER / "tiny-head").iterdir():
        content = source.read_bytes()
        (head / source.name).write_bytes(content[:-1] + b"?" if source.suffix == ".safetensors" else content)
    return folder


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that ``specpilot words`` prints before it exits with 2."""
    assert cli.main(words) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    errors = [line for line in lines if line.startswith("specpilot: error: ")]
    assert len(errors) == 1
    assert errors[0] == lines[-1]
    assert "Traceback" not in "".join(lines)
    return errors[0].removeprefix("specpilot: error: ")


GENERATE = [
    ("hello --target {}/nothing", "nothing: no such model folder"),
    ("hello --target {}/target --draft {}/nothing", "nothing: no such model folder"),
    ("hello --target {}/target --draft {}/other", "do not share a tokenizer: 2 tokens differ, the first is '<0>'"),
    ("hello --target {}/target --draft {}/cut", "a weight file is truncated or damaged"),
    ("hello --target {}/broken --draft {}/draft", "NaN or infinite logits"),
    ("hello --target {}/target --draft {}/draft --length {}/target", "not a controller this version knows"),
    ("hello --target {}/target --draft {}/draft --length tiny-head", "another target and draft and tokenizer is given"),
    ("hello --length {}/tampered", "model.safetensors"),
    ("hello --length cumulative-confidence:7", "the threshold must be in [0, 1]"),
    ("hello --temperature -1", "temperature=-1.0: must be at least 0"),
    ("hello --top-k 0", "top_k=0: must be at least 1"),
    ("hello --device cuda:9", "device='cuda:9': not available on this machine"),
    ("--prompt= --target {}/target", "prompt: it is empty"),
    ("hello --config {}/settings.yaml", "max_new_token"),
    ("hello --config {}/wrong.yaml", "max_new_tokens: expected int or 'auto', got 'four'"),
    ("hello --dtype float8", "dtype"),
    ("hello --colour", "unknown option or extra word: --colour"),
]


@pytest.mark.parametrize(("words", "message"), GENERATE)
def test_generate(words: str, message: str, pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(["generate", *words.replace("{}", str(pair)).split()], capsys)


def test_prompt_longer_than_the_context(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", "long " * 60, "--target", f"{pair}/target", "--draft", f"{pair}/draft", "--no-chat"]
    assert "prompt: 300 tokens, but the context holds 128" in refused(words, capsys)


DATA = [
    ("--prompts {}/nothing.txt", "nothing.txt: no such file"),
    ("--prompts {}/long.txt", "but the context holds 128"),
    ("--draft {}/other", "do not share a tokenizer"),
    ("--draft {}/broken", "NaN or infinite logits"),
    ("--top-k 0", "top_k=0"),
    ("--batch-size 0", "batch_size=0: must be at least 1"),
    ("--column question", "has no column 'question'"),
]


def data(pair: Path, output: Path) -> list[str]:
    names = ["--target", f"{pair}/target", "--draft", f"{pair}/draft", "--prompts", f"{pair}/prompts.txt", "--no-chat"]
    return ["data", "acceptance", *names, "--max-new-tokens", "4", "--output", str(output)]


@pytest.mark.parametrize(("words", "message"), DATA)
def test_data(words: str, message: str, pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "data"
    assert message in refused([*data(pair, output), *words.replace("{}", str(pair)).split()], capsys)
    assert not list(output.glob("*.parquet"))


def test_data_of_another_run(pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(data(pair, tmp_path / "data")) == 0
    capsys.readouterr()
    assert "other settings (seed differ)" in refused([*data(pair, tmp_path / "data"), "--seed", "9"], capsys)


def test_no_space_left(
    pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(table: object, path: Path, **options: object) -> None:
        path.write_bytes(b"PAR1")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(pq, "write_table", full)
    assert "No space left on device" in refused(data(pair, tmp_path / "data"), capsys)
    assert {path.name for path in (tmp_path / "data").iterdir()} == {".lock", "manifest.json"}
    monkeypatch.undo()
    assert cli.main(data(pair, tmp_path / "data")) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train acceptance --data {}/nothing --output {}/run", "it is no dataset"),
        ("train acceptance --data {}/nothing --output {}/run --lr 0", "lr=0.0: must be above 0"),
        ("export {}/nothing {}/controller", "nothing"),
        ("bench rollouts --repeats 0", "repeats=0: must be at least 1"),
        ("demo --held-out 0", "held_out=0: must be at least 2"),
    ],
)
def test_the_rest(words: str, message: str, pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(words.replace("{}", str(pair)).split(), capsys)
    assert not (pair / "run").exists()
    assert not (pair / "controller").exists()
