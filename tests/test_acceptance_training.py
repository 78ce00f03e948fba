"""Training of the acceptance head: data, loss, selection, exact resume, export."""

from __future__ import annotations

import csv
import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from specpilot.controllers.checkpoints.checkpoint import load_controller
from specpilot.controllers.checkpoints.fingerprint import model_fingerprint
from specpilot.controllers.errors import InputError
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.dataset import DatasetWriter, Row
from specpilot.data_gen.lock import locked
from specpilot.infer.models.hidden import forward_with_hidden
from specpilot.options import AcceptanceTrainingOptions
from specpilot.train import acceptance_module
from specpilot.train.acceptance import train_acceptance
from specpilot.train.acceptance_data import (
    VALIDATION,
    AcceptanceDataModule,
    draft_features,
    from_draft,
    is_validation,
    mixing_for,
)
from specpilot.train.acceptance_module import AcceptanceModule, new_head, weighted_bce
from specpilot.train.callbacks import RunCheckpoints
from specpilot.train.export import export
from specpilot.train.features import FeatureCache
from specpilot.train.run_folder import Run, read_run
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY, HIDDEN = 64, 32


def make_model(seed: int) -> LlamaForCausalLM:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=128,
        )
        return LlamaForCausalLM(config).eval().requires_grad_(False)


def make_rows(count: int, seed: int = 0) -> list[Row]:
    """Rollouts whose acceptance depends on the draft's token, so that there is something to learn."""
    generator = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        length = int(generator.integers(3, 12))
        x, y = (generator.integers(0, VOCABULARY, length).tolist() for _ in range(2))
        p = [0.95 if token % 2 else 0.15 for token in y]
        prompt = generator.integers(0, VOCABULARY, int(generator.integers(2, 9))).tolist()
        rows.append(Row(f"prompt-{number}", "", prompt, x, y, p))
    return rows


def write_dataset(
    folder: Path, rows: list[Row], draft: str, *, complete: bool = True, kind: str = "acceptance"
) -> Path:
    fingerprint = {"target": "t" * 64, "draft": model_fingerprint(make_model(1)), "tokenizer": "k" * 64}
    identity = {
        "kind": kind,
        "schema_version": 1,
        "target": "some/target",
        "draft": draft,
        "fingerprint": fingerprint,
        "sampling": SamplingParams(0.8, 20, 0.95).as_dict(),
        "seed": 0,
        "settings": {},
        "code_version": "0",
    }
    with DatasetWriter(folder, identity) as writer:
        for start in range(0, len(rows), 16):
            writer.write(rows[start : start + 16])
        if complete:
            writer.complete()
    return folder


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a draft model, another of the same shape, and a dataset made with the first."""
    folder = tmp_path_factory.mktemp("acceptance")
    make_model(1).save_pretrained(folder / "draft")
    make_model(2).save_pretrained(folder / "other")
    write_dataset(folder / "data", make_rows(60), str(folder / "draft"))
    return folder


@pytest.fixture(scope="module")
def settings(work: Path) -> AcceptanceTrainingOptions:
    return AcceptanceTrainingOptions(
        data=str(work / "data"),
        depth=1,
        mixing=0.15,
        epochs=3,
        batch_size=8,
        lr=1e-2,
        validation_fraction=0.2,
        checkpoint_every=2,
        log_every=1,
        threads=1,
        device="cpu",
    )


@pytest.fixture(scope="module")
def finished(work: Path, settings: AcceptanceTrainingOptions) -> Path:
    """The run folder of an uninterrupted training."""
    train_acceptance(settings, output=work / "finished")
    return work / "finished"


def metrics_rows(run: Path) -> list[dict[str, str]]:
    with open(run / "metrics.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def last_weights(run: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    return state


def assert_same_run(run: Path, other: Path) -> None:
    ours, theirs = last_weights(run), last_weights(other)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name
    assert (run / "metrics.csv").read_bytes() == (other / "metrics.csv").read_bytes()
    assert (run / "result.json").read_bytes() == (other / "result.json").read_bytes()
    best, other_best = (torch.load(folder / "checkpoints" / "best.ckpt", weights_only=True) for folder in (run, other))
    assert all(torch.equal(best["head"][name], other_best["head"][name]) for name in best["head"])


# Settings


def test_defaults_are_the_papers() -> None:
    defaults = AcceptanceTrainingOptions(data="d")
    assert (defaults.depth, defaults.w_acc, defaults.w_rej, defaults.mixing) == (3, 1, 6, None)
    assert (defaults.lr, defaults.epochs, defaults.batch_size, defaults.weight_decay) == (5e-5, 3, 32, 0)


def test_the_share_of_target_tokens_follows_the_datasets_agreement(
    settings: AcceptanceTrainingOptions, tmp_path: Path
) -> None:
    """The paper's 0.15 where the draft agrees more often than not."""
    assert (mixing_for(0.69), mixing_for(0.5), mixing_for(0.31)) == (0.15, 0.15, 0.5)
    mean = json.loads((Path(settings.data) / "manifest.json").read_text())["mean_acceptance"]
    train_acceptance(replace(settings, mixing=None, epochs=1), output=tmp_path / "run")
    assert read_run(tmp_path / "run", AcceptanceTrainingOptions).settings.mixing == mixing_for(mean)


