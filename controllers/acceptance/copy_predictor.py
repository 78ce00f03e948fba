"""Acceptance probabilities of copied tokens from a copy head."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ...common.errors import InputError
from .calibration import sigmoid
from .copy_head import EVIDENCE, VECTORS, CopyHead, normalised

ROWS = 8192  # of the embedding that are read at once


class CopyPredictor:
    """A copy head and the embedding it reads, in tables on the host: a prediction is a few operations of NumPy.

    Args:
        head: the head; its weights are taken as they are now.
        embedding: (V, d) the target's output embedding.

    Raises:
        InputError: the embedding is of another size, or offloaded.
    """

    @torch.inference_mode()
    def __init__(self, head: CopyHead, embedding: Tensor) -> None:
        if embedding.is_meta:
            raise InputError("reads the target's output embedding, which is offloaded; load the target without that")
        if embedding.shape[1] != head.hidden_size:
            raise InputError(
                f"reads embeddings of size {head.hidden_size}, where this target's are of {embedding.shape[1]}; train "
                "one for this target"
            )
        self.head = head.cpu().eval().requires_grad_(False)
        inner = head.inner.weight
        of_evidence = inner[:, :EVIDENCE] / head.scale  # (width, 9)
        copied, last = inner[:, EVIDENCE:].chunk(VECTORS, dim=1)
        self.copied = _tabulate(embedding, copied, head.inner.bias - of_evidence @ head.mean)  # (V, width)
        self.last = _tabulate(embedding, last, torch.zeros(head.width))  # (V, width)
        self.evidence: NDArray[np.float32] = of_evidence.numpy()
        self.weights: NDArray[np.float32] = head.out.weight[0].numpy()
        self.bias = float(head.out.bias)

    def predict(self, evidence: Sequence[float], token: int, last: int) -> float:
        """The probability that the target accepts ``token``, copied after ``last``.

        Args:
            evidence: (9,) :func:`~.copy_head.copy_evidence`.
        """
        units = self.evidence @ np.array(evidence, np.float32)
        units += self.copied[token]
        units += self.last[last]
        return sigmoid(float(np.maximum(units, 0.0) @ self.weights) + self.bias)


def _tabulate(embedding: Tensor, weight: Tensor, bias: Tensor) -> NDArray[np.float32]:
    """(V, width) ``weight`` (width, d) times every normalised row of ``embedding`` (V, d), plus ``bias`` (width,)."""
    rows = torch.split(embedding, ROWS)
    return torch.cat([F.linear(normalised(part.cpu()), weight) for part in rows]).add_(bias).numpy()
