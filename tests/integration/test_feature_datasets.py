"""Feature datasets: the contents of shards, their origin, and reading them."""

import math
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from specpilot.cli import main as cli
from specpilot.common.errors import InputError
from specpilot.controllers.acceptance import specdec_head
from specpilot.controllers.acceptance.training import Examples
from specpilot.data_gen.draft_states import from_draft
from specpilot.data_gen.feature_shards import TRAIN, VALIDATION, FeatureDataset, mapped
from specpilot.data_gen.kinds import AcceptanceRow, read_shard, text_of
from specpilot.models.causal_lm import forward_with_hidden
from specpilot.train import feature_maker, features
from specpilot.train.acceptance import AcceptanceDataModule
from specpilot.train.data_module import ResumableLoader
from specpilot.train.datasets import is_validation
from specpilot.train.features import make_features
from specpilot.train.options import FeatureDataOptions

from ..helpers.training import make_model, make_rows, write_dataset

ROWS = make_rows(60)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("features")
    make_model(1).save_pretrained(folder / "draft")
    write_dataset(folder / "data", ROWS, str(folder / "draft"))
    return folder


@pytest.fixture(scope="module")
def options(work: Path) -> FeatureDataOptions:
    return FeatureDataOptions(
        data=str(work / "data"), predictor="specdec", mixing=0.4, mixings=2, validation_fraction=0.2, traced=0,
        states="float32", device="cpu",
    )  # fmt: skip


@pytest.fixture(scope="module")
def dataset(work: Path, options: FeatureDataOptions) -> FeatureDataset:
    return FeatureDataset(make_features(options, work / "features"))


def held_out(rows: Iterable[AcceptanceRow]) -> tuple[list[int], list[int]]:
    """Return the indices of training rows and of validation rows."""
    indices: tuple[list[int], list[int]] = [], []
    for i, row in enumerate(rows):
        indices[is_validation(row.prompt_id, 0.2)].append(i)
    return indices


def part(dataset: FeatureDataset, name: str) -> dict[str, torch.Tensor]:
    shards = [shard.tensors for shard in dataset.part(name).shards]
    return {name: torch.cat([shard[name] for shard in shards]) for name in shards[0]}


def test_shares_of_mixing_and_validation() -> None:
    drafted = np.concatenate([from_draft(0, 1, row, 100, 0.15) for row in range(400)])
    # 40,000 draws: five standard deviations are 0.009
    assert abs(1 - drafted.mean() - 0.15) < 0.009
    assert abs(sum(is_validation(f"prompt-{n}", 0.1) for n in range(10_000)) / 10_000 - 0.1) < 0.015
    for other in ((1, 1, 7), (0, 2, 7), (0, 1, 8)):
        assert not np.array_equal(from_draft(0, 1, 7, 100, 0.15), from_draft(*other, 100, 0.15))


def test_shards_hold_the_states_at_mixed_tokens(dataset: FeatureDataset) -> None:
    """Row by row: the draft's hidden state after reading Z_i, not the one that proposed it; anew in every mixing."""
    draft = make_model(1)
    training, validation = held_out(ROWS)
    assert dataset.training_parts == 2
    for name, stream, rows in ((VALIDATION, 0, validation), (f"{TRAIN}0", 1, training), (f"{TRAIN}1", 2, training)):
        expected, accept, counts = [], [], []
        for index in rows:
            row, drafted = ROWS[index], from_draft(0, stream, index, len(ROWS[index].x), 0.4)
            z = [row.y[i] if drafted[i] else row.x[i] for i in range(len(row.x))]
            ids = torch.tensor([[*row.prompt_ids, *z]])
            states = draft.model(ids).last_hidden_state[0, len(row.prompt_ids) :]
            expected.append(states[drafted])
            accept += [row.p[i] for i in np.flatnonzero(drafted)]
            counts.append(int(drafted.sum()))
        shard = part(dataset, name)
        torch.testing.assert_close(shard["states"], torch.cat(expected), atol=1e-5, rtol=1e-5)
        assert shard["accept"].tolist() == pytest.approx(accept)
        assert shard["counts"].tolist() == counts
    assert torch.equal(dataset.embedding, draft.get_output_embeddings().weight)


