"""Pre-training of one small Llama from scratch: next-token cross-entropy, Muon for matrices, AdamW for the rest."""

from __future__ import annotations

from pathlib import Path

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from pytorch_lightning.callbacks import ModelCheckpoint, TQDMProgressBar
from pytorch_lightning.loggers import CSVLogger
from torch import Tensor
from transformers import LlamaForCausalLM

from ..loader import ResumableLoader
from .corpus import Packed


class LanguageModel(pl.LightningModule):
    """Cross-entropy over packed windows; prompt tokens weigh ``prompt_weight``, since only responses are generated.

    Learning rate: linear warm-up, then flat, then linear to zero over the last ``decay`` share of the steps.
    """

    def __init__(
        self, model: LlamaForCausalLM, steps: int, lr: float, prompt_weight: float, decay: float, compile: bool
    ) -> None:
        super().__init__()
        self.model = model
        self.steps, self.lr, self.prompt_weight, self.decay = steps, lr, prompt_weight, decay
        self.automatic_optimization = False  # two optimizers, stepped together
        self.loss = torch.compile(self._loss) if compile else self._loss

    def _loss(self, tokens: Tensor, weight: Tensor) -> Tensor:
        logits = self.model(input_ids=tokens, use_cache=False).logits  # (B, T, V)
        losses = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none")
        weight = weight[:, 1:].flatten()
        return (losses * weight).sum() / weight.sum()

    def _weighted_loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        tokens, is_response = batch
        return self.loss(tokens, torch.where(is_response, 1.0, self.prompt_weight))

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
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
        muon.optimizer.step()  # the bare optimizer: Lightning counts a step per wrapped optimizer, and one is enough
        adam.step()
        muon.zero_grad()
        adam.zero_grad()
        self.log("train_loss", loss, prog_bar=True)

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.log("val_loss", self._weighted_loss(batch), prog_bar=True)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        matrices: list[torch.nn.Parameter] = []
        rest: list[torch.nn.Parameter] = []
        for name, parameter in self.model.named_parameters():
            (matrices if parameter.ndim == 2 and "embed" not in name else rest).append(parameter)
        return [
            torch.optim.Muon(matrices, lr=self.lr, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, lr=self.lr, betas=(0.9, 0.95), weight_decay=0.0),
        ]


def learning_rate_scale(step: int, steps: int, decay: float, warmup: int = 100) -> float:
    """Warm-up, flat, linear decay: a factor in [0, 1]."""
    left = (steps - step) / max(1.0, decay * steps)
    return max(0.0, min(1.0, (step + 1) / warmup, left))


def fit(
    model: LlamaForCausalLM,
    train: Packed,
    validation: Packed,
    folder: Path,
    *,
    tokens: int,
    batch_size: int,
    lr: float,
    prompt_weight: float,
    decay: float,
    compile: bool,
    seed: int,
) -> LlamaForCausalLM:
    """Train ``model`` on about ``tokens`` tokens in bf16 autocast; goes on from ``folder`` if it was cut short."""
    steps = max(1, tokens // (batch_size * train.tokens.shape[1]))

    def loader(packed: Packed, shuffle: bool) -> ResumableLoader[tuple[Tensor, Tensor]]:
        return ResumableLoader(
            len(packed.tokens) // batch_size * batch_size or len(packed.tokens),  # whole batches: one compiled shape
            batch_size,
            seed,
            lambda epoch, rows: (packed.tokens[rows], packed.is_response[rows]),
            shuffle,
        )

    trainer = pl.Trainer(
        max_steps=steps,
        precision="bf16-mixed",
        accelerator="auto",
        devices=1,
        val_check_interval=min(500, steps),
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
    trainer.fit(
        LanguageModel(model, steps, lr, prompt_weight, decay, compile),
        loader(train, True),
        loader(validation, False),
        ckpt_path=last if last.exists() else None,
        weights_only=True,
    )
    return model
