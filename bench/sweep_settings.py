"""Settings of the sweep over acceptance heads, light enough to be imported for ``--help``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..controllers.errors import InputError


def check_grid(settings: Any, *names: str) -> None:
    """Make tuples of these fields, for YAML and flags give lists; raises InputError for an empty or repeated one."""
    for name in names:
        values = tuple(getattr(settings, name))
        object.__setattr__(settings, name, values)
        if not values or len(set(values)) < len(values):
            raise InputError(f"{name}={list(values)}: give at least one value, and none twice")


@dataclass(frozen=True)
class SweepOptions:
    """Grid and prompts of SpecDec++ (Huang et al. 2024, Tables 1 and 3, Figure 4).

    The grid is the paper's. Training is shorter than the paper's and its learning rate higher, as befits small heads
    and a few thousand prompts.

    Args:
        target: target model: a shipped tiny model, a folder, or a hub id.
        draft: draft model.
        data: acceptance dataset to train the heads on; by default one is made of the training split of the prompts.
        prompts: 'builtin-large', 'builtin', or a hub dataset id with a column 'domain' and splits 'train' and 'test'.
        in_domain: domains that the heads are trained on; the others are left out, and only judged on.
        train_prompts: how many prompts are trained on.
        per_domain: how many prompts of each domain of the test split are judged on.
        max_new_tokens: longest text, in training and judging.
        depths: residual blocks D of the heads.
        weights: loss weights of rejection.
        thresholds: stopping thresholds h.
        lengths: fixed lengths K, to compare with.
        confidences: thresholds of cumulative confidence, to compare with.
        mixing: share of target tokens in the training sequences.
        epochs: passes over the training data.
        batch_size: rollouts per training step.
        lr: initial learning rate.
        validation_fraction: share of training prompts held out to choose the best epoch by.
        temperature: sampling of both models.
        top_k: keep the k most probable tokens; null keeps all.
        top_p: keep the most probable tokens up to this mass.
        seed: seed of every random number.
        device: auto, cpu, cuda, …
    """

    target: str = "tiny"
    draft: str = "tiny-draft"
    data: str | None = None
    prompts: str = "builtin-large"
    in_domain: tuple[str, ...] = ("math", "code", "sql", "prose")
    train_prompts: int = 2000
    per_domain: int = 100
    max_new_tokens: int = 64
    depths: tuple[int, ...] = (0, 1, 2, 3, 4)
    weights: tuple[float, ...] = (1.0, 3.0, 6.0, 12.0)
    thresholds: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    lengths: tuple[int, ...] = (2, 4, 6, 8, 10, 12, 14)
    confidences: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    mixing: float = 0.15
    epochs: int = 3
    batch_size: int = 16
    lr: float = 1e-3
    validation_fraction: float = 0.1
    temperature: float = 1.0
    top_k: int | None = 50
    top_p: float = 1.0
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        check_grid(self, "in_domain", "depths", "weights", "thresholds", "lengths", "confidences")
        for name in ("train_prompts", "per_domain", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: must be at least 1")
