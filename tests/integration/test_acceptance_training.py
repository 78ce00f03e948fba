"""Training of acceptance predictors: settings, losses, the run folder, exact resume, export."""

import errno
import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
import yaml
from specpilot.common.errors import InputError
from specpilot.common.files import FolderLock
from specpilot.controllers.acceptance import lag_free_head, specdec_head
from specpilot.controllers.acceptance.metrics import Bin
from specpilot.controllers.checkpoints.checkpoint import load_controller
from specpilot.controllers.checkpoints.fingerprint import model_fingerprint
from specpilot.controllers.checkpoints.provenance import prompt_digest
from specpilot.controllers.sampling import SamplingParams
from specpilot.controllers.training_options import RouterTrainingOptions
from specpilot.data_gen.dataset import read_manifest
from specpilot.data_gen.draft_states import mixing_for
from specpilot.data_gen.kinds import AcceptanceRow, read_dataset
from specpilot.train.acceptance import train_acceptance
from specpilot.train.best_epoch import BestCheckpoint, BestEpoch, read_best
from specpilot.train.callbacks import RunCheckpoints
from specpilot.train.datasets import is_validation
from specpilot.train.export import export
from specpilot.train.features import make_features
from specpilot.train.modules import finish_validation
from specpilot.train.options import FeatureDataOptions
from specpilot.train.predictor_module import PredictorModule
from specpilot.train.run_folder import Run, read_run

from ..helpers.refusals import refused
from ..helpers.serving import wait_until
from ..helpers.training import (
    HIDDEN,
    assert_same_run,
    differ,
    last_weights,
    make_model,
    make_rows,
    metrics_rows,
    write_dataset,
)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a draft model, a dataset made with it, and features of this dataset."""
    folder = tmp_path_factory.mktemp("acceptance")
    make_model(1).save_pretrained(folder / "draft")
    write_dataset(folder / "data", make_rows(60), str(folder / "draft"))
    make_features(options(folder / "data"), folder / "features")
    return folder


def options(data: Path) -> FeatureDataOptions:
    return FeatureDataOptions(
        predictor="specdec", data=str(data), mixing=0.15, validation_fraction=0.2, traced=0, device="cpu"
    )


@pytest.fixture(scope="module")
def settings(work: Path) -> specdec_head.TrainingOptions:
    return specdec_head.TrainingOptions(
        data=str(work / "features"), depth=1, epochs=3, batch_size=8, lr=1e-2, checkpoint_every=2, log_every=1,
        threads=1, device="cpu",
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(work: Path, settings: specdec_head.TrainingOptions) -> Path:
    """The run folder of an uninterrupted training."""
    train_acceptance(settings, output=work / "finished")
    return work / "finished"


# Settings


def test_the_share_of_target_tokens_follows_the_datasets_agreement(
    settings: specdec_head.TrainingOptions, tmp_path: Path
) -> None:
    """The share is the paper's 0.15 if the mean acceptance is above one half."""
    assert (mixing_for(0.69), mixing_for(0.5), mixing_for(0.31)) == (0.15, 0.15, 0.5)
    mean = json.loads((Path(settings.data) / "manifest.json").read_text())["mean_acceptance"]
    train_acceptance(replace(settings, mixing=None, epochs=1), output=tmp_path / "run")
    assert read_run(tmp_path / "run", specdec_head.TrainingOptions).settings.mixing == mixing_for(mean)


@pytest.mark.parametrize("name", ["acceptance", "tiny", "router", "router-tiny"])
def test_shipped_configs_name_every_setting(name: str) -> None:
    kind: Any = RouterTrainingOptions if name.startswith("router") else specdec_head.TrainingOptions
    values = yaml.safe_load(files("specpilot.train.configs").joinpath(f"{name}.yaml").read_text(encoding="utf-8"))
    assert values.keys() == {field.name for field in fields(kind)}
    changed = {"acceptance": {"mixing": 0.15}, "router": {"device": "cpu"}}.get(name)
    assert changed is None or kind(**values) == kind(data=values["data"], **changed)


