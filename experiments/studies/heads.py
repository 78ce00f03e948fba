"""Trains acceptance heads over a grid of depths and loss weights, with their data and rules."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

from rich.console import Console
from specpilot.common.errors import InputError
from specpilot.common.files import replacing
from specpilot.common.options import Count, DeviceOptions, Folder, Positive, SeedOptions, Several, Share
from specpilot.compare.recorded import MakeController, Rule
from specpilot.compare.store import content_key
from specpilot.controllers.acceptance import specdec_head
from specpilot.controllers.acceptance.specdec_head import AcceptanceHead
from specpilot.controllers.checkpoints.fingerprint import weights_digest
from specpilot.controllers.length import AcceptanceLength, HeadPredictor
from specpilot.controllers.training_options import Depth, DraftLength, ValidationOptions
from specpilot.data_gen.acceptance import make_acceptance_data
from specpilot.data_gen.dataset import Manifest
from specpilot.data_gen.options import AcceptanceDataOptions
from specpilot.data_gen.prompts import PromptRow, load_prompts
from specpilot.infer.options import PairOptions, SamplingOptions
from specpilot.simulate.replay import PrecomputedPredictor
from specpilot.simulate.trace import Trace
from specpilot.train.acceptance import train_acceptance
from specpilot.train.export import best_controller
from specpilot.train.features import make_features
from specpilot.train.options import feature_options
from specpilot.train.run_folder import RESULT

from .held_out import HeldOutOptions, Rows, StudyFolderOptions, in_domain, texts


@dataclass(frozen=True, kw_only=True)
class HeadStudyOptions(HeldOutOptions, ValidationOptions, SeedOptions, DeviceOptions, StudyFolderOptions):
    """Study.

    Options of studies that train acceptance heads.

    Attributes:
        train_prompts: Number of training prompts.
        train_split: Split of the training prompts. Held-out prompts are excluded from it, so it may be the same split.
        epochs: Passes over the data.
    """

    train_prompts: Count = 2000
    train_split: str = "train"
    epochs: Count = 3


@dataclass(frozen=True, kw_only=True)
class SweepOptions(PairOptions, SamplingOptions, HeadStudyOptions):
    """Study. The grid of heads is the paper's (Huang et al. 2024, Tables 1 and 3, Figure 4).

    Options of ``python -m experiments sweep``.

    Training is shorter and its learning rate higher than in the paper, for small heads and a few thousand prompts.

    Attributes:
        data: Acceptance dataset to train the heads on. Default: one is made from the training split of the prompts.
        depths: Residual blocks D of the heads.
        weights: Loss weights of rejection.
        thresholds: Stopping thresholds h.
        lengths: Fixed lengths K to compare with.
        confidences: Thresholds of cumulative confidence to compare with.
        mixing: Share of target tokens in the training texts.
        cost: File of `specpilot bench cost --output`. Default: the costs are measured.
    """

    data: str | None = None
    depths: Annotated[tuple[Depth, ...], Several()] = (0, 1, 2, 3, 4)
    weights: Annotated[tuple[Positive, ...], Several()] = (1.0, 3.0, 6.0, 12.0)
    thresholds: Annotated[tuple[Share, ...], Several()] = (0.1, 0.3, 0.5, 0.7, 0.9)
    lengths: Annotated[tuple[DraftLength, ...], Several()] = (2, 4, 6, 8, 10, 12, 14)
    confidences: Annotated[tuple[Share, ...], Several()] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    mixing: Share = 0.15
    max_new_tokens: Count = 64
    folder: Folder = Path("runs/sweep")
    cost: Path | None = None


@dataclass(frozen=True)
class Head:
    """A trained head of the grid.

    Attributes:
        depth: number of residual blocks D.
        w_rej: loss weight of rejection.
        head: the network.
        digest: digest of the head's weights.
        metrics: validation metrics of the head.
    """

    depth: int
    w_rej: float
    head: AcceptanceHead
    digest: str
    metrics: dict[str, float]

    @property
    def name(self) -> str:
        return f"head D={self.depth} w={self.w_rej:g}"

    def rule(self, thresholds: Sequence[float]) -> Rule:
        """Return the rule that stops when the rejection probability exceeds a threshold, for each of ``thresholds``."""

        def make(traces: Sequence[Trace]) -> MakeController:
            predictors = precompute(self.head, traces)
            return lambda index, threshold: AcceptanceLength(predictors[index], threshold)

        return Rule(self.name, tuple(thresholds), {"rule": "head", "weights": self.digest}, make)


def precompute(head: AcceptanceHead, traces: Sequence[Trace]) -> list[PrecomputedPredictor]:
    """Return a predictor for each trace, with all predictions of ``head`` computed in one batch."""
    predictor = HeadPredictor(head)
    return [PrecomputedPredictor(predictor, head.probability(t.states).tolist()) for t in traces]


def training_prompts(settings: SweepOptions, held_out: Rows) -> list[PromptRow]:
    """Return the first prompts of the training split from the in-domain domains, without those that are ``held_out``.

    Raises:
        InputError: no prompt of a domain is left.
    """
    domains, tested = in_domain(settings, held_out), texts(held_out)
    rows = [
        row
        for row in load_prompts(settings.prompts, column=settings.column, split=settings.train_split)
        if row.domain in domains and row.text not in tested
    ]
    missing = set(domains) - {row.domain for row in rows}
    if missing:
        raise InputError(
            f"in_domain: {settings.prompts} has no prompts of {sorted(missing)[0]!r} left to train on besides those "
            "held out; give more prompts, or a smaller per_domain"
        )
    return rows[: settings.train_prompts]


def training_data(settings: SweepOptions, held_out: Rows, folder: Path, console: Console) -> str:
    """Return the path of the dataset of :func:`training_prompts`, generated or completed if necessary."""
    text = "".join(json.dumps(vars(row), ensure_ascii=False) + "\n" for row in training_prompts(settings, held_out))
    source = folder / f"prompts-{hashlib.sha256(text.encode()).hexdigest()[:20]}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    if not source.exists():
        with replacing(source) as temporary:
            temporary.write_text(text, encoding="utf-8")
    options = AcceptanceDataOptions(
        target=settings.target,
        draft=settings.draft,
        prompts=str(source),
        chat=settings.chat,
        system=settings.system,
        max_new_tokens=settings.max_new_tokens,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        seed=settings.seed,
        device=settings.device,
    )
    key = content_key({"version": version("specpilot"), **vars(options)})
    return str(make_acceptance_data(options, folder / f"data-{key}", console=console))


def train_heads(settings: SweepOptions, data: str, manifest: Manifest, folder: Path, console: Console) -> list[Head]:
    """Return a head for each depth and loss weight, trained on the same hidden states or loaded from ``folder``."""
    base = specdec_head.TrainingOptions(
        data=data,
        draft=settings.draft,
        mixing=settings.mixing,
        mixings=settings.epochs,
        epochs=settings.epochs,
        batch_size=16,
        lr=1e-3,
        validation_fraction=settings.validation_fraction,
        seed=settings.seed,
        traced=0,  # SpecDec++ chooses the epoch by validation KL
        device=settings.device,
    )
    common = {
        "version": version("specpilot"), "data": manifest.dataset_fingerprint,
        **{name: value for name, value in vars(base).items() if name not in ("data", "depth", "w_rej")},
    }  # fmt: skip
    grid = [replace(base, depth=depth, w_rej=w_rej) for w_rej in settings.weights for depth in settings.depths]
    names = [content_key({**common, "depth": config.depth, "w_rej": config.w_rej}) for config in grid]
    outputs = [folder / "heads" / name for name in names]
    features = folder / "heads" / f"features-{content_key(common)}"
    if not all((output / RESULT).exists() for output in outputs):
        make_features(feature_options(base), features, console=console)
    heads = []
    for config, output in zip(grid, outputs, strict=True):
        if not (output / RESULT).exists():
            console.print(f"head D={config.depth} w_rej={config.w_rej:g}")
            train_acceptance(replace(config, data=str(features)), output=output, resume=True)
        _, head, exported = best_controller(output)
        assert isinstance(head, AcceptanceHead)
        head.eval().requires_grad_(False)
        heads.append(Head(config.depth, config.w_rej, head, weights_digest(head), exported.metrics))
    shutil.rmtree(features, ignore_errors=True)  # large, and quick to recompute
    return heads
