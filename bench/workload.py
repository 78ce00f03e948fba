"""What a decoding benchmark runs on: a pair, prompts and a sampling; light enough to be imported for ``--help``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..controllers.errors import InputError


@dataclass(frozen=True)
class WorkloadOptions:
    """The work of a benchmark.

    Args:
        target: target model: a shipped tiny model, a folder, or a hub id.
        draft: draft model.
        prompts: 'builtin', a JSON Lines/Parquet/text file, or a hub dataset id.
        column: column that holds the prompt.
        split: split of the built-in bank or of a hub dataset.
        limit: how many prompts.
        skip: how many to leave out before them.
        chat: put prompts into the chat template.
        max_new_tokens: longest continuation.
        temperature: sampling of both models; 0 is greedy.
        top_k: keep the k most probable tokens; null keeps all.
        top_p: keep the most probable tokens up to this mass.
        dtype: float32, bfloat16 or float16.
        compile: compile the decoder's models first.
        device: auto, cpu, cuda, …
    """

    target: str = "tiny"
    draft: str = "tiny-draft"
    prompts: str = "builtin"
    column: str = "prompt"
    split: str = "test"
    limit: int = 20
    skip: int = 0
    chat: bool = True
    max_new_tokens: int = 128
    temperature: float = 1.0
    top_k: int | None = 50
    top_p: float = 1.0
    dtype: str = "float32"
    compile: bool = False
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("limit", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.skip < 0:
            raise InputError(f"skip={self.skip}: must not be negative")

    @property
    def sampling(self) -> dict[str, Any]:
        """Keywords of ``SpeculativeDecoder.generate``."""
        return {name: getattr(self, name) for name in ("max_new_tokens", "temperature", "top_k", "top_p")}


@dataclass(frozen=True)
class CostOptions(WorkloadOptions):
    """Less of it, which is enough to time what one token costs, and none that controllers are judged on.

    Args:
        split: split of the built-in bank or of a hub dataset.
        limit: how many prompts.
        max_new_tokens: longest continuation.
    """

    split: str = "train"
    limit: int = 4
    max_new_tokens: int = 64


@dataclass(frozen=True)
class PapersOptions(WorkloadOptions):
    """The papers' sampling, and prompts to choose settings on.

    Args:
        limit: how many prompts.
        validation_limit: how many others, for the choice of settings: the built-in bank's validation split, or those
            that follow in a file.
        train_limit: how many prompts heads (specdecpp) and routers (selection) are trained on.
        drafts: drafts to choose between (selection); the first two are each good at one of pair_domains.
        pair_domains: the domains they are good at, in order.
        max_new_tokens: longest continuation.
        top_k: keep the k most probable tokens; null keeps all.
        top_p: keep the most probable tokens up to this mass.
    """

    limit: int = 60
    validation_limit: int = 16
    train_limit: int = 400
    drafts: tuple[str, ...] = ("tiny-draft-math", "tiny-draft-sql-shell", "tiny-draft", "tiny-draft-code-prose")
    pair_domains: tuple[str, ...] = ("math", "sql")
    max_new_tokens: int = 96
    top_k: int | None = 10
    top_p: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("validation_limit", "train_limit"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: must be at least 1")

    def validation(self) -> WorkloadOptions:
        """The same on the prompts to choose by."""
        builtin = self.prompts == "builtin"
        values = {field.name: getattr(self, field.name) for field in fields(WorkloadOptions)}
        values |= {"split": "validation"} if builtin else {"skip": self.skip + self.limit}
        return WorkloadOptions(**(values | {"limit": self.validation_limit}))


@dataclass(frozen=True)
class QuestionsOptions(WorkloadOptions):
    """Questions with answers to be judged.

    Args:
        task: prompts (any), spec-bench, mt-bench, alpaca, gsm8k, humaneval, spider or xsum.
        prompts: file, folder or hub id of the questions; 'builtin' is the task's home on the hub, or for the task
            prompts the built-in bank.
        databases: Spider's folder of databases.
        run_code: run generated Python, in a process of its own with limits of time and memory, to score it.
    """

    task: str = "prompts"
    databases: Path | None = None
    run_code: bool = False
