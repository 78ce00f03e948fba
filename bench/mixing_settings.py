"""Settings of the study of mixing, light enough to be imported for ``--help``."""

from __future__ import annotations

from dataclasses import dataclass

from .sweep_settings import SweepOptions, check_grid


@dataclass(frozen=True)
class MixingOptions:
    """Which share r of target tokens to train a head with, by how often the draft agrees (SpecDec++ §3.3: r = 0.15).

    Args:
        target: target model: a shipped tiny model, a folder, or a hub id.
        drafts: draft models; each gives a dataset of its own agreement.
        temperatures: of both models; each gives a dataset of its own agreement.
        mixings: shares r; 1 trains on the target's own text as context throughout.
        prompts: 'builtin-large', 'builtin', or a hub dataset id with a column 'domain' and splits 'train' and 'test'.
        train_prompts: how many prompts are trained on.
        per_domain: how many prompts of each domain of the test split are replayed on.
        max_new_tokens: longest text, in training and judging.
        depth: residual blocks D of the heads.
        w_rej: loss weight of rejection.
        epochs: passes over the training data.
        batch_size: rollouts per training step.
        lr: initial learning rate.
        validation_fraction: share of training prompts held out to choose the best epoch by and to judge on.
        seed: seed of every random number.
        device: auto, cpu, cuda, …
    """

    target: str = "tiny"
    drafts: tuple[str, ...] = ("tiny-draft", "tiny-draft-math")
    temperatures: tuple[float, ...] = (0.5, 1.0, 1.5)
    mixings: tuple[float, ...] = (0.15, 0.5, 0.85, 0.95, 1.0)
    prompts: str = "builtin-large"
    train_prompts: int = 1200
    per_domain: int = 20
    max_new_tokens: int = 64
    depth: int = 3
    w_rej: float = 6.0
    epochs: int = 3
    batch_size: int = 16
    lr: float = 1e-3
    validation_fraction: float = 0.2
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        check_grid(self, "drafts", "temperatures", "mixings")

    def sweep(self, draft: str, temperature: float, mixing: float, domains: tuple[str, ...]) -> SweepOptions:
        """One head of the study as a sweep of one."""
        return SweepOptions(
            target=self.target,
            draft=draft,
            prompts=self.prompts,
            in_domain=domains,
            train_prompts=self.train_prompts,
            per_domain=self.per_domain,
            max_new_tokens=self.max_new_tokens,
            depths=(self.depth,),
            weights=(self.w_rej,),
            mixing=mixing,
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            validation_fraction=self.validation_fraction,
            temperature=temperature,
            seed=self.seed,
            device=self.device,
        )
