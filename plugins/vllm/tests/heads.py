"""Length heads for tests."""

from __future__ import annotations

from pathlib import Path

import torch
from specpilot.controllers.acceptance.length_head import Every, LengthHead, LengthHeadConfig
from specpilot.controllers.checkpoints.checkpoint import load_controller, save_controller
from specpilot.models.loading.names import load_model


def length_head(folder: Path, every: Every = "round") -> str:
    """A length head of the shipped pair, with random weights."""
    known = load_controller("tiny-lag-free").config
    size = load_model("tiny").config.hidden_size
    config = LengthHeadConfig(
        provenance=known.provenance, datasets=known.datasets, metrics={}, hidden_size=size, width=8, every=every,
        mean=0.5, rounds=1,
    )  # fmt: skip
    torch.manual_seed(1)
    return str(save_controller(folder, LengthHead(size, 8), config))
