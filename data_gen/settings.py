"""Settings of data generation; light enough to be imported for ``--help``."""

from __future__ import annotations

from dataclasses import dataclass

from ..controllers.arms import check_enough
from ..controllers.errors import InputError


@dataclass(frozen=True)
class AcceptanceDataOptions:
    """Settings of an acceptance dataset. Every field that the rows depend on is part of the dataset's identity.

    Args:
        target: target model: a shipped tiny model, a folder, or a hub id.
        draft: draft model.
        prompts: 'builtin', a JSON Lines/Parquet/text file, a folder of such files, or a hub dataset id.
        column: column that holds the prompt.
        split: split of the built-in bank (train, validation, test) or of a hub dataset.
        limit: take only the first so many prompts.
        domains: take only prompts of these domains.
        chat: put prompts into the chat template (false: continue them as plain text).
        max_prompt_tokens: leave longer prompts out (default: refuse a prompt that fills the context).
        max_new_tokens: longest rollout.
        temperature: sampling of both models; 0 is greedy.
        top_k: keep the k most probable tokens; null keeps all.
        top_p: keep the most probable tokens up to this mass.
        seed: seed of every random number.
        batch_size: prompts rolled out together.
        shard_size: prompts a shard; also what a killed run may lose.
        dtype: float32, bfloat16 or float16.
        device: auto, cpu, cuda, …
        trust_remote_code: run code that comes with models; only for sources you trust.
    """

    target: str = "tiny"
    draft: str = "tiny-draft"
    prompts: str = "builtin"
    column: str = "prompt"
    split: str = "train"
    limit: int | None = None
    domains: list[str] | None = None
    chat: bool = True
    max_prompt_tokens: int | None = None
    max_new_tokens: int = 128
    temperature: float = 1.0
    top_k: int | None = 50
    top_p: float = 1.0
    seed: int = 0
    batch_size: int = 64
    shard_size: int = 256
    dtype: str = "float32"
    device: str = "auto"
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "batch_size", "shard_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.max_prompt_tokens is not None and self.max_prompt_tokens < 1:
            raise InputError(f"max_prompt_tokens={self.max_prompt_tokens}: must be at least 1, or left out")


@dataclass(frozen=True)
class OnPolicyDataOptions(AcceptanceDataOptions):
    """Settings of a dataset of the decoder's own rounds.

    Args:
        length: the length controller that drafts: a number, a rule, or a trained controller.
        threshold: stopping threshold of a trained controller.
        cost: file of 'specpilot bench cost', or t_draft / t_verify, for a trained controller that stops by cost.
    """

    length: str = "8"
    threshold: float | None = None
    cost: str | float | None = None


ARMS = ("tiny-draft", "tiny-draft-code-prose", "tiny-draft-math", "tiny-draft-sql-shell", "autoregressive")


@dataclass(frozen=True)
class RouterDataOptions:
    """Settings of a router's dataset. Every field that the rows depend on is part of the dataset's identity.

    Args:
        target: target model: a shipped tiny model, a folder, or a hub id.
        arms: what is chosen between, in order: draft models, exit:LAYER (the target's first layers draft), and
            autoregressive (no draft).
        prompts: 'builtin', a JSON Lines/Parquet/text file, a folder of such files, or a hub dataset id.
        column: column that holds the prompt; a column 'domain' groups prompts in reports.
        split: split of the built-in bank (train, validation, test) or of a hub dataset.
        limit: take only the first so many prompts.
        domains: take only prompts of these domains.
        chat: put prompts into the chat template (false: continue them as plain text).
        max_prompt_tokens: leave longer prompts out (default: refuse a prompt that fills the context).
        max_new_tokens: longest output.
        temperature: sampling of the sampled output, under which arms are scored; the others are greedy.
        top_k: keep the k most probable tokens; null keeps all.
        top_p: keep the most probable tokens up to this mass.
        seed: seed of every random number.
        batch_size: prompts rolled out together.
        shard_size: prompts a shard; also what a killed run may lose.
        dtype: float32, bfloat16 or float16.
        device: auto, cpu, cuda, …
        trust_remote_code: run code that comes with models; only for sources you trust.
    """

    target: str = "tiny"
    arms: tuple[str, ...] = ARMS
    prompts: str = "builtin"
    column: str = "prompt"
    split: str = "train"
    limit: int | None = None
    domains: list[str] | None = None
    chat: bool = True
    max_prompt_tokens: int | None = None
    max_new_tokens: int = 64
    temperature: float = 1.0
    top_k: int | None = 50
    top_p: float = 1.0
    seed: int = 0
    batch_size: int = 64
    shard_size: int = 256
    dtype: str = "float32"
    device: str = "auto"
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "arms", tuple(self.arms))  # YAML and flags give a list
        check_enough(self.arms)
        for name in ("max_new_tokens", "batch_size", "shard_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.max_prompt_tokens is not None and self.max_prompt_tokens < 1:
            raise InputError(f"max_prompt_tokens={self.max_prompt_tokens}: must be at least 1, or left out")
