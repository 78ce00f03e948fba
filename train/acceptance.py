"""``specpilot train acceptance``: a dataset and a frozen draft in, a run folder with the best acceptance head out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ..controllers.checkpoints.fingerprint import model_fingerprint
from ..controllers.errors import InputError
from ..data_gen.lock import locked
from ..infer.loading import load_causal_lm
from ..options import AcceptanceTrainingOptions
from .acceptance_data import AcceptanceDataModule, mixing_for
from .acceptance_module import AcceptanceModule, new_head
from .datasets import acceptance_manifest, acceptance_rows
from .features import FeatureCache
from .fitting import fit, threads, writable
from .run_folder import FEATURES, Run, begin_run, find_run


@dataclass(frozen=True)
class TrainingResult:
    """What a complete run gave: the epoch (from 0) with the lowest validation KL, and its metrics."""

    run: Path
    epoch: int
    step: int
    metrics: dict[str, float]


def train_acceptance(
    config: AcceptanceTrainingOptions, *, output: Path, resume: bool = False, features: Path | None = None
) -> TrainingResult:
    """Train an acceptance head.

    Args:
        config: data, draft and settings.
        output: run folder, made here. A complete run is left as it is.
        resume: go on with the unfinished run in ``output``, to the same result as an uninterrupted run's (on one CPU
            bit for bit); begin one if there is none.
        features: file for the draft's hidden states, if they are cached, in place of one in the run folder: runs that
            differ only in the head and the loss may share it.

    Raises:
        InputError: the data is incomplete, malformed or of another draft; ``output`` holds a run of other settings, or
            an unfinished one and ``resume`` is false; training diverges; the disk is full.
    """
    manifest = acceptance_manifest(config.folders)
    mixing = mixing_for(manifest["mean_acceptance"]) if config.mixing is None else config.mixing
    settings = replace(config, draft=config.draft or manifest["draft"], mixing=mixing)
    output = Path(output)
    with writable(output), locked(output, "is training in it"), threads(settings.threads):
        run = find_run(output, settings, manifest, resume=resume)
        result = None if run is None else run.result()
        if result is None:
            result = _train(run, output, settings, manifest, features)
        else:
            print(f"{output}: the run is complete; nothing to do")
    return TrainingResult(output, result["epoch"], result["step"], result["metrics"])


def _train(
    run: Run[AcceptanceTrainingOptions] | None,
    output: Path,
    settings: AcceptanceTrainingOptions,
    manifest: dict[str, Any],
    features: Path | None,
) -> dict[str, Any]:
    """Load everything, and only if all is well begin a run; returns the result."""
    assert settings.draft is not None
    data = AcceptanceDataModule(acceptance_rows(settings.folders), settings)
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
    _fit(run, data, draft, features or run.folder / FEATURES)
    best = torch.load(run.best, weights_only=True, map_location="cpu")
    result = {name: best[name] for name in ("epoch", "step", "metrics", "reliability")}
    run.complete(result)
    return result


def _fit(
    run: Run[AcceptanceTrainingOptions], data: AcceptanceDataModule, draft: PreTrainedModel, features: Path
) -> None:
    settings = run.settings
    hidden_size = _hidden_size(draft)
    if settings.cache_features:
        data.use_cache(FeatureCache(features, hidden_size), draft)
    module = AcceptanceModule(new_head(hidden_size, settings.depth, settings.seed), draft, settings, data.total_steps)
    print(
        f"{len(data.training)} rollouts to train on, {len(data.validation)} to validate, {data.total_steps} steps; "
        f"head of {sum(p.numel() for p in module.head.parameters()):,} parameters on {draft.device}"
    )
    fit(run, module, data, draft.device)


def _hidden_size(draft: PreTrainedModel) -> int:
    """d: what the draft's output embedding reads, which some architectures project to another size than the layers'."""
    return int(draft.get_output_embeddings().weight.shape[1])
