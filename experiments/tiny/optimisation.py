"""Training of a tiny model: losses, Muon for matrices and AdamW for all other weights, and a resumable run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Generic, TypeVar

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from pytorch_lightning.callbacks import ModelCheckpoint, TQDMProgressBar
from pytorch_lightning.loggers import CSVLogger
from specpilot.train.data_module import ResumableLoader
from specpilot.train.fitting import without_launcher
from torch import Tensor, nn

Batch = TypeVar("Batch")


def token_losses(logits: Tensor, tokens: Tensor, soft: tuple[Tensor, Tensor] | None, *, overlap: bool) -> Tensor:
    """Return the loss at every position, flattened to (B · T,).

    Without ``soft``, cross-entropy with the next token. With the target's distributions p, cross-entropy with p, or
    with ``overlap`` the total variation distance 1 - Σ min(p, q), the probability that a token drawn from q is
    rejected. Its gradient is informative only if q is already close to p.

    Args:
        logits: (B, T, V) logits of q.
        tokens: (B, T) next tokens.
        soft: p as probabilities (B, T, k) of its most probable tokens and their ids (B, T, k), or None.
    """
    if soft is None:
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none")
    p, likely = soft
    log_q = (logits - logits.logsumexp(-1, keepdim=True)).gather(-1, likely)  # (B, T, k)
    return (1 - torch.minimum(p, log_q.exp()).sum(-1) if overlap else -(p * log_q).sum(-1)).flatten()


class Trained(pl.LightningModule, ABC, Generic[Batch]):
    """A model in training.

    The learning rate has a linear warm-up, is constant, and decays linearly to zero over the last ``decay`` share of
    the steps.
    """

    def __init__(self, model: nn.Module, steps: int, *, lr: float, decay: float) -> None:
        super().__init__()
        self.model = model
        self.steps, self.lr, self.decay = steps, lr, decay
        self.automatic_optimization = False  # two optimizers, stepped together

    @abstractmethod
    def _weighted_loss(self, batch: Batch) -> Tensor:
        """Return the weighted loss of ``batch`` as a scalar."""

    def training_step(self, batch: Batch, index: int) -> None:
        optimizers = self.optimizers()
        assert isinstance(optimizers, list)
        muon, adam = optimizers
        scale = learning_rate_scale(self.global_step, self.steps, self.decay)
        for optimizer in (muon, adam):
            for group in optimizer.param_groups:
                group["lr"] = self.lr * scale
        loss = self._weighted_loss(batch)
        self.manual_backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        muon.optimizer.step()  # the unwrapped optimizer, since Lightning counts a step for each wrapped one
        adam.step()
        muon.zero_grad()
        adam.zero_grad()
        self.log("train_loss", loss, prog_bar=True, batch_size=1)

    def validation_step(self, batch: Batch, index: int) -> None:
        self.log("val_loss", self._weighted_loss(batch), prog_bar=True, batch_size=1)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        embeddings = {id(module.weight) for module in self.model.modules() if isinstance(module, nn.Embedding)}
        matrices: list[nn.Parameter] = []
        vectors_and_embeddings: list[nn.Parameter] = []
        for parameter in self.model.parameters():
            is_matrix = parameter.ndim == 2 and id(parameter) not in embeddings
            (matrices if is_matrix else vectors_and_embeddings).append(parameter)
        return [
            torch.optim.Muon(matrices, lr=self.lr, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(vectors_and_embeddings, lr=self.lr, betas=(0.9, 0.95), weight_decay=0.0),
        ]


def learning_rate_scale(step: int, steps: int, decay: float, warmup: int = 100) -> float:
    """Return the factor in [0, 1] of the learning rate: a linear warm-up, constant 1, and a linear decay to 0.

    Args:
        step: number of steps before this one.
        steps: number of all steps.
        decay: share of the steps in which the factor decays, at the end.
        warmup: number of steps of the warm-up.
    """
    remaining = (steps - step) / max(1.0, decay * steps)
    return max(0.0, min(1.0, (step + 1) / warmup, remaining))


def run(
    module: Trained[Batch], train: ResumableLoader[Batch], validation: ResumableLoader[Batch], folder: Path
) -> None:
    """Train ``module`` in bf16 autocast for its number of steps, or continue an interrupted run in ``folder``."""
    with without_launcher(nodes=1):
        trainer = pl.Trainer(
            max_steps=module.steps,
            plugins=LightningEnvironment(),
            precision="bf16-mixed",
            accelerator="auto",
            devices=1,
            val_check_interval=min(500, module.steps),
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            logger=CSVLogger(folder, name="", version=""),
            log_every_n_steps=20,
            callbacks=[
                ModelCheckpoint(folder, filename="last", every_n_train_steps=200, enable_version_counter=False),
                TQDMProgressBar(refresh_rate=20),
            ],
            enable_model_summary=False,
        )
        last = folder / "last.ckpt"
        trainer.fit(module, train, validation, ckpt_path=last if last.exists() else None, weights_only=True)
