"""``specpilot train copies``: trains a copy head on a target's own texts and writes a run folder.

The loss is the binary cross-entropy on whether the text goes on with the copy.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..controllers.acceptance.copy_head import VECTORS, CopyHead, CopyHeadConfig
from ..data_gen.dataset import read_manifest
from ..data_gen.documents import answers
from ..infer.models import output_embedding
from .controller_module import Batch, PredictorModule, seeded
from .copy_data import CopyDataModule
from .datasets import check_same, joint_fingerprint, joint_sampling, load_same
from .fitting import TrainingResult, fit, train_run
from .metrics import StreamedMetrics
from .options import CopyTrainingOptions
from .run_folder import Run


class CopyModule(PredictorModule):
    """The copy head in training. The best epoch is that of the lowest validation KL."""

    options = CopyTrainingOptions
    head: CopyHead
    criterion = "kl"

    def __init__(self, settings: CopyTrainingOptions, data: CopyDataModule) -> None:
        super().__init__(settings, data.total_steps)
        size = data.embedding.shape[1]
        self.head = seeded(settings.seed, lambda: CopyHead(size, settings.width))
        scale, mean = torch.std_mean(data.training.evidence, 0, correction=0)
        self.head.standardise(mean, scale)
        self.dropout, self.masked = settings.dropout, VECTORS * size
        self.examples = len(data.training.kept)
        self.seen = StreamedMetrics(), StreamedMetrics()  # of the head, and of the text's own rates

    @classmethod
    def configuration(
        cls, settings: CopyTrainingOptions, dataset: dict[str, Any], best: dict[str, Any], common: dict[str, Any]
    ) -> CopyHeadConfig:
        return CopyHeadConfig(
            **common, hidden_size=best["hidden_size"], width=settings.width, tokens=best["examples"]
        )  # fmt: skip

    def predictions(self, batch: Batch) -> tuple[Tensor, ...]:
        assert batch.prior is not None
        return self.logits(batch), torch.logit(batch.prior, eps=1e-4)

    def metrics(self) -> dict[str, float]:
        found, untrained = (metrics.compute() for metrics in self.seen)
        return found | {f"{name}_rates": untrained[name] for name in ("kl", "auroc")}

    def findings(self) -> dict[str, Any]:
        return super().findings() | {"examples": self.examples, "hidden_size": self.head.hidden_size}


KIND = "copies"


def train_copies(settings: CopyTrainingOptions, output: str | Path, *, resume: bool = False) -> TrainingResult:
    """Train a copy head.

    Args:
        settings: data and settings.
        output: run folder to create. A complete run is not changed.
        resume: continue the unfinished run in ``output``, or begin one if there is none.

    Raises:
        InputError: the data is incomplete, malformed or of several targets; the target is missing or another one;
            ``output`` holds a run with other settings, or an unfinished one and ``resume`` is false; training diverges;
            the disk is full.
    """
    dataset = copies_identity(settings)
    return train_run(output, settings, dataset, lambda begin: _train(begin, settings, dataset), resume=resume)


def copies_identity(settings: CopyTrainingOptions) -> dict[str, Any]:
    """The joint manifest of the datasets, of which only the target matters.

    Raises:
        InputError: one of them has no manifest, or is of another target.
    """
    manifests = [
        manifest | {"fingerprint": {name: manifest["fingerprint"][name] for name in ("target", "tokenizer")}}
        for manifest in map(read_manifest, settings.folders)
    ]
    check_same(settings.folders, manifests, ("fingerprint",))
    first = manifests[0]
    return {
        **{name: first[name] for name in ("schema_version", "fingerprint")},
        "kind": KIND,
        "predictor": KIND,
        "target": settings.target or first["target"],
        **joint_sampling(manifests),
        "complete": True,
        "shards": [],
        "datasets": [manifest["dataset_fingerprint"] for manifest in manifests],
        "dataset_fingerprint": joint_fingerprint(manifests),
    }


def _train(
    begin: Callable[[], Run[CopyTrainingOptions]], settings: CopyTrainingOptions, dataset: dict[str, Any]
) -> dict[str, Any]:
    """Load the texts and the target's embedding, begin or continue the run and train; return the result."""
    target = dataset["fingerprint"]["target"]
    documents = [document for folder in settings.folders for document in answers(Path(folder), target)]
    model = load_same("target", dataset["target"], dataset, dtype="float32", device="cpu")
    embedding = output_embedding(model).clone()
    del model
    data = CopyDataModule(documents, embedding, settings)
    run = begin()
    module = CopyModule(settings, data)
    print(
        f"{len(data.training.kept):,} copied tokens to train on, {len(data.validation.kept):,} held out, "
        f"{data.total_steps} steps; {sum(p.numel() for p in module.head.parameters()):,} parameters"
    )
    return fit(run, module, data)
