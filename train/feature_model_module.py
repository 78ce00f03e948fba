"""The feature model's training: Newton's method on four parameters, one step per epoch.

The log-likelihood of a logistic model is concave: a few passes over the data find its maximum, in any order of batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..controllers.acceptance.calibration import newton_weights
from ..controllers.acceptance.feature_model import FEATURES, FeatureModel, FeatureModelConfig, FeaturePredictor
from ..data_gen.draft_states import Examples
from .acceptance_module import AcceptanceDataModule, AcceptanceModule
from .controller_module import Batch
from .options import FeatureTrainingOptions

RIDGE = 1e-6  # times the number of examples; keeps the Hessian regular if a feature is constant


class FeatureModule(AcceptanceModule):
    """The feature model in training."""

    automatic_optimization = False
    head: FeatureModel
    config = FeatureModelConfig

    def __init__(self, settings: FeatureTrainingOptions, data: AcceptanceDataModule) -> None:
        super().__init__(settings, data)
        self.head = FeatureModel(bias=float(torch.logit(torch.tensor(self.mean), eps=1e-6)))
        self.normal = torch.zeros(1 + FEATURES, 2 + FEATURES, dtype=torch.float64)  # (Hessian, gradient)

    @staticmethod
    def inputs(settings: FeatureTrainingOptions, examples: Examples, embedding: Tensor) -> Sequence[Tensor]:
        return (examples["evidence"][:, :FEATURES],)

    @torch.no_grad()
    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        (features,) = batch.inputs
        x = F.pad(features, (1, 0), value=1.0).cpu().double()  # (M, 4), a one for the bias
        p, accept = torch.sigmoid(self.logits(batch)).cpu().double(), batch.accept.cpu().double()
        hessian, gradient = (x.T * newton_weights(p, accept)) @ x, x.T @ (accept - p)
        self.normal = self.normal + self.total(torch.cat([hessian, gradient.unsqueeze(1)], 1))
        step = torch.zeros(1 + FEATURES, dtype=torch.float64)
        if batch_idx + 1 == self.trainer.num_training_batches:
            hessian, gradient = self.normal[:, :-1], self.normal[:, -1]
            step = torch.linalg.solve(hessian + RIDGE * hessian[0, 0] * torch.eye(1 + FEATURES), gradient)
            self.normal = torch.zeros_like(self.normal)
        self.head.bias.grad, self.head.weight.grad = (-step[0]).to(self.head.bias), (-step[1:]).to(self.head.weight)
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        optimizer.step()
        losses = F.binary_cross_entropy(p, accept, reduction="sum")
        loss = self.share(losses, losses.new_tensor(len(accept))).float()
        self.log("loss", loss, prog_bar=True, logger=False, batch_size=1)
        return loss

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["normal"] = self.normal

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.normal = checkpoint["normal"]

    def predictor(self) -> FeaturePredictor:
        return FeaturePredictor(self.head, self.mean)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.head.parameters(), lr=1.0)  # the gradient is set to Newton's step