@pytest.mark.parametrize("name", ["acceptance", "tiny"])
def test_shipped_configs_name_every_setting(name: str) -> None:
    from importlib.resources import files

    values = yaml.safe_load(files("specpilot.train.configs").joinpath(f"{name}.yaml").read_text(encoding="utf-8"))
    assert set(values) == {field.name for field in fields(AcceptanceTrainingOptions)}
    config = AcceptanceTrainingOptions(**values)
    if name == "acceptance":
        assert config == AcceptanceTrainingOptions(data=values["data"], mixing=0.15)


@pytest.mark.parametrize(
    "wrong",
    [
        {"depth": -1},
        {"w_rej": 0.0},
        {"w_acc": math.inf},
        {"lr": math.nan},
        {"lr": -1e-3},
        {"mixing": 1.0},
        {"mixing": -0.1},
        {"epochs": 0},
        {"batch_size": 0},
        {"validation_fraction": 0.0},
        {"validation_fraction": 1.0},
        {"seed": -1},
        {"max_length": 1},
        {"weight_decay": -1.0},
        {"threads": 0},
        {"checkpoint_every": 0},
        {"log_every": 0},
        {"cache_epochs": 2},
        {"cache_features": True, "cache_epochs": 0},
    ],
)
def test_bad_settings_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"^{list(wrong)[-1]}=.*: \w[^\n]*$"):
        AcceptanceTrainingOptions(data="d", **wrong)


def test_settings_do_not_import_torch() -> None:
    code = "import sys, specpilot.options; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Loss and head


def test_loss_against_a_hand_computation() -> None:
    logits, p = torch.tensor([0.0, 2.0]), torch.tensor([0.25, 1.0])
    a = 1 / (1 + math.exp(-2))
    total = -(1 * 0.25 * math.log(0.5) + 6 * 0.75 * math.log(0.5)) - 1 * 1.0 * math.log(a)
    expected = total / (0.25 + 6 * 0.75 + 1.0)
    assert float(weighted_bce(logits, p, 1.0, 6.0)) == pytest.approx(expected, rel=1e-6)


def test_loss_is_least_where_theory_says() -> None:
    """A token accepted with probability a pulls the head to w_acc·a / (w_acc·a + w_rej·(1-a))."""
    p, grid = torch.full((1,), 0.8), torch.linspace(0.001, 0.999, 999)
    losses = torch.stack([weighted_bce(torch.logit(a)[None], p, 1.0, 6.0) for a in grid])
    assert float(grid[losses.argmin()]) == pytest.approx(0.8 / (0.8 + 6 * 0.2), abs=1e-3)


def test_loss_of_certain_logits_and_of_no_tokens_is_finite() -> None:
    assert math.isfinite(float(weighted_bce(torch.tensor([1e4, -1e4]), torch.tensor([0.0, 1.0]), 1.0, 6.0)))
    nothing = torch.empty(0, requires_grad=True)
    loss = weighted_bce(nothing, torch.empty(0), 1.0, 6.0)
    loss.backward()
    assert loss.item() == 0


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_blocks_of_the_head_do_not_share_weights(depth: int) -> None:
    head = new_head(HIDDEN, depth, seed=0)
    expected = depth * (HIDDEN * HIDDEN + HIDDEN) + HIDDEN + 1
    assert sum(p.numel() for p in head.parameters()) == expected
    assert len({p.data_ptr() for p in head.parameters()}) == 2 * depth + 2


