"""The feature model's training: Newton's method on four parameters, one step per epoch.

The log-likelihood of a logistic model is concave: a few passes over the data find its maximum, in any order of batches.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..controllers.acceptance.feature_model import FeatureModel, FeatureModelConfig, FeaturePredictor
from ..controllers.acceptance.lag_free_head import FEATURES
from .acceptance_module import AcceptanceDataModule, AcceptanceModule, Batch
from .options import FeatureTrainingOptions

RIDGE = 1e-6  # times the number of examples; keeps the Hessian regular if a feature is constant


class FeatureHead(nn.Module):
    """The feature model on standardised features: (M, 3) → (M,) logits."""

    mean: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(1 + FEATURES))  # the bias comes first
        self.register_buffer("mean", torch.zeros(FEATURES))
        self.register_buffer("scale", torch.ones(FEATURES))

    def inputs(self, features: Tensor) -> Tensor:
        """(M, 4) a one for the bias, then the standardised features."""
        return F.pad((features - self.mean) / self.scale, (1, 0), value=1.0)

    def forward(self, features: Tensor) -> Tensor:
        return self.inputs(features) @ self.weights

    def model(self) -> FeatureModel:
        """The equivalent model of features that are not standardised."""
        bias, *weights = (self.weights.detach().double() / F.pad(self.scale, (1, 0), value=1.0)).tolist()
        return FeatureModel(bias - sum(w * m for w, m in zip(weights, self.mean.tolist(), strict=True)), *weights)


class FeatureModule(AcceptanceModule):
    """The feature model in training."""

    options = FeatureTrainingOptions
    automatic_optimization = False
    head: FeatureHead

    def __init__(self, settings: FeatureTrainingOptions, data: AcceptanceDataModule) -> None:
        super().__init__(settings, data)
        self.head = FeatureHead()
        mean, scale = data.evidence_moments()
        self.head.mean.copy_(mean[:FEATURES])
        self.head.scale.copy_(torch.where(scale > 1e-6, scale, 1.0)[:FEATURES])
        self.head.weights.data[0] = torch.logit(torch.tensor(self.mean), eps=1e-6)
        self.normal = torch.zeros(1 + FEATURES, 2 + FEATURES, dtype=torch.float64)  # (Hessian, gradient)

    @classmethod
    def exported(
        cls, settings: FeatureTrainingOptions, dataset: dict[str, Any], best: dict[str, Any], common: dict[str, Any]
    ) -> tuple[FeatureModel, FeatureModelConfig]:
        head = FeatureHead()
        head.load_state_dict(best["head"])
        return head.model(), FeatureModelConfig(**common, mean=best["mean"])

    def logits(self, batch: Batch) -> Tensor:
        assert batch.evidence is not None
        logits: Tensor = self.head(batch.evidence[:, :FEATURES])
        return logits.float()

    @torch.no_grad()
    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        assert batch.evidence is not None
        x = self.head.inputs(batch.evidence[:, :FEATURES]).cpu().double()
        p, accept = torch.sigmoid(x @ self.head.weights.cpu().double()), batch.accept.cpu().double()
        hessian, gradient = (x * (p * (1 - p)).unsqueeze(1)).T @ x, x.T @ (accept - p)
        self.normal = self.normal + self.total(torch.cat([hessian, gradient.unsqueeze(1)], 1))
        self.head.weights.grad = torch.zeros_like(self.head.weights)
        if batch_idx + 1 == self.trainer.num_training_batches:
            hessian, gradient = self.normal[:, :-1], self.normal[:, -1]
            step = torch.linalg.solve(hessian + RIDGE * hessian[0, 0] * torch.eye(1 + FEATURES), gradient)
            self.head.weights.grad = -step.to(self.head.weights)
            self.normal = torch.zeros_like(self.normal)
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        optimizer.step()
        losses = F.binary_cross_entropy(p, accept, reduction="sum")
        return self.share(losses, losses.new_tensor(len(accept))).float()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["normal"] = self.normal

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.normal = checkpoint["normal"]

    def predictor(self) -> FeaturePredictor:
        return FeaturePredictor(self.head.model(), self.mean)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.head.parameters(), lr=1.0)  # the gradient is set to Newton's step