def test_all_of_the_target_s_is_every_token_after_its_text(
    work: Path, options: FeatureDataOptions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """r = 1: each Y_i after X_<i alone, by a forward of its own; one mixing is enough.

    Texts are cut where they are longer, and one whose prompt is as long is left out.
    """
    draft = make_model(1)
    long = AcceptanceRow("long", "", [*range(20)], [1], [2], [0.5])
    data = write_dataset(tmp_path / "data", [*ROWS, long], str(work / "draft"))
    settings = replace(options, data=str(data), mixing=1.0, max_length=14)
    dataset = FeatureDataset(make_features(settings, str(tmp_path / "f"), console=Console()))
    assert "1 text left out: too short" in capsys.readouterr().out
    assert dataset.training_parts == 1
    assert sum(sum(dataset.part(name).texts) for name in (VALIDATION, f"{TRAIN}0")) == 60
    expected, p = [], []
    for index in held_out(ROWS)[0]:
        row = ROWS[index]
        for i in range(min(len(row.x), 14 - len(row.prompt_ids))):
            ids = torch.tensor([[*row.prompt_ids, *row.x[:i], row.y[i]]])
            expected.append(forward_with_hidden(draft, input_ids=ids)[1][0, -1])
            p.append(row.p[i])
    shard = part(dataset, f"{TRAIN}0")
    torch.testing.assert_close(shard["states"], torch.stack(expected), atol=1e-5, rtol=1e-4)
    assert shard["accept"].tolist() == pytest.approx(p)


def test_prompts_that_are_all_as_long_as_max_length(work: Path, options: FeatureDataOptions, tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", ROWS, str(work / "draft"))
    with pytest.raises(InputError, match=r"^max_length=2: .*--max-length"):
        make_features(replace(options, data=str(data), max_length=2), str(tmp_path / "f"))


def test_half_precision_is_the_rounded_state_and_one_too_large_is_refused(
    dataset: FeatureDataset, options: FeatureDataOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = FeatureDataset(make_features(replace(options, states="float16"), tmp_path / "half"))
    rounded, exact = part(half, VALIDATION), part(dataset, VALIDATION)
    assert rounded["states"].dtype == torch.float16
    assert torch.equal(rounded["states"], exact["states"].half())
    assert torch.equal(rounded["accept"], exact["accept"])
    monkeypatch.setattr(feature_maker, "after_mixed_text", lambda *_: Examples(torch.ones(2), torch.full((2, 2), 1e5)))
    with pytest.raises(InputError, match=r"states=float16:"):
        make_features(replace(options, states="float16"), tmp_path / "f")


def test_only_so_many_texts_of_each_dataset(work: Path, options: FeatureDataOptions, tmp_path: Path) -> None:
    second = write_dataset(tmp_path / "data", make_rows(30, seed=4), str(work / "draft"))
    data = (str(work / "data"), str(second))
    dataset = FeatureDataset(make_features(replace(options, data=data, texts=5), tmp_path / "f"))
    assert sum(dataset.part(f"{TRAIN}0").texts) == 10
    assert sum(dataset.part(VALIDATION).texts) == sum(len(held_out(rows)[1]) for rows in (ROWS, make_rows(30, seed=4)))
    assert len(dataset.manifest.datasets) == 2


@pytest.mark.parametrize(
    ("p", "words"),
    [([0.5, 1.5], "P=1.5"), ([0.5, -0.1], "P=-0.1"), ([math.nan, 0.1], "P=nan"), ([0.5], "differ in length")],
)
def test_malformed_rows_are_refused(work: Path, tmp_path: Path, p: list[float], words: str) -> None:
    data = write_dataset(tmp_path / "data", [AcceptanceRow("bad", "", [1], [1, 2], [3, 4], p)], str(work / "draft"))
    with pytest.raises(InputError, match=f"'bad'.*{words}"):
        [*map(text_of, read_shard(data / "shard-00000.parquet", AcceptanceRow))]


def test_no_room_is_reported_before_anything_is_computed(
    options: FeatureDataOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(InputError, match=r"needs 0\.\d MB, but only 0\.0 MB are free"):
        make_features(options, tmp_path / "f")


def test_small_shards_give_the_same_batches(
    options: FeatureDataOptions, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dataset: FeatureDataset
) -> None:
    """Whatever the shards, the examples are the same; more of them than may be mapped are read in turn.

    A changed one is noticed.
    """
    monkeypatch.setattr(features, "SHARD_BYTES", 2000)
    small = FeatureDataset(make_features(options, tmp_path / "f"))
    divided, whole = small.part(f"{TRAIN}0"), dataset.part(f"{TRAIN}0")
    assert len(divided.shards) > 20 > len(whole.shards)
    rows = torch.randperm(sum(divided.rows), generator=torch.Generator().manual_seed(0))
    for local_rows in (rows, rows[:0]):
        from_shards, from_whole = divided.gather(local_rows), whole.gather(local_rows)
        assert torch.equal(from_shards["accept"], from_whole["accept"])
        # The states are read in other batches.
        torch.testing.assert_close(from_shards["states"], from_whole["states"], atol=1e-5, rtol=1e-5)
    texts = torch.tensor([40, 0, 17])
    assert torch.equal(divided.rows_of_texts(texts), whole.rows_of_texts(texts))
    assert 1 < mapped.cache_info().currsize < len(divided.shards)
    file = divided.shards[0].file
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(InputError, match="missing or changed"):
        small.check()


def test_batches_are_whole_rollouts(dataset: FeatureDataset) -> None:
    settings = specdec_head.TrainingOptions(data=str(dataset.folder), mixings=2, batch_size=8, device="cpu")
    data = AcceptanceDataModule(dataset, settings)
    training = held_out(ROWS)[0]
    batches = [batch.labels for batch in data.train_dataloader()]
    assert len(batches) == len(data.train_loader) == math.ceil(len(training) / 8)
    assert torch.equal(torch.cat(batches).sort().values, part(dataset, f"{TRAIN}0")["accept"].sort().values)
    second = torch.cat([batch.labels for batch in data.train_dataloader()])  # epoch 1 takes the other mixing
    assert torch.equal(second.sort().values, part(dataset, f"{TRAIN}1")["accept"].sort().values)
    validation = torch.cat([batch.labels for batch in data.val_dataloader()])
    assert torch.equal(validation, part(dataset, VALIDATION)["accept"])


def test_an_epoch_over_many_blocks_has_every_row_once_and_resumes_anywhere() -> None:
    sizes = [5, 1, 7, 3, 0, 8, 2, 6, 4, 9, 5, 5]

    def loader() -> ResumableLoader[list[int]]:
        return ResumableLoader(sum(sizes), 4, 3, lambda epoch, rows: rows.tolist(), blocks=lambda epoch: sizes)

    whole = loader()
    first, second = list(whole), list(whole)
    assert first != second
    assert sorted(row for batch in second for row in batch) == [*range(sum(sizes))]
    for completed in (0, 6, 13):
        resumed = loader()
        resumed.load_state_dict({"epoch": 1, "batch": completed})
        assert list(resumed) == second[completed:]


def test_the_command_plans_makes_and_finishes(work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data", "features", "--data", str(work / "data"), "--mixing", "0.4", "--traced", "0", "--device", "cpu"]
    words += ["--predictor", "specdec", "--output", str(tmp_path / "f")]
    assert cli.main([*words, "--plan"]) == 0
    plan = capsys.readouterr().out
    assert not (tmp_path / "f").exists()
    assert cli.main(words) == 0
    dataset = FeatureDataset(tmp_path / "f")
    for name in (VALIDATION, TRAIN):
        rows = sum(shard.rows or 0 for shard in dataset.manifest.shards if shard.part.startswith(name))
        assert f"{rows:,} " in plan
    assert cli.main(words) == 0
    assert "already complete" in " ".join(capsys.readouterr().err.split())
