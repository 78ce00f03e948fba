"""``specpilot train acceptance``: a dataset and a frozen draft in, a run folder with the best acceptance head out."""

from __future__ import annotations

import errno
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import RichProgressBar
from pytorch_lightning.loggers import Logger
from transformers import PreTrainedModel

from ..controllers.errors import InputError
from ..controllers.fingerprint import model_fingerprint
from ..data_gen.dataset import read_dataset, read_manifest
from ..infer.models import load_causal_lm
from .acceptance_data import AcceptanceData
from .acceptance_module import AcceptanceModule, new_head
from .callbacks import RunCheckpoints, RunLog
from .features import FeatureCache
from .run_folder import FEATURES, METRICS, Run, begin_run, find_run, locked
from .settings import AcceptanceTraining


@dataclass(frozen=True)
class TrainingResult:
    """What a complete run gave: the epoch (from 0) with the lowest validation KL, and its metrics."""

    run: Path
    epoch: int
    step: int
    metrics: dict[str, float]


def train_acceptance(config: AcceptanceTraining, *, output: Path, resume: bool = False) -> TrainingResult:
    """Train an acceptance head.

    Args:
        config: data, draft and settings.
        output: run folder, made here. A complete run is left as it is.
        resume: go on with the unfinished run in ``output``, to the same result as an uninterrupted run's (on one CPU
            bit for bit); begin one if there is none.

    Raises:
        InputError: the data is incomplete, malformed or of another draft; ``output`` holds a run of other settings, or
            an unfinished one and ``resume`` is false; training diverges; the disk is full.
    """
    manifest = checked_manifest(config.data)
    settings = replace(config, draft=config.draft or manifest["draft"])
    output = Path(output)
    try:
        with locked(output), _threads(settings.threads):
            run = find_run(output, settings, manifest, resume=resume)
            result = None if run is None else run.result()
            if result is None:
                result = _train(run, output, settings, manifest)
            else:
                print(f"{output}: the run is complete; nothing to do")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise
        raise InputError(
            f"{output}: cannot be written ({error.strerror}); free space or choose another place"
        ) from error
    return TrainingResult(output, result["epoch"], result["step"], result["metrics"])


def checked_manifest(data: str) -> dict[str, Any]:
    """The manifest of a complete acceptance dataset; raises InputError for anything else."""
    manifest = read_manifest(data)
    if manifest["kind"] != "acceptance":
        raise InputError(f"{data}: a dataset of kind {manifest['kind']!r}; make one with 'specpilot data acceptance'")
    if not manifest["complete"]:
        raise InputError(f"{data}: the dataset is incomplete; run 'specpilot data acceptance' again to finish it")
    return manifest


def _train(run: Run | None, output: Path, settings: AcceptanceTraining, manifest: dict[str, Any]) -> dict[str, Any]:
    """Load everything, and only if all is well begin a run; returns the result."""
    assert settings.draft is not None
    data = AcceptanceData(read_dataset(settings.data), settings)
    if data.left_out:
        print(f"{data.left_out} rollouts are left out: no response, or a prompt of max_length tokens or more")
    draft = load_causal_lm(settings.draft, dtype=settings.dtype, device=settings.device)
    if model_fingerprint(draft) != manifest["fingerprint"]["draft"]:
        raise InputError(
            f"{settings.draft}: is not the draft the data was made with ({manifest['draft']}); "
            "give that one, or generate data for this one"
        )
    run = run or begin_run(output, settings, manifest)
    run.log_command()
    _fit(run, data, draft)
    best = torch.load(run.best, weights_only=True)
    result = {name: best[name] for name in ("epoch", "step", "metrics", "reliability")}
    run.complete(result)
    return result


def _fit(run: Run, data: AcceptanceData, draft: PreTrainedModel) -> None:
    settings = run.settings
    hidden_size = _hidden_size(draft)
    if settings.cache_features:
        data.use_cache(FeatureCache(run.folder / FEATURES, hidden_size), draft)
    module = AcceptanceModule(new_head(hidden_size, settings.depth, settings.seed), draft, settings, data.total_steps)
    print(
        f"{len(data.training)} rollouts to train on, {len(data.validation)} to validate, {data.total_steps} steps; "
        f"head of {sum(p.numel() for p in module.head.parameters()):,} parameters on {draft.device}"
    )
    with quiet_lightning():
        trainer = pl.Trainer(
            accelerator="gpu" if draft.device.type == "cuda" else "cpu",
            devices=[draft.device.index] if draft.device.type == "cuda" else 1,
            max_epochs=settings.epochs,
            logger=_loggers(run),
            callbacks=[
                RunLog(run.folder / METRICS, settings.log_every),
                RunCheckpoints(run.last.parent, settings.checkpoint_every),
                RichProgressBar(),
            ],
            default_root_dir=run.folder,
            num_sanity_val_steps=0,
            enable_model_summary=False,
            log_every_n_steps=settings.log_every,
        )
        trainer.fit(module, datamodule=data, ckpt_path=run.last if run.last.exists() else None, weights_only=True)
    if settings.wandb is not None:
        import wandb

        wandb.finish()  # or the next training of this process would be logged to the same run


def _hidden_size(draft: PreTrainedModel) -> int:
    """d: what the draft's output embedding reads, which some architectures project to another size than the layers'."""
    return int(draft.get_output_embeddings().weight.shape[1])


def _loggers(run: Run) -> list[Logger]:
    if run.settings.wandb is None:
        return []
    from pytorch_lightning.loggers import WandbLogger

    offline = not os.environ.get("WANDB_API_KEY")
    return [
        WandbLogger(
            project=run.settings.wandb,
            name=run.folder.name,
            id=run.id,
            resume="allow",
            offline=offline,
            save_dir=run.folder,
            config=vars(run.settings),
        )
    ]


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Without Lightning's remarks about accelerators and stopping; its warnings stay, save one about its own code."""
    log = logging.getLogger("pytorch_lightning.utilities.rank_zero")
    before = log.level
    log.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r".*isinstance\(treespec, LeafSpec\)")
            yield
    finally:
        log.setLevel(before)