def test_new_head_depends_on_the_seed_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, second = new_head(8, 1, seed=1), new_head(8, 1, seed=1)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first.out.weight, second.out.weight)
    assert not torch.equal(first.out.weight, new_head(8, 1, seed=2).out.weight)


# Data


def test_mixing_share_and_determinism() -> None:
    drafted = np.concatenate([from_draft(0, 1, row, 100, 0.15) for row in range(400)])
    # 40,000 coins: five standard deviations are 0.009
    assert abs(1 - drafted.mean() - 0.15) < 0.009
    assert np.array_equal(from_draft(0, 1, 7, 100, 0.15), from_draft(0, 1, 7, 100, 0.15))
    for other in ((1, 1, 7), (0, 2, 7), (0, 1, 8)):
        assert not np.array_equal(from_draft(0, 1, 7, 100, 0.15), from_draft(*other, 100, 0.15))


def test_batches_hold_what_the_mixing_says(settings: AcceptanceTrainingOptions) -> None:
    rows = make_rows(60)
    data = AcceptanceDataModule(rows, replace(settings, mixing=0.4))
    chosen = [3, 11, 20]
    batch = data.batch(2, chosen)
    offset, seen = batch.tokens.shape[1] - batch.keep, 0
    for b, index in enumerate(chosen):
        row, drafted = rows[index], from_draft(settings.seed, 2, index, len(rows[index].x), 0.4)
        z = [row.y[i] if drafted[i] else row.x[i] for i in range(len(row.x))]
        length = len(row.prompt_ids) + len(z)
        assert batch.tokens[b, :length].tolist() == row.prompt_ids + z
        assert batch.real[b].tolist() == [1] * length + [0] * (batch.real.shape[1] - length)
        for i in np.flatnonzero(drafted):
            assert batch.where[:, seen].tolist() == [b, len(row.prompt_ids) + i - offset]
            assert float(batch.p[seen]) == pytest.approx(row.p[i])
            seen += 1
    assert seen == len(batch.p) == batch.where.shape[1]


def test_mixing_is_redrawn_every_epoch_and_fixed_in_validation(settings: AcceptanceTrainingOptions) -> None:
    data = AcceptanceDataModule(make_rows(60), settings)
    epochs = [torch.cat([batch.p for batch in data.train_dataloader()]).sort().values for _ in range(2)]
    assert len(epochs[0]) != len(epochs[1]) or not torch.equal(*epochs)
    loader = data.val_dataloader()
    first, second = (torch.cat([batch.p for batch in loader]) for _ in range(2))
    assert torch.equal(first, second)


def test_features_are_those_of_the_token_itself(settings: AcceptanceTrainingOptions) -> None:
    """Row by row without padding: the draft's hidden state after reading Z_i, not the one that proposed it."""
    draft, rows = make_model(1), make_rows(60)
    data = AcceptanceDataModule(rows, settings)
    batch = data.batch(1, [4, 9, 17])
    features = draft_features(draft, batch)
    offset = batch.tokens.shape[1] - batch.keep
    for (b, column), feature in zip(batch.where.T.tolist(), features, strict=True):
        prefix = batch.tokens[b, : offset + column + 1]
        expected = draft.model(prefix[None]).last_hidden_state[0, -1]
        torch.testing.assert_close(feature, expected, atol=1e-5, rtol=1e-5)


def test_split_goes_by_the_prompt_and_keeps_to_the_fraction(settings: AcceptanceTrainingOptions) -> None:
    share = sum(is_validation(f"prompt-{n}", 0.1) for n in range(10_000)) / 10_000
    assert abs(share - 0.1) < 0.015
    rows = make_rows(60)
    data = AcceptanceDataModule([*rows, *rows], settings)
    held_out = {data.rows[i].prompt_id for i in data.validation}
    assert held_out.isdisjoint(data.rows[i].prompt_id for i in data.training)
    assert len(data.validation) + len(data.training) == 120


