"""Processes that are killed or ended by signals, datasets whose shards are damaged, and writes that fail half-way."""

import errno
import json
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import yaml
from specpilot.cli import main as cli
from specpilot.common.errors import InputError
from specpilot.compare.store import Store
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.dataset import MANIFEST, ShardWriter, read_manifest
from specpilot.data_gen.kinds import AcceptanceRow, RoundsRow, Rows, read_dataset
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.random_source import RandomSource
from specpilot.models.kv_cache import RaggedLayer
from specpilot.serve.round_log import RoundLog

from ..helpers import http
from ..helpers.folders import assert_whole, contents, one_bit, shared_folder, truncated
from ..helpers.processes import KILLS, SIGNAL, Fault
from ..helpers.serving import serving
from ..helpers.stages import STAGES, Stages
from ..helpers.training import last_weights, make_rows, metrics_rows

Damage = Callable[[bytes, Random], bytes]
IDENTITY = {
    "kind": "acceptance", "target": "a", "draft": "b", "fingerprint": {"target": "c"},
    "sampling": {"temperature": 1.0, "top_k": None, "top_p": 1.0},
}  # fmt: skip


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Stages:
    return Stages(shared_folder(tmp_path_factory, "stages"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_a_signal_ends_a_training_as_it_ends_any_command(
    stages: Stages, tmp_path: Path, number: int, code: int
) -> None:
    """Lightning would report 1 and 0. The signal comes while batches are trained."""
    fault = Fault(SIGNAL, stages.undisturbed("train router").touches * 2 // 3, number)
    ended = stages.run("train router", tmp_path / "run", fault)
    assert ended.code == code
    assert ended.complaint.startswith("interrupted; ") == (number == signal.SIGINT)
    stages.finish("train router", tmp_path / "run")


@pytest.mark.parametrize("damage", [truncated, one_bit])
@pytest.mark.parametrize("name", ["data acceptance", "data features"])
def test_damaged_shards_are_named_and_made_again(
    stages: Stages, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, damage: Damage
) -> None:
    folder = Path(shutil.copytree(stages.undisturbed(name).folder, tmp_path / "data"))
    first, *later_shards = sorted(folder.glob("shard-*"))
    for shard in later_shards[:2]:
        shard.write_bytes(damage(shard.read_bytes(), Random(0)))
    if name == "data acceptance":
        first.unlink()
        assert cli.main(["train", "acceptance", "--data", str(folder), "--output", "never"]) == 2
        assert f"{first}: missing or changed since it was written; run the command" in capsys.readouterr().err
    assert stages.work(name, folder)() == 0
    assert "is missing or changed, and is made again" in capsys.readouterr().err
    assert contents(folder) == stages.undisturbed(name).contents


def test_a_first_shard_that_fails_leaves_a_folder_that_can_be_continued(tmp_path: Path) -> None:
    """Another file of the dataset exists before the first shard fails."""
    with pytest.raises(OSError), ShardWriter(tmp_path / "data", IDENTITY):  # noqa: PT012 - the block fails
        (tmp_path / "data" / "times.json").write_text("{}")
        raise OSError(errno.ENOSPC, "No space left on device")
    with ShardWriter(tmp_path / "data", IDENTITY) as writer:
        writer.write(Rows(make_rows(4)))
        writer.complete()
    assert len(read_dataset(tmp_path / "data", AcceptanceRow)) == 4


def test_a_log_continues_after_its_last_shard(tmp_path: Path) -> None:
    """The log continues, although an earlier shard was damaged and removed from the manifest, as the message says."""
    with ShardWriter(tmp_path / "log", IDENTITY) as writer:
        for _ in range(3):
            writer.write(Rows(make_rows(2)))
    manifest = json.loads((tmp_path / "log" / MANIFEST).read_text())
    manifest["shards"] = manifest["shards"][1:]
    (tmp_path / "log" / MANIFEST).write_text(json.dumps(manifest))
    with ShardWriter(tmp_path / "log", IDENTITY) as writer:
        writer.write(Rows(make_rows(3)))
    assert len(read_dataset(tmp_path / "log", AcceptanceRow)) == 2 + 2 + 3


def test_a_dataset_of_served_requests_is_not_to_be_made_again(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "log", IDENTITY | {"served": True}) as writer:
        writer.write(Rows(make_rows(4)))
    (tmp_path / "log" / "shard-00000.parquet").write_bytes(b"")
    with pytest.raises(InputError, match="served requests cannot be repeated"):
        read_dataset(tmp_path / "log", AcceptanceRow)
    assert (tmp_path / "log" / MANIFEST).exists()


@pytest.mark.parametrize("name", ["last.ckpt", "best.ckpt"])
@pytest.mark.parametrize("damage", [truncated, one_bit])
def test_a_damaged_checkpoint_is_named(
    stages: Stages, tmp_path: Path, name: str, damage: Damage, capsys: pytest.CaptureFixture[str]
) -> None:
    """PyTorch would read weights with a changed bit."""
    folder = Path(shutil.copytree(stages.undisturbed("train router").folder, tmp_path / "run"))
    train = stages.work("train router", folder)
    (folder / "result.json").unlink()
    file = folder / "checkpoints" / name
    content = file.read_bytes()
    # Within the weights, not in the archive's padding.
    file.write_bytes(content[:2000] + damage(content[2000:-2000], Random(1)) + content[-2000:])
    assert train() == 2
    assert f"{file}: truncated or damaged; remove its folder" in capsys.readouterr().err
    shutil.rmtree(file.parent)
    assert train() == 0


@pytest.mark.parametrize("place", range(0, 1200, 53))
def test_a_damaged_record_of_a_benchmark_is_not_believed(tmp_path: Path, place: int) -> None:
    identity, result = {"what": "a" * 64}, [[number / 7] for number in range(40)]
    with Store(tmp_path) as store:
        store.put(identity, result)
        assert store.get(identity) == result
        (file,) = (tmp_path / "records").iterdir()
        content = bytearray(file.read_bytes())
        content[place % len(content)] ^= 1
        file.write_bytes(bytes(content))
        with pytest.raises(InputError, match="remove the file, and the result is computed again"):
            store.get(identity)


def test_texts_are_answered_while_the_log_of_rounds_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decoder = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length=4, verifier="token-wise")
    log = RoundLog(tmp_path / "log", decoder, "tiny", "tiny-draft", shard_size=2)
    (tmp_path / "log" / "shard-00000.parquet.tmp").mkdir()  # no file can be written there
    with serving(decoder, log=log) as (_, address):

        def decode(seed: int) -> None:
            body = {"prompt": "What is 12 plus 30?", "max_tokens": 8, "seed": seed}
            assert http.post(f"{address}/v1/completions", json=body).status_code == 200

        for seed in range(5):
            decode(seed)
        assert capsys.readouterr().err.count("rounds cannot be logged") == 1
        assert read_manifest(tmp_path / "log").shards == []
        (tmp_path / "log" / "shard-00000.parquet.tmp").rmdir()
        decode(5)
    assert len(read_manifest(tmp_path / "log").shards) == 3
    assert len(read_dataset(tmp_path / "log", RoundsRow)) == 6


def test_an_interrupt_while_a_request_leaves_is_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoder's caches are emptied in any state, and the decoder can be used again."""
    decoder = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length=4)

    def decode() -> list[list[int]]:
        # The first one leaves first, and the second takes its row.
        greedy, rng = SamplingParams(0.0, None), RandomSource(0)
        requests = [decoder.new_request([1, 2, 3], greedy, count, rng, stop_tokens=frozenset()) for count in (4, 40)]
        decoder.scheduler.submit(requests)
        while not all(request.finished for request in requests):
            decoder.scheduler.step()
        return [request.output.tokens for request in requests]

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    expected = decode()
    with monkeypatch.context() as patch:
        patch.setattr(RaggedLayer, "move_row", interrupted)
        with pytest.raises(KeyboardInterrupt):
            decode()
    assert decode() == expected


# Every stage is killed again and again and leaves what a run leaves that nobody kills; finished runs are continued


SLOW = (  # whose code is mostly that of another stage
    "train lag-free", "train features", "train draft, stored states", "train copies", "data answers", "data on-policy",
)  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in STAGES])
def test_killed_is_the_same_in_the_end(stages: Stages, name: str, tmp_path: Path) -> None:
    """Kills happen at different kinds of file operations, and in the middle of writes."""
    step = stages.undisturbed(name).touches // KILLS
    for turn in range(KILLS):
        ended = stages.run(name, tmp_path / "out", Fault(SIGNAL, step - turn % 4))
        assert ended.code == -signal.SIGKILL, ended
        assert_whole(tmp_path / "out")
    stages.finish(name, tmp_path / "out")


