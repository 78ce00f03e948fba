"""``specpilot train copies``: trains a copy head on a target's own texts and writes a run folder.

The loss is the binary cross-entropy on whether the text goes on with the copy.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.errors import InputError
from ..controllers.acceptance.copy_head import VECTORS, CopyHead, CopyHeadConfig
from ..controllers.checkpoints.fingerprint import model_fingerprint
from ..data_gen.dataset import read_manifest
from ..data_gen.documents import answers
from ..infer.loading.names import load_any_model
from ..infer.models import output_embedding
from .controller_module import ExportedModule
from .copy_data import Copies, CopyDataModule
from .datasets import check_same, joint_fingerprint, joint_sampling
from .fitting import TrainingResult, fit, train_run
from .metrics import StreamedMetrics
from .options import CopyTrainingOptions
from .run_folder import Run


def new_copy_head(settings: CopyTrainingOptions, data: CopyDataModule) -> CopyHead:
    """A head with random weights that depend on the seed alone, and the scales of the training examples' evidence."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        head = CopyHead(data.embedding.shape[1], settings.width)
    scale, mean = torch.std_mean(data.training.evidence, 0, correction=0)
    head.mean.copy_(mean)
    head.scale.copy_(torch.where(scale > 1e-6, scale, 1.0))
    return head


class CopyModule(ExportedModule):
    """The copy head in training. The best epoch is that of the lowest validation KL."""

    options = CopyTrainingOptions
    head: CopyHead
    criterion = "kl"

    def __init__(self, settings: CopyTrainingOptions, data: CopyDataModule) -> None:
        super().__init__(settings)
        self.settings, self.steps = settings, data.total_steps
        self.head = new_copy_head(settings, data)
        self.examples = len(data.training.kept)
        self.seen, self.untrained = StreamedMetrics(), StreamedMetrics()  # of the head, and of the text's own rates

    @classmethod
    def exported(
        cls, settings: CopyTrainingOptions, dataset: dict[str, Any], best: dict[str, Any], common: dict[str, Any]
    ) -> tuple[CopyHead, CopyHeadConfig]:
        config = CopyHeadConfig(
            **common, hidden_size=best["hidden_size"], width=settings.width, tokens=best["examples"]
        )  # fmt: skip
        head = config.module()
        head.load_state_dict(best["head"])
        return head, config

    def logits(self, batch: Copies, mask: Tensor | None = None) -> Tensor:
        """(M,) logits of acceptance."""
        assert batch.copied is not None
        assert batch.last_embedded is not None
        logits: Tensor = self.head(batch.evidence, batch.copied, batch.last_embedded, mask)
        return logits.float()

    def training_step(self, batch: Copies, batch_idx: int) -> Tensor:
        logits = self.logits(batch, self.mask(batch))
        losses = F.binary_cross_entropy_with_logits(logits, batch.kept, reduction="sum")
        loss = self.share(losses, losses.new_tensor(len(batch.kept)))
        self.log("loss", loss, prog_bar=True, logger=False, batch_size=len(batch.kept))
        return loss

    def mask(self, batch: Copies) -> Tensor | None:
        """(M, 2d) factors of the entries of the embeddings."""
        width, count = VECTORS * self.head.hidden_size, len(batch.kept)
        return self.dropout(self.settings.dropout, width, first=batch.first, count=count, total=batch.total)

    def on_validation_epoch_start(self) -> None:
        for metrics in (self.seen, self.untrained):
            metrics.reset()

    def validation_step(self, batch: Copies, batch_idx: int) -> None:
        logits = self.logits(batch)
        self.require_finite("predictions are", logits)
        self.seen.update(logits, batch.kept)
        self.untrained.update(torch.logit(batch.rate, eps=1e-4), batch.kept)

    def on_validation_epoch_end(self) -> None:
        for metrics in (self.seen, self.untrained):
            metrics.reduce(self.total)
        untrained = self.untrained.compute()
        self.validation = self.seen.compute() | {f"{name}_rates": untrained[name] for name in ("kl", "auroc")}
        self.log("val_kl", self.validation["kl"], prog_bar=True, logger=False, sync_dist=True)

    def score(self) -> float:
        return -self.validation["kl"]

    def findings(self) -> dict[str, Any]:
        return {"examples": self.examples, "hidden_size": self.head.hidden_size}

    def configure_optimizers(self) -> Any:
        settings = self.settings
        optimizer = torch.optim.AdamW(self.head.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.lr, total_steps=self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


KIND = "copies"


def train_copies(settings: CopyTrainingOptions, *, output: Path, resume: bool = False) -> TrainingResult:
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
    data = CopyDataModule(documents, _embedding(dataset), settings)
    run = begin()
    module = CopyModule(settings, data)
    print(
        f"{len(data.training.kept):,} copied tokens to train on, {len(data.validation.kept):,} held out, "
        f"{data.total_steps} steps; {sum(p.numel() for p in module.head.parameters()):,} parameters"
    )
    return fit(run, module, data)


def _embedding(dataset: dict[str, Any]) -> Tensor:
    """(V, d) the output embedding of the target that wrote the texts.

    Raises:
        InputError: the target is missing, or another one.
    """
    name = dataset["target"]
    model = load_any_model(name, dtype="float32", device="cpu", decoder_only=True)
    if model_fingerprint(model) != dataset["fingerprint"]["target"]:
        raise InputError(f"target={name!r}: is not the target whose texts these are; give that one")
    return output_embedding(model).clone()  # the rest of the model is freed