def test_max_length_cuts_responses_and_leaves_out_prompts_that_fill_it(settings: AcceptanceTrainingOptions) -> None:
    rows = [*make_rows(60), Row("long", "", list(range(20)), [1], [2], [0.5])]
    data = AcceptanceDataModule(rows, replace(settings, max_length=10))
    assert data.left_out == 1
    assert max(data.batch(1, [i]).tokens.shape[1] for i in range(len(data.rows))) == 10


@pytest.mark.parametrize(
    ("p", "words"),
    [([0.5, 1.5], "P=1.5"), ([0.5, -0.1], "P=-0.1"), ([math.nan, 0.1], "P=nan"), ([0.5], "differ in length")],
)
def test_malformed_rows_are_refused(settings: AcceptanceTrainingOptions, p: list[float], words: str) -> None:
    with pytest.raises(InputError, match=f"'bad'.*{words}"):
        AcceptanceDataModule([*make_rows(20), Row("bad", "", [1], [1, 2], [3, 4], p)], settings)


def test_each_side_of_the_split_needs_a_rollout(settings: AcceptanceTrainingOptions) -> None:
    with pytest.raises(InputError, match="0 to validation"):
        AcceptanceDataModule(make_rows(5), replace(settings, validation_fraction=1e-6))


# Training


def test_training_learns(settings: AcceptanceTrainingOptions, tmp_path: Path) -> None:
    result = train_acceptance(replace(settings, epochs=25, batch_size=4, w_rej=1.0), output=tmp_path / "run")
    assert result.metrics["kl"] < 0.25 * result.metrics["kl_constant"]
    assert result.metrics["auroc"] > 0.85  # 0.9 is the most: P is 0.95 or 0.15


