"""The training step of drafts: total variation distillation.

A drafted token is accepted with probability Σ_v min(p, q) (Leviathan et al. 2023, Theorem 3.5), which is one minus the
total variation distance ½ Σ_v |p - q|, so that distance is the loss (Zhou et al. 2024, "DistillSpec"). Shapes: B
windows of T tokens, N learned positions, V tokens of the target, M tokens of the draft.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..infer.models.trimmed_head import TrimmedHead
from ..options import DraftTrainingOptions
from .controller_module import ControllerModule
from .draft_data import Windows

WARM_UP = 0.05  # share of the steps
METRICS = ("acceptance", "coverage", "greedy_agreement")


class DraftModule(ControllerModule):
    """A draft in training.

    Args:
        draft: the draft; parameters that do not require gradients are not trained.
        target: the target, whose weights are not part of the module.
        left_out: names of the draft's weights that checkpoints leave out, since they are the target's.
        steps: number of steps of the whole training.
    """

    criterion = "acceptance"
    head: PreTrainedModel

    def __init__(
        self,
        settings: DraftTrainingOptions,
        draft: PreTrainedModel,
        target: PreTrainedModel,
        *,
        left_out: set[str],
        steps: int,
    ) -> None:
        super().__init__(settings)
        self.settings, self.steps = settings, steps
        self.head = draft.eval()  # distillation without dropout
        self._target = (target,)  # in a tuple, so that it is no part of the module
        self.strict_loading = False
        self.head.register_state_dict_post_hook(partial(_leave_out, left_out))

    def overlap(self, batch: Windows) -> tuple[Tensor, Tensor, Tensor]:
        """Of each learned position: Σ_v min(p, q), Σ p of the draft's tokens, and whether the arg-max agrees; (N,)."""
        target: Any = self._target[0].to(self.device)  # type: ignore[arg-type]
        learned = batch.learned
        tokens = batch.tokens.long()
        head = self.head.get_output_embeddings()
        kept = head.tokens if isinstance(head, TrimmedHead) else None
        with torch.no_grad():
            z = target(input_ids=tokens, use_cache=False).logits[learned].float()  # (N, V)
            best, mass = z.argmax(-1), z.logsumexp(-1, keepdim=True)
            p = ((z if kept is None else z[:, kept]) - mass).exp()  # (N, M)
        logits = self.head(input_ids=tokens, use_cache=False).logits[learned].float()  # (N, M)
        chosen = logits.detach().argmax(-1)
        agree = (chosen if kept is None else kept[chosen]) == best
        return torch.minimum(p, logits.softmax(-1)).sum(-1), p.sum(-1), agree

    def training_step(self, batch: Windows, batch_idx: int) -> Tensor:
        accept, _, _ = self.overlap(batch)
        loss = self.share((1 - accept).sum(), accept.new_tensor(len(accept)))
        self.log("loss", loss, prog_bar=True, logger=False, batch_size=len(batch.tokens))
        return loss

    def on_validation_epoch_start(self) -> None:
        # Not created earlier: spawned processes would share the memory of existing tensors.
        self._sums = torch.zeros(len(METRICS) + 1, dtype=torch.float64)

    def validation_step(self, batch: Windows, batch_idx: int) -> None:
        accept, coverage, agree = self.overlap(batch)
        self.require_finite("predictions are", accept)
        count = accept.new_tensor(len(accept))
        self._sums += torch.stack([accept.sum(), coverage.sum(), agree.sum(), count]).double().cpu()

    def on_validation_epoch_end(self) -> None:
        *sums, count = self.total(self._sums).tolist()
        self.validation = {name: value / max(1, count) for name, value in zip(METRICS, sums, strict=True)}
        value = self.validation[self.criterion]
        self.log("val_acceptance", value, prog_bar=True, logger=False, sync_dist=True)

    def score(self) -> float:
        return self.validation["acceptance"]

    def configure_optimizers(self) -> Any:
        settings = self.settings
        trained = [parameter for parameter in self.head.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=settings.lr, weight_decay=settings.weight_decay, betas=(0.9, 0.99))
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(lr_factor, steps=self.steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def lr_factor(step: int, steps: int) -> float:
    """Share of the highest learning rate: a linear warm-up over the first steps, then a cosine down to zero."""
    warm = max(1, round(WARM_UP * steps))
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warm) / max(1, steps - warm))))


def _leave_out(names: set[str], module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    for name in names:
        state.pop(prefix + name, None)
