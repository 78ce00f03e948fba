"""Processes that are ended by signals, datasets whose shards are damaged, and writes that fail half-way."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from specpilot import main as cli
from specpilot.bench.faults.contents import contents
from specpilot.bench.faults.damage import one_bit, truncated
from specpilot.bench.faults.processes import SIGNAL, Fault, run
from specpilot.controllers.errors import InputError
from specpilot.data_gen.dataset import MANIFEST, DatasetWriter, read_dataset

from .test_router_training import make_rows as make_router_rows
from .test_router_training import write as write_router_data
from .tiny import save_pair
from .training import make_rows

IDENTITY = {
    "kind": "acceptance", "schema_version": 2, "target": "a", "draft": "b", "fingerprint": {"target": "c"},
    "sampling": {"temperature": 1.0, "top_k": None, "top_p": 1.0},
}  # fmt: skip


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_a_signal_ends_a_training_as_it_ends_any_command(tmp_path: Path, number: int, code: int) -> None:
    """Lightning would report 1 and 0."""
    write_router_data(tmp_path / "data", make_router_rows(100))
    output = tmp_path / "run"
    words = ["train", "router", "--data", str(tmp_path / "data"), "--width", "8", "--epochs", "4", "--batch-size", "16"]
    words += ["--checkpoint-every", "1", "--device", "cpu", "--output", str(output), "--resume"]
    whole = run(cli.main, words, output)
    assert whole.code == 0, whole.text
    expected = contents(output)
    output.rename(tmp_path / "whole")
    for at in (whole.touches // 2, whole.touches // 2):
        ended = run(cli.main, words, output, Fault(SIGNAL, at, number))
        assert (ended.code, ended.complaint()) == (code, "interrupted" if number == signal.SIGINT else None)
    assert run(cli.main, words, output).code == 0
    assert contents(output) == expected


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    save_pair(folder)
    (folder / "p.txt").write_text("".join(f"prompt {i}\n" for i in range(24)))
    return folder


def commands(place: Path, output: Path) -> dict[str, list[str]]:
    pair = ["--target", str(place / "target"), "--draft", str(place / "draft"), "--prompts", str(place / "p.txt")]
    rollouts = ["--no-chat", "--max-new-tokens", "6", "--shard-size", "8", "--output", str(output / "data")]
    features = ["--predictor", "lag-free", "--validation-fraction", "0.3", "--traced", "1"]
    data = str(output / "data")
    return {
        "data": ["data", "acceptance", *pair, *rollouts],
        "features": [
            "data",
            "features",
            "--data",
            str(output / "data"),
            *features,
            "--output",
            str(output / "features"),
        ],
    }


@pytest.mark.parametrize("damage", [truncated, one_bit])
def test_damaged_shards_are_named_and_made_again(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[bytes, Random], bytes]
) -> None:
    for name, words in commands(place, tmp_path).items():
        assert cli.main(words) == 0
        whole = contents(tmp_path / name)
        for shard in [*(tmp_path / name).glob("shard-*")][1:3]:
            shard.write_bytes(damage(shard.read_bytes(), Random(0)))
        shard = tmp_path / name / "shard-00000.parquet"
        if name == "data":
            shard.unlink()
            assert cli.main(["train", "acceptance", "--data", str(tmp_path / name), "--output", "never"]) == 2
            assert f"{shard}: missing or changed since it was written; run the command" in capsys.readouterr().err
        assert cli.main(words) == 0
        assert "missing or changed; made again" in capsys.readouterr().err
        assert contents(tmp_path / name) == whole


def test_a_first_shard_that_fails_leaves_a_folder_that_can_be_continued(tmp_path: Path) -> None:
    """Another file of the dataset was written before it."""
    with pytest.raises(OSError), DatasetWriter(tmp_path / "data", IDENTITY):  # noqa: PT012 - the block fails
        (tmp_path / "data" / "times.json").write_text("{}")
        raise OSError(errno.ENOSPC, "No space left on device")
    with DatasetWriter(tmp_path / "data", IDENTITY) as writer:
        writer.write(make_rows(4))
        writer.complete()
    assert len(read_dataset(tmp_path / "data")) == 4


def test_a_dataset_of_served_requests_is_not_to_be_made_again(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "log", IDENTITY | {"served": True}) as writer:
        writer.write(make_rows(4))
    (tmp_path / "log" / "shard-00000.parquet").write_bytes(b"")
    with pytest.raises(InputError, match="served requests cannot be made again"):
        read_dataset(tmp_path / "log")
    assert (tmp_path / "log" / MANIFEST).exists()