def test_loss_against_a_hand_computation() -> None:
    """The loss is finite for extreme logits, and 0 without tokens."""
    loss, weight = specdec_head.weighted_sums(torch.tensor([0.0, 2.0]), torch.tensor([0.25, 1.0]), 1.0, 6.0)
    a = 1 / (1 + math.exp(-2))
    total = -(1 * 0.25 * math.log(0.5) + 6 * 0.75 * math.log(0.5)) - 1 * 1.0 * math.log(a)
    assert float(loss / weight) == pytest.approx(total / (0.25 + 6 * 0.75 + 1.0), rel=1e-6)
    loss, _ = specdec_head.weighted_sums(torch.tensor([1e4, -1e4]), torch.tensor([0.0, 1.0]), 1.0, 6.0)
    assert math.isfinite(loss)
    nothing = torch.empty(0, requires_grad=True)
    loss, weight = specdec_head.weighted_sums(nothing, torch.empty(0), 1.0, 6.0)
    loss.backward()
    assert loss.item() == weight.item() == 0


# Training


def test_training_learns(settings: specdec_head.TrainingOptions, tmp_path: Path) -> None:
    result = train_acceptance(replace(settings, epochs=25, batch_size=4, w_rej=1.0), output=tmp_path / "run")
    assert result.metrics["kl"] < 0.25 * result.metrics["kl_constant"]
    assert result.metrics["auroc"] > 0.85  # 0.9 is the most: P is 0.95 or 0.15


def test_decay_makes_weights_smaller(finished: Path, settings: specdec_head.TrainingOptions, tmp_path: Path) -> None:
    train_acceptance(replace(settings, weight_decay=20.0), output=tmp_path / "run")
    runs = finished, tmp_path / "run"
    plain, decayed = (sum(float(weight.square().sum()) for weight in last_weights(run).values()) for run in runs)
    assert decayed < 0.9 * plain


# A value unlike the one of the fixture, for each setting that decides the weights.
CHANGED: dict[str, dict[str, Any]] = {
    "specdec": {
        "seed": 1, "validation_fraction": 0.4, "epochs": 2, "batch_size": 5, "lr": 2e-3, "weight_decay": 1.0,
        "precision": "bf16-mixed", "depth": 2, "w_acc": 5.0, "w_rej": 1.0,
    },
    "lag-free": {"width": 9, "dropout": 0.4, "use_ngrams": False, "lr": 1e-2, "weight_decay": 1.0},
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(work: Path, settings: specdec_head.TrainingOptions, finished: Path) -> dict[str, tuple[Any, Path]]:
    """Return the settings and the run folder of each predictor."""
    features = replace(options(work / "data"), predictor="lag-free", mixing=None)
    make_features(features, work / "lag-free-features")
    common = {"epochs": 2, "batch_size": 32, "threads": 1, "device": "cpu"}
    lag_free = lag_free_head.TrainingOptions(data=str(work / "lag-free-features"), width=8, **common)
    train_acceptance(lag_free, output=work / "lag-free")
    return {"specdec": (settings, finished), "lag-free": (lag_free, work / "lag-free")}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, changes in CHANGED.items() for name in changes])
def test_each_setting_changes_the_weights(
    kind: str, name: str, trained: dict[str, tuple[Any, Path]], work: Path, tmp_path: Path
) -> None:
    settings, run = trained[kind]
    changed = replace(settings, **{name: CHANGED[kind][name]})
    if name == "validation_fraction":  # of the features, which are made anew
        changed = replace(changed, data=str(work / "data"), mixing=0.15, traced=0)
    train_acceptance(changed, output=tmp_path / "run")
    assert differ(last_weights(run), last_weights(tmp_path / "run"))


