"""Training of one small Llama on text or on the target's opinion of it: Muon for matrices, AdamW for the rest."""

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
from .distillation import Taught

# tokens (B, T), whether each belongs to a response (B, T), and for distillation the target's probabilities (B, T, k) of
# its most likely next tokens, and their ids (B, T, k)
Batch = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


class LanguageModel(pl.LightningModule):
    """One model over packed windows; what it minimises depends on what it is given.

    Text: cross-entropy with the token that came. The target's distributions p: cross-entropy with them, or with
    ``overlap`` the total variation distance 1 - Σ min(p, q), which is the probability that a token drawn from q is
    rejected: what a draft is for, once it roughly follows p (the distance's gradient says little before).

    Prompt tokens weigh ``prompt_weight``, since only responses are generated.

    Learning rate: linear warm-up, then flat, then linear to zero over the last ``decay`` share of the steps.
    """

    def __init__(
        self,
        model: LlamaForCausalLM,
        steps: int,
        *,
        lr: float,
        prompt_weight: float,
        decay: float,
        overlap: bool,
        compile: bool,
    ) -> None:
        super().__init__()
        self.model, self.overlap = model, overlap
        self.steps, self.lr, self.prompt_weight, self.decay = steps, lr, prompt_weight, decay
        self.automatic_optimization = False  # two optimizers, stepped together
        self.loss = torch.compile(self._loss) if compile else self._loss

    def _loss(self, tokens: Tensor, weight: Tensor, probabilities: Tensor | None, likely: Tensor | None) -> Tensor:
        logits = self.model(input_ids=tokens, use_cache=False).logits[:, :-1].float()  # (B, T - 1, V)
        if probabilities is None or likely is None:
            losses = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        else:
            log_q = (logits - logits.logsumexp(-1, keepdim=True)).gather(-1, likely[:, :-1])  # (B, T - 1, k)
            p = probabilities[:, :-1]
            losses = (1 - torch.minimum(p, log_q.exp()).sum(-1) if self.overlap else -(p * log_q).sum(-1)).flatten()
        weight = weight[:, 1:].flatten()
        return (losses * weight).sum() / weight.sum()

    def _weighted_loss(self, batch: Batch) -> Tensor:
        tokens, is_response, probabilities, likely = batch
        return self.loss(tokens, torch.where(is_response, 1.0, self.prompt_weight), probabilities, likely)

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
        muon.optimizer.step()  # the bare optimizer: Lightning counts a step per wrapped optimizer, and one is enough
        adam.step()
        muon.zero_grad()
        adam.zero_grad()
        self.log("train_loss", loss, prog_bar=True)

    def validation_step(self, batch: Batch, index: int) -> None:
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
    train: Packed | Taught,
    validation: Packed,
    folder: Path,
    *,
    tokens: int,
    batch_size: int,
    lr: float,
    prompt_weight: float,
    decay: float,
    overlap: bool,
    compile: bool,
    seed: int,
) -> LlamaForCausalLM:
    """Train ``model`` on about ``tokens`` tokens in bf16 autocast; goes on from ``folder`` if it was cut short."""
    steps = max(1, tokens // (batch_size * validation.tokens.shape[1]))

    def loader(data: Packed | Taught, shuffle: bool) -> ResumableLoader[Batch]:
        text = data.text if isinstance(data, Taught) else data

        def batch(epoch: int, rows: Tensor) -> Batch:
            if isinstance(data, Taught):
                soft = data.probabilities[rows].float(), data.tokens[rows].long()
                return text.tokens[rows], text.is_response[rows], *soft
            return text.tokens[rows], text.is_response[rows], None, None

        whole = len(text.tokens) // batch_size * batch_size  # whole batches: one compiled shape
        return ResumableLoader(whole or len(text.tokens), batch_size, seed, batch, shuffle)

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
        LanguageModel(model, steps, lr=lr, prompt_weight=prompt_weight, decay=decay, overlap=overlap, compile=compile),
        loader(train, True),
        loader(validation, False),
        ckpt_path=last if last.exists() else None,
        weights_only=True,
    )
    return model
