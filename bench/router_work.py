"""What ``specpilot bench router`` runs on; light enough to be imported for ``--help``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..controllers.arms import check_enough
from ..controllers.errors import InputError


@dataclass(frozen=True)
class RouterBenchOptions:
    """The work of the router's benchmark.

    Args:
        target: target model: a shipped tiny model, a folder, or a hub id.
        drafts: draft models to choose between.
        pair: two of them that are each good at one of pair_domains: Table 1, and Table 3/4 with autoregressive.
        pair_domains: the domains they are good at, in order.
        domains: take only prompts of these domains.
        exits: layers of the target after which it drafts itself (Table 6, and the larger drafts of Figure 2); none
            for an encoder-decoder.
        limit: held-out prompts that are decoded and timed.
        train_limit: prompts that rewards are made of.
        repeats: how often routers and single drafts decode a prompt, the time in the middle being kept; the tables'
            other lengths and exits decode it once.
        work: folder of the two datasets; kept, and gone on with.
        length: tokens a draft where the length is fixed.
        learned: the length that is learnt, or follows the text: a rule, or a controller for each draft in order.
        max_new_tokens: longest continuation.
        temperature: sampling of all models.
        top_k: keep the k most probable tokens; null keeps all.
        temperatures: others that the routers are tried at (Tables 13, 14).
        lengths: fixed lengths that are tried (Tables 11, 12).
        examples: numbers of training prompts that are tried (Figure 3); all of them come last.
        seeds: trainings of each of those, with as many seeds.
        alphas: weights of alignment that are tried (Figure 2).
        dtype: float32, bfloat16 or float16.
        device: auto, cpu, cuda, …
    """

    target: str = "tiny"
    drafts: tuple[str, ...] = ("tiny-draft", "tiny-draft-code-prose", "tiny-draft-math", "tiny-draft-sql-shell")
    pair: tuple[str, ...] = ("tiny-draft-math", "tiny-draft-sql-shell")
    pair_domains: tuple[str, ...] = ("math", "sql")
    domains: tuple[str, ...] | None = None
    exits: tuple[int, ...] = (1, 2, 3)
    limit: int = 120
    train_limit: int = 1500
    repeats: int = 3
    work: str = "runs/router-bench"
    length: int = 4
    learned: str | tuple[str, ...] = "cumulative-confidence:0.3"
    max_new_tokens: int = 96
    temperature: float = 1.0
    top_k: int | None = 50
    temperatures: tuple[float, ...] = (0.5, 0.9)
    lengths: tuple[int, ...] = (5, 7, 10)
    examples: tuple[int, ...] = (10, 30, 100, 300)
    seeds: int = 3
    alphas: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    dtype: str = "float32"
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("limit", "train_limit", "repeats", "max_new_tokens", "length", "seeds"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: must be at least 1")
        check_enough(list(self.drafts))
        if len(self.pair) != 2 or not set(self.pair) <= set(self.drafts):
            raise InputError(f"pair={list(self.pair)}: name two of the drafts: {', '.join(self.drafts)}")
        if len(self.pair_domains) != 2:
            raise InputError(f"pair_domains={list(self.pair_domains)}: name two domains")

    @property
    def arms(self) -> tuple[str, ...]:
        """All arms that data is made for."""
        return (*self.drafts, *(f"exit:{layer}" for layer in self.exits), "autoregressive")

    @property
    def sampling(self) -> dict[str, Any]:
        """Keywords of ``SpeculativeDecoder.generate``."""
        return {"max_new_tokens": self.max_new_tokens, "temperature": self.temperature, "top_k": self.top_k}