def test_how_often_a_training_is_logged_and_kept(
    settings: specdec_head.TrainingOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_steps: list[int] = []
    save = pl.Trainer.save_checkpoint
    monkeypatch.setattr(
        pl.Trainer, "save_checkpoint", lambda self, *a, **k: saved_steps.append(self.global_step) or save(self, *a, **k)
    )
    counts = []
    for every in (1, 4):
        saved_steps.clear()
        changed = replace(settings, epochs=1, log_every=every, checkpoint_every=every)
        train_acceptance(changed, output=tmp_path / f"every-{every}")
        rows = [row for row in metrics_rows(tmp_path / f"every-{every}") if row["loss"]]
        counts.append((len(rows), len({*saved_steps})))
    (frequent, frequent_kept), (rare, rare_kept) = counts
    assert frequent >= 3 * rare > 0
    assert frequent_kept > rare_kept > 0


def test_run_folder(finished: Path, settings: specdec_head.TrainingOptions, work: Path) -> None:
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
    expected_settings = {
        "draft": str(work / "draft"),
        "target": "some/target",
        "mixing": 0.15,
        "validation_fraction": 0.2,
    }
    assert specdec_head.TrainingOptions(**written) == replace(settings, traced=0, **expected_settings)
    assert json.loads((finished / "env.json").read_text(encoding="utf-8"))["versions"]["torch"] == version("torch")
    assert (finished / "command.txt").read_text(encoding="utf-8").count("\n") == 1
    assert {path.name for path in (finished / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    assert all(name.startswith("head.") for name in last_weights(finished))


def test_the_global_generator_decides_nothing_and_is_left_alone(
    finished: Path, settings: specdec_head.TrainingOptions, tmp_path: Path
) -> None:
    torch.manual_seed(123)
    state = torch.get_rng_state()
    train_acceptance(settings, output=tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), state)
    assert_same_run(tmp_path / "run", finished)


def stop(owner: type, hook: str, call: int, work: Callable[[], object]) -> None:
    """Run ``work`` until call number ``call`` of the method ``hook`` of ``owner``, which fails."""
    original, calls = getattr(owner, hook), iter(range(1, 100))

    def stopping(*arguments: Any) -> Any:
        if next(calls) == call:
            raise RuntimeError("stopped here")
        return original(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, hook, stopping)
        with pytest.raises(RuntimeError, match="stopped here"):
            work()


@pytest.mark.parametrize(
    ("owner", "hook", "call"),
    [
        *((PredictorModule, "training_step", call) for call in (1, 3, 4, 6, 7, 18)),
        *((PredictorModule, "validation_step", call) for call in (1, 3)),
        (PredictorModule, "on_validation_epoch_end", 2),
        (RunCheckpoints, "on_train_epoch_end", 1),
        *((RunCheckpoints, "_save_last", call) for call in (1, 4)),
        (Run, "complete", 1),
    ],
)
def test_resume_after_a_stop_anywhere_is_exact(
    finished: Path, settings: specdec_head.TrainingOptions, tmp_path: Path, owner: type, hook: str, call: int
) -> None:
    """A run has three epochs of six steps and a checkpoint every two steps.

    It stops within an epoch, at its last step, or around validation.
    """
    stop(owner, hook, call, lambda: train_acceptance(settings, output=tmp_path / "run"))
    train_acceptance(settings, output=tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", finished)


KL = [0.5, 0.3, 0.4, 0.3, 0.2]  # of five epochs


@pytest.mark.parametrize(
    ("patience", "epochs", "best"),
    [(None, 5, 5), (1, 3, 2), pytest.param(2, 4, 2, marks=pytest.mark.slow), (3, 5, 5)],
)
def test_early_stopping(
    settings: specdec_head.TrainingOptions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    patience: int | None,
    epochs: int,
    best: int,
) -> None:
    """The best epoch is kept.

    A run that was killed after its last epoch does not continue, except with more patience.
    """
    monkeypatch.setattr(
        "specpilot.train.predictor_module.finish_validation",
        lambda module, metrics: finish_validation(module, {"kl": KL[module.current_epoch]}),
    )
    run, five = tmp_path / "run", replace(settings, epochs=5)
    limited = replace(five, patience=patience)
    stop(Run, "complete", 1, lambda: train_acceptance(limited, output=run))
    result = train_acceptance(limited, output=run, resume=True)
    assert [int(row["epoch"]) for row in metrics_rows(run) if row["val_kl"]] == [*range(1, epochs + 1)]
    best_checkpoint = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)
    assert (result.epoch, result.step, result.metrics) == (best, 6 * best, {"kl": KL[best - 1]})
    assert (best_checkpoint["epoch"], best_checkpoint["step"]) == (best, 6 * best)
    assert torch.equal(best_checkpoint["head"]["out.weight"], last_weights(run)["head.out.weight"]) == (best == epochs)
    train_acceptance(five, output=tmp_path / "whole")
    train_acceptance(five, output=run, resume=True)
    assert_same_run(run, tmp_path / "whole")


def test_an_unfinished_run_asks_to_be_resumed_with_its_own_settings(
    settings: specdec_head.TrainingOptions, work: Path, tmp_path: Path
) -> None:
    stop(PredictorModule, "training_step", 1, lambda: train_acceptance(settings, output=tmp_path / "run"))
    rows = write_dataset(tmp_path / "rows", make_rows(60, seed=9), str(work / "draft"))
    other = replace(settings, data=str(make_features(options(rows), tmp_path / "other")))
    with (
        FolderLock(tmp_path / "run", "is training in it"),
        pytest.raises(InputError, match="another process is training"),
    ):
        train_acceptance(settings, output=tmp_path / "run", resume=True)
    for now, resume, words in (
        (settings, False, "unfinished run; pass --resume"),
        (replace(settings, lr=0.02), True, r"lr was 0\.01 and is 0\.02; repeat those settings"),
        (replace(settings, lr=0.02, w_rej=7.5), True, r"(?=.*lr was 0\.01 and is 0\.02;).*w_rej was .* and is 7\.5;"),
        (replace(settings, lr=0.02, epochs=99), False, r"other settings: lr was 0\.01 and is 0\.02;"),
        (other, True, "run on other data"),
    ):
        with pytest.raises(InputError, match=words):
            train_acceptance(now, output=tmp_path / "run", resume=resume)


def test_features_are_made_in_the_run_folder(
    finished: Path, settings: specdec_head.TrainingOptions, work: Path, tmp_path: Path
) -> None:
    """The run equals one with features that were made before. A complete run does not need the features."""
    mixed_settings = replace(settings, data=str(work / "data"), mixing=0.15, validation_fraction=0.2, traced=0)
    train_acceptance(mixed_settings, output=str(tmp_path / "run"))
    assert_same_run(tmp_path / "run", finished)
    rows = read_dataset(work / "data", AcceptanceRow)
    trained = {prompt_digest(row.prompt) for row in rows if not is_validation(row.prompt_id, 0.2)}
    digests = load_controller(export(str(tmp_path / "run"), str(tmp_path / "controller"))).config.provenance.prompts
    assert digests == tuple(sorted(trained))
    assert 0 < len(digests) < len(rows)
    for file in (work / "features").iterdir():
        assert file.read_bytes() == (tmp_path / "run" / "features" / file.name).read_bytes()
    shutil.rmtree(tmp_path / "run" / "features")
    train_acceptance(mixed_settings, output=tmp_path / "run")
    assert not (tmp_path / "run" / "features").exists()


def test_features_decide_what_they_were_made_with(settings: specdec_head.TrainingOptions, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"mixing=0\.3:"):
        train_acceptance(replace(settings, mixing=0.3), output=tmp_path / "other")


def test_weights_and_biases_offline(
    settings: specdec_head.TrainingOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has the metrics and the reliability table of the training, and the exported checkpoint."""
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    train_acceptance(replace(settings, epochs=1, wandb="project"), output=tmp_path / "a run")
    export(tmp_path / "a run", tmp_path / "controller")
    run_id = json.loads((tmp_path / "a run" / "env.json").read_text(encoding="utf-8"))["run_id"]

    def logged(*words: bytes) -> int:
        files = (tmp_path / "a run").glob(f"wandb/offline-run-*/run-{run_id}.wandb")
        return sum(all(word in content for word in words) for content in [file.read_bytes() for file in files])

    # Its process may write the last lines after the run has ended.
    wait_until(lambda: logged(b"val_kl", b"reliability.table.json") == 1)
    wait_until(lambda: logged(b"a-run", b"model.safetensors") == 1)


def test_tensorboard(
    finished: Path, settings: specdec_head.TrainingOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has each value of metrics.csv once, although the run was killed.

    Without the package, no training begins.
    """
    run = tmp_path / "run"
    with monkeypatch.context() as patch, refused(r"^tensorboard is not installed: pip install"):
        patch.setitem(sys.modules, "tensorboard", None)
        train_acceptance(replace(settings, tensorboard=True), output=run)
    assert not run.exists()
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    stop(
        PredictorModule, "training_step", 10, lambda: train_acceptance(replace(settings, tensorboard=True), output=run)
    )
    train_acceptance(replace(settings, tensorboard=True), output=run, resume=True)
    assert_same_run(run, finished)
    logged = events.EventAccumulator(str(run / "tensorboard")).Reload()
    for name in ("epoch", "loss", "val_kl"):
        rows = {int(row["step"]): float(row[name]) for row in metrics_rows(run) if row[name]}
        scalars = logged.Scalars(name)
        assert name == "epoch" or [scalar.step for scalar in scalars] == sorted(rows)
        assert {scalar.step: scalar.value for scalar in scalars} == pytest.approx(rows)


def test_a_full_disk_ends_a_training(
    settings: specdec_head.TrainingOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RunCheckpoints, "_save_last", full)
    with pytest.raises(OSError, match="No space left"):
        train_acceptance(settings, output=tmp_path / "run")


def test_export_gives_the_best_head(
    finished: Path, settings: specdec_head.TrainingOptions, work: Path, tmp_path: Path
) -> None:
    controller = load_controller(export(finished, tmp_path / "controller"))
    best = torch.load(finished / "checkpoints" / "best.ckpt", weights_only=True)
    for name, value in controller.head.state_dict().items():
        assert torch.equal(value, best["head"][name])
    config = controller.config
    assert (config.hidden_size, config.depth, config.w_acc, config.w_rej) == (HIDDEN, 1, 1, 6)
    assert (config.threshold, config.threshold_source) == (0.7, "paper default")
    provenance = config.provenance
    assert (provenance.target, provenance.draft) == ("some/target", "draft")  # without its place on this machine
    assert provenance.sampling == SamplingParams(0.8, 20, 0.95)
    assert provenance.fingerprint.draft == model_fingerprint(make_model(1))
    assert config.metrics == pytest.approx(best["metrics"])
    config = load_controller(export(finished, tmp_path / "controller", threshold=0.4, overwrite=True)).config
    assert (config.threshold, config.threshold_source) == (0.4, "given at export")
    with pytest.raises(InputError, match=r"threshold=1\.5"):
        export(finished, tmp_path / "other", threshold=1.5)


def test_the_best_epoch_is_stored_with_metrics_that_are_not_defined(tmp_path: Path, work: Path) -> None:
    """Greedy data may have only the label 1.

    Its undefined metrics are in the checkpoint and in the result of the run.
    """
    best = BestEpoch(
        epoch=2, step=8, metrics={"kl": 0.25, "auroc": math.nan}, reliability=[Bin(0.0, 0.1, 3, 0.05, 0.5)],
        mean=1.0, examples=3, hidden_size=HIDDEN,
    )  # fmt: skip
    run = Run(tmp_path, specdec_head.TrainingOptions(data=str(work / "data")), read_manifest(work / "data"), id="1")
    run.complete(best)
    run.best.parent.mkdir()
    torch.save(BestCheckpoint({"weight": torch.ones(2)}, best).to_dict(), run.best)
    stored = read_best(run.best)
    assert torch.equal(stored.head["weight"], torch.ones(2))
    for record in (stored.epoch, run.result()):
        assert math.isnan(record.metrics["auroc"])
        assert replace(record, metrics={}) == replace(best, metrics={})
    keys = ["epoch", "step", "metrics", "reliability", "mean", "examples", "hidden_size"]  # no scale, as of a router
    assert [*json.loads((tmp_path / "result.json").read_text())] == keys


@pytest.mark.parametrize("content", [{"epoch": 1, "step": 1, "metrics": {}}, {"head": {}, "step": 1, "metrics": {}}, 3])
def test_a_checkpoint_of_another_content_is_refused(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "best.ckpt")
    with pytest.raises(InputError, match=r"best.ckpt: .*; remove its folder and train again with --resume"):
        read_best(tmp_path / "best.ckpt")