# Finished runs that are trained further


METRICS = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
PLAIN = ("train router", "train features")  # trainers whose steps do not depend on the number of epochs
TRAININGS = [name for name in STAGES if name.startswith("train ")]


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in TRAININGS])
def test_more_epochs(stages: Stages, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run ends like the undisturbed run, which has two epochs from the beginning."""
    stage = STAGES[name]
    assert stage.reads is not None
    words = [word for word in stage.words if word != "--resume"]
    words += [
        "--data",
        str(stages.undisturbed(stage.reads).folder),
        "--device",
        "cpu",
        "--output",
        str(tmp_path / "grown"),
    ]
    assert cli.main([*words, "--epochs", "1"]) == 0
    assert cli.main(words) == 2
    assert "contains a run with epochs=1; pass --resume to train it further" in capsys.readouterr().err
    for _ in range(2):  # the second time there is nothing to do
        assert cli.main([*words, "--resume"]) == 0
    assert "nothing to do" in capsys.readouterr().out
    runs = stages.undisturbed(name).folder, tmp_path / "grown"
    rates = ([row["lr"] for row in metrics_rows(run) if row["epoch"] == "2"] for run in runs)
    assert len({*map(tuple, rates)}) == 1
    names = {re.sub(r"^val_|\d$", "", name) for name in metrics_rows(runs[0])[0]}
    assert [name for name in names if not re.search(rf"`{name}1?`", METRICS)] == []
    settings = [yaml.safe_load((run / "run.yaml").read_text()) for run in runs]
    assert settings[0] == settings[1]
    assert (runs[1] / "result.json").exists()
    if name in PLAIN:
        undisturbed, resumed = map(last_weights, runs)
        assert all(bool((undisturbed[weight] == resumed[weight]).all()) for weight in undisturbed)
    assert cli.main([*words, "--resume", "--epochs", "1"]) == 2
    assert "belongs to a run with other settings: epochs was 2 and is 1; repeat" in capsys.readouterr().err