def test_run_folder(finished: Path, settings: AcceptanceTrainingOptions, work: Path) -> None:
    rows = metrics_rows(finished)
    validation = [row for row in rows if row["val_kl"]]
    assert len(validation) == settings.epochs
    training = [row for row in rows if row["loss"]]
    steps = len(training)
    assert [int(row["step"]) for row in training] == list(range(1, steps + 1))
    for row in training:  # half a cosine from lr towards 0
        expected = settings.lr * 0.5 * (1 + math.cos(math.pi * (int(row["step"]) - 1) / steps))
        assert float(row["lr"]) == pytest.approx(expected)
    written = yaml.safe_load((finished / "run.yaml").read_text(encoding="utf-8"))
    assert AcceptanceTrainingOptions(**written) == replace(settings, draft=str(work / "draft"))
    assert json.loads((finished / "env.json").read_text(encoding="utf-8"))["versions"]["torch"] == torch.__version__
    assert (finished / "command.txt").read_text(encoding="utf-8").count("\n") == 1
    assert {path.name for path in (finished / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}


def test_checkpoints_hold_the_head_alone(finished: Path) -> None:
    assert all(name.startswith("head.") for name in last_weights(finished))


def test_a_complete_run_is_left_alone(
    finished: Path, settings: AcceptanceTrainingOptions, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    result = train_acceptance(settings, output=finished)
    assert "complete; nothing to do" in capsys.readouterr().out
    assert result.metrics["kl"] == json.loads((finished / "result.json").read_text(encoding="utf-8"))["metrics"]["kl"]
    assert before == {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}


def test_the_global_generator_decides_nothing_and_is_left_alone(
    finished: Path, settings: AcceptanceTrainingOptions, tmp_path: Path
) -> None:
    torch.manual_seed(123)
    state = torch.get_rng_state()
    train_acceptance(settings, output=tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), state)
    assert_same_run(tmp_path / "run", finished)


def test_the_epoch_of_lowest_validation_kl_is_kept(
    settings: AcceptanceTrainingOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kls = iter([0.5, 0.2, 0.3])
    real = acceptance_module.acceptance_metrics
    monkeypatch.setattr(acceptance_module, "acceptance_metrics", lambda *a, **k: {**real(*a, **k), "kl": next(kls)})
    result = train_acceptance(settings, output=tmp_path / "run")
    assert (result.epoch, result.metrics["kl"]) == (1, 0.2)
    best = torch.load(tmp_path / "run" / "checkpoints" / "best.ckpt", weights_only=True)
    last = last_weights(tmp_path / "run")
    assert best["step"] == 2 * result.step // 2 == result.step
    assert not torch.equal(best["head"]["out.weight"], last["head.out.weight"])


@pytest.mark.parametrize(
    ("owner", "hook", "call"),
    [
        *((AcceptanceModule, "training_step", call) for call in (1, 3, 4, 5, 6, 7, 8, 12, 13, 18)),
        *((AcceptanceModule, "validation_step", call) for call in (1, 2, 3, 6)),
        *((AcceptanceModule, "on_validation_epoch_end", call) for call in (1, 2, 3)),
        *((RunCheckpoints, "on_train_epoch_end", call) for call in (1, 3)),
        *((RunCheckpoints, "_save_last", call) for call in (1, 2, 3, 4, 9)),
        (Run, "complete", 1),
    ],
)
def test_resume_after_a_stop_anywhere_is_exact(
    finished: Path,
    settings: AcceptanceTrainingOptions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    hook: str,
    call: int,
) -> None:
    """Three epochs of six steps, a checkpoint every two: stops within an epoch, at its last step, around validation."""
    original, calls = vars(owner)[hook], iter(range(1, 100))

    def stopping(*arguments: Any) -> Any:
        if next(calls) == call:
            raise RuntimeError("stopped here")
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(owner, hook, stopping)
        with pytest.raises(RuntimeError, match="stopped here"):
            train_acceptance(settings, output=tmp_path / "run")
    train_acceptance(settings, output=tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", finished)


def test_resume_after_kill_is_exact(settings: AcceptanceTrainingOptions, tmp_path: Path) -> None:
    """SIGKILL to a process in training, as soon as its first checkpoint is there."""
    settings = replace(settings, epochs=40)
    train_acceptance(settings, output=tmp_path / "whole")
    run = tmp_path / "run"
    total = int(metrics_rows(tmp_path / "whole")[-1]["step"])
    script = (
        "import sys, json, pathlib\n"
        "from specpilot.train.acceptance import train_acceptance\n"
        "from specpilot.options import AcceptanceTrainingOptions\n"
        "settings = AcceptanceTrainingOptions(**json.loads(sys.argv[1]))\n"
        "train_acceptance(settings, output=pathlib.Path(sys.argv[2]), resume=True)\n"
    )
    last = run / "checkpoints" / "last.ckpt"
    command = [sys.executable, "-c", script, json.dumps(asdict(settings)), str(run)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not last.exists():
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert 0 < torch.load(last, weights_only=True)["global_step"] < total
    train_acceptance(settings, output=run, resume=True)
    assert_same_run(run, tmp_path / "whole")


def test_an_unfinished_run_asks_to_be_resumed_with_its_own_settings(
    settings: AcceptanceTrainingOptions, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: Any) -> None:
        raise RuntimeError("stopped here")

    with monkeypatch.context() as patch:
        patch.setattr(AcceptanceModule, "training_step", stop)
        with pytest.raises(RuntimeError, match="stopped here"):
            train_acceptance(settings, output=tmp_path / "run")
    with pytest.raises(InputError, match="unfinished run; pass --resume"):
        train_acceptance(settings, output=tmp_path / "run")
    with pytest.raises(InputError, match=r"run with lr=0\.01, now it is 0\.02"):
        train_acceptance(replace(settings, lr=0.02), output=tmp_path / "run", resume=True)
    other = write_dataset(tmp_path / "other", make_rows(60, seed=9), str(work / "draft"))
    with pytest.raises(InputError, match="run on other data"):
        train_acceptance(replace(settings, data=str(other)), output=tmp_path / "run", resume=True)
    with pytest.raises(InputError, match="no epoch is finished"):
        export(tmp_path / "run", tmp_path / "controller")


def test_cached_features_give_the_same_run(
    finished: Path, settings: AcceptanceTrainingOptions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_acceptance(replace(settings, cache_features=True), output=tmp_path / "run")
    file = tmp_path / "run" / "features.npy"
    stored = np.load(file, mmap_mode="r")
    assert f"{len(stored):,} positions × {HIDDEN} in float32 = {stored.nbytes / 1e6:,.1f} MB" in capsys.readouterr().out
    ours, theirs = metrics_rows(tmp_path / "run"), metrics_rows(finished)
    for row, expected in zip(ours, theirs, strict=True):
        assert row.keys() == expected.keys()
        for name in row:
            assert row[name] == expected[name] or float(row[name]) == pytest.approx(float(expected[name]), abs=1e-5)


def test_cached_features_equal_those_on_the_fly(settings: AcceptanceTrainingOptions, tmp_path: Path) -> None:
    draft, rows = make_model(1), make_rows(60)
    data = AcceptanceDataModule(rows, replace(settings, cache_features=True, cache_epochs=2))
    plain = AcceptanceDataModule(rows, settings)
    data.use_cache(FeatureCache(tmp_path / "features.npy", HIDDEN), draft)
    for stream, chosen in ((1, data.training[:2]), (2, data.training[-3:]), (VALIDATION, data.validation[:2])):
        expected = draft_features(draft, plain.batch(stream, chosen))
        torch.testing.assert_close(data.batch(stream, chosen).features, expected, atol=1e-6, rtol=1e-6)
    # two mixings are kept, so the third epoch sees the first one's tokens again
    third, first = data._train_batch(2, torch.arange(4)), data._train_batch(0, torch.arange(4))
    assert torch.equal(third.tokens, first.tokens)
    assert not torch.equal(data._train_batch(1, torch.arange(4)).tokens, first.tokens)


def test_all_of_the_target_s_is_every_token_after_its_text(settings: AcceptanceTrainingOptions, tmp_path: Path) -> None:
    """r = 1: each Y_i after X_<i alone, by a forward of its own; the same in every epoch."""
    draft, rows = make_model(1), make_rows(12)
    settings = replace(settings, mixing=1.0, cache_features=True, max_length=14)
    data = AcceptanceDataModule(rows, settings)
    data.use_cache(FeatureCache(tmp_path / "features.npy", HIDDEN), draft)
    batch = data.batch(1, data.training[:4])
    expected, p = [], []
    for index in data.training[:4]:
        row = data.rows[index]
        for i in range(min(len(row.x), 14 - len(row.prompt_ids))):
            ids = torch.tensor([[*row.prompt_ids, *row.x[:i], row.y[i]]])
            expected.append(forward_with_hidden(draft, input_ids=ids)[1][0, -1])
            p.append(row.p[i])
    assert batch.features is not None
    torch.testing.assert_close(batch.features, torch.stack(expected), atol=1e-5, rtol=1e-4)
    assert batch.p.tolist() == pytest.approx(p)
    later = data._train_batch(2, torch.arange(4)).features
    assert later is not None
    assert torch.equal(later, data._train_batch(0, torch.arange(4)).features)
    result = train_acceptance(replace(settings, epochs=1), output=tmp_path / "run")
    assert math.isfinite(result.metrics["kl"])
    with pytest.raises(InputError, match=r"mixing=1\.0: takes cache_features"):
        replace(settings, cache_features=False)


def test_features_of_another_size_are_refused(tmp_path: Path) -> None:
    FeatureCache(tmp_path / "f.npy", 4).fill({(0, 0): 3}, 1, [torch.zeros(3, 4)])
    with pytest.raises(InputError, match="another run"):
        FeatureCache(tmp_path / "f.npy", 4).fill({(0, 0): 2}, 1, [torch.zeros(2, 4)])


def test_no_space_for_features_is_said_before_they_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(InputError, match=r"needs 4\.0 MB"):
        FeatureCache(tmp_path / "f.npy", 1000).fill({(0, 0): 1000}, 1, iter([]))


def test_weights_and_biases_offline(
    settings: AcceptanceTrainingOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    train_acceptance(replace(settings, epochs=1, wandb="project"), output=tmp_path / "run")
    (offline,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    assert json.loads((tmp_path / "run" / "env.json").read_text(encoding="utf-8"))["run_id"] in offline.name


# What is refused


def test_incomplete_data_is_refused(settings: AcceptanceTrainingOptions, work: Path, tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", make_rows(20), str(work / "draft"), complete=False)
    with pytest.raises(InputError, match="incomplete"):
        train_acceptance(replace(settings, data=str(data)), output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_data_of_another_kind_is_refused(settings: AcceptanceTrainingOptions, work: Path, tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", make_rows(20), str(work / "draft"), kind="routing")
    with pytest.raises(InputError, match="kind 'routing'"):
        train_acceptance(replace(settings, data=str(data)), output=tmp_path / "run")


def test_another_draft_of_the_same_shape_is_refused(
    settings: AcceptanceTrainingOptions, work: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="not the draft the data was made with"):
        train_acceptance(replace(settings, draft=str(work / "other")), output=tmp_path / "run")
    train_acceptance(replace(settings, epochs=1), output=tmp_path / "run")  # the mistake has left nothing behind


def test_a_probability_out_of_range_is_refused(settings: AcceptanceTrainingOptions, work: Path, tmp_path: Path) -> None:
    rows = make_rows(20)
    rows[7].p[0] = 1.25
    data = write_dataset(tmp_path / "data", rows, str(work / "draft"))
    with pytest.raises(InputError, match=r"'prompt-7': P=1\.25"):
        train_acceptance(replace(settings, data=str(data)), output=tmp_path / "run")


def test_a_folder_of_something_else_is_refused(settings: AcceptanceTrainingOptions, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"notes\.txt"):
        train_acceptance(settings, output=tmp_path)
    with pytest.raises(InputError, match="is a file"):
        train_acceptance(settings, output=tmp_path / "notes.txt")


def test_a_folder_in_use_is_refused(settings: AcceptanceTrainingOptions, tmp_path: Path) -> None:
    with locked(tmp_path / "run", "is training in it"), pytest.raises(InputError, match="another process"):
        train_acceptance(settings, output=tmp_path / "run")


def test_divergence_is_an_error(
    settings: AcceptanceTrainingOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = torch.tensor(math.nan)
    monkeypatch.setattr(acceptance_module, "draft_features", lambda draft, batch: broken.expand(len(batch.p), HIDDEN))
    with pytest.raises(InputError, match="loss is nan at step 1; try a smaller lr"):
        train_acceptance(settings, output=tmp_path / "run")


def test_a_full_disk_is_one_line(
    settings: AcceptanceTrainingOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RunCheckpoints, "_save_last", full)
    with pytest.raises(InputError, match=r"cannot be written \(No space left"):
        train_acceptance(settings, output=tmp_path / "run")


# Export


def test_export_gives_the_best_head(
    finished: Path, settings: AcceptanceTrainingOptions, work: Path, tmp_path: Path
) -> None:
    controller = load_controller(export(finished, tmp_path / "controller"))
    best = torch.load(finished / "checkpoints" / "best.ckpt", weights_only=True)
    for name, value in controller.head.state_dict().items():
        assert torch.equal(value, best["head"][name])
    config = controller.config
    assert (config.hidden_size, config.depth, config.w_acc, config.w_rej) == (HIDDEN, 1, 1, 6)
    assert (config.threshold, config.threshold_source) == (0.7, "paper default")
    provenance = config.provenance
    assert (provenance.target, provenance.draft) == ("some/target", str(work / "draft"))
    assert provenance.sampling == SamplingParams(0.8, 20, 0.95)
    assert provenance.fingerprint.draft == model_fingerprint(make_model(1))
    assert config.metrics == pytest.approx(best["metrics"])
    assert "| kl_undone |" in (tmp_path / "controller" / "README.md").read_text(encoding="utf-8")


def test_export_with_a_threshold(finished: Path, tmp_path: Path) -> None:
    config = load_controller(export(finished, tmp_path / "controller", threshold=0.4)).config
    assert (config.threshold, config.threshold_source) == (0.4, "given at export")
    with pytest.raises(InputError, match="not empty"):
        export(finished, tmp_path / "controller")
    export(finished, tmp_path / "controller", overwrite=True)
    with pytest.raises(InputError, match=r"threshold=1\.5"):
        export(finished, tmp_path / "other", threshold=1.5)


def test_export_of_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no run\.yaml"):
        export(tmp_path, tmp_path / "controller")


def test_export_of_a_damaged_run(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    best = tmp_path / "run" / "checkpoints" / "best.ckpt"
    best.write_bytes(best.read_bytes()[:500])
    with pytest.raises(InputError, match=r"best\.ckpt: truncated"):
        export(tmp_path / "run", tmp_path / "controller")
    with open(tmp_path / "run" / "run.yaml", "a", encoding="utf-8") as file:
        file.write("momentum: 0.9\n")
    with pytest.raises(InputError, match="momentum"):
        export(tmp_path / "run", tmp_path / "controller")
