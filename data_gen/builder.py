"""Base of the datasets made of rollouts: encoded prompts, shards, random numbers, and the writing loop."""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from ..common.errors import InputError
from ..infer.loading.names import load_tokenizer
from ..infer.models import LanguageModel
from ..infer.prompting import encode_prompt
from .dataset import ParquetWriter
from .options import AcceptanceDataOptions, AnswersDataOptions, RouterDataOptions, WorkerOptions
from .prompts import fingerprint, load_prompts
from .workers import OnDone, Workers, ignore

R = TypeVar("R")
PROBE_TOKENS = 16
RolloutOptions = AcceptanceDataOptions | AnswersDataOptions | RouterDataOptions


@dataclass(frozen=True)
class Item:
    """An encoded prompt, the maximum number of new tokens (``budget``), and the target's text if it is given."""

    id: str
    prompt: str
    ids: list[int]
    budget: int
    domain: str = "all"
    response: list[int] | None = None


@dataclass(frozen=True)
class EncodedPrompts:
    """The prompts of a dataset.

    Attributes:
        items: the prompts that are used.
        left_out: number of prompts that were too long.
        identity: the part of the dataset's identity that describes prompts and settings.
    """

    items: list[Item]
    left_out: int
    identity: dict[str, Any]

    def shards(self, size: int) -> list[list[Item]]:
        """The prompts of each shard."""
        return [self.items[i : i + size] for i in range(0, len(self.items), size)]


def encode_prompts(settings: RolloutOptions, models: dict[str, Any]) -> EncodedPrompts:
    """Load and encode the prompts; budgets are limited by the shortest context of the models.

    Args:
        models: what :meth:`DatasetBuilder.describe` returned.

    Raises:
        InputError: there are no prompts, or one fills the context.
    """
    tokenizer = load_tokenizer(settings.target, trust_remote_code=settings.trust_remote_code)
    prompts = load_prompts(
        settings.prompts,
        column=settings.column,
        split=settings.split,
        limit=settings.limit,
        skip=settings.skip,
        domains=settings.domains,
    )
    context = models["context"]
    items, left_out = [], 0
    for prompt in prompts:
        ids = encode_prompt(tokenizer, prompt.prompt, chat=settings.chat, system=settings.system)
        if settings.max_prompt_tokens is not None and len(ids) > settings.max_prompt_tokens:
            left_out += 1
            continue
        room = settings.max_new_tokens if context is None else min(settings.max_new_tokens, context - len(ids))
        if room < 1:
            raise InputError(
                f"prompt {prompt.id}: {len(ids)} tokens, but the context holds {context}; "
                f"leave such prompts out with --max-prompt-tokens {context - settings.max_new_tokens}"
            )
        items.append(Item(prompt.id, prompt.prompt, ids, room, prompt.domain))
    if not items:
        raise InputError(f"{settings.prompts}: no prompt has at most --max-prompt-tokens tokens; raise it")
    s = settings
    identity = {
        "prompts": {
            "source": s.prompts,
            "split": s.split,
            "count": len(items),
            "left_out": left_out,
            "sha256": fingerprint(prompts),
        },
        "settings": {
            "chat": s.chat,
            **({} if s.system is None else {"system": s.system}),
            "max_prompt_tokens": s.max_prompt_tokens,
            "max_new_tokens": s.max_new_tokens,
            "batch_size": s.batch_size,
            "shard_size": s.shard_size,
            "dtype": s.dtype,
            "device": models["device"],
        },
    }
    return EncodedPrompts(items, left_out, identity)


class DatasetBuilder(ABC, Generic[R]):
    """Holds the models of a dataset; turns groups of prompts into rows.

    Attributes:
        models: all models; the first is the target.
    """

    settings: RolloutOptions
    models: list[LanguageModel]

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Everything about the models that the rows depend on; a resumed run must have the same."""

    @abstractmethod
    def make(self, unit: list[Item], on_done: OnDone = ignore) -> list[R]:
        """The rows of a shard; ``on_done`` is called with the number of tokens generated for each prompt."""

    def describe(self) -> dict[str, Any]:
        """The identity, the type of the device, and the shortest context of the models (None: unlimited)."""
        context = min((m.context for m in self.models if m.context is not None), default=None)
        return {"identity": self.identity(), "device": self.models[0].device.type, "context": context}

    @cached_property
    def prompts(self) -> EncodedPrompts:
        """All prompts."""
        return encode_prompts(self.settings, self.describe())

    def uniforms(self, item: Item, stream: str) -> Tensor:
        """(T,) uniform numbers, one per token of the budget; they depend only on the seed and the prompt's id."""
        digest = hashlib.sha256(f"{self.settings.seed}\0{stream}\0{item.id}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))
        return torch.rand(item.budget, generator=generator)


def write_shards(
    writer: ParquetWriter[R], shards: list[list[Item]], workers: Workers[list[Item], list[R]], console: Console
) -> bool:
    """Write the missing ones of ``shards`` and mark the dataset complete; return False if it already was."""
    total, output = sum(map(len, shards)), writer.folder
    for name in writer.forget_damaged():
        console.print(f"{output / name}: missing or changed; made again", soft_wrap=True)
    if writer.manifest["complete"]:
        console.print(f"{output}: already complete ({total} rollouts)")
        return False
    missing = {index: shards[index] for index in writer.missing(len(shards))}
    done = total - sum(map(len, missing.values()))
    if done:
        console.print(f"{output}: {done} rollouts found, continuing")
    columns = (
        TextColumn("rollouts"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=total, completed=done, rate="")
        started, tokens = time.perf_counter(), 0

        def count(length: int) -> None:
            nonlocal tokens
            tokens += length
            progress.update(task, advance=1, rate=f"{tokens / (time.perf_counter() - started):,.0f} tokens/s")

        for index, rows in workers.make_all(missing, count):
            writer.write(rows, index)
        writer.complete()
    console.print(f"{output}: {total} rollouts, {tokens} new tokens")
    return True


def plan(builder: DatasetBuilder[R], workers: WorkerOptions, token_bytes: float, texts: int = 1, fixed: int = 0) -> str:
    """A description of the work, timed on one short batch.

    Args:
        token_bytes: bytes on disk of a generated token.
        texts: texts generated for a prompt.
        fixed: bytes on disk of a row without its tokens.
    """
    settings, prompts = builder.settings, builder.prompts
    items = prompts.items
    probe = [replace(item, budget=min(item.budget, PROBE_TOKENS)) for item in items[: settings.batch_size]]
    tokens: list[int] = []
    started = time.perf_counter()
    builder.make(probe, tokens.append)
    rate = max(1, sum(tokens)) / (time.perf_counter() - started)
    most = texts * sum(item.budget for item in items)
    size = most * token_bytes + sum(len(item.ids) for item in items) * 3 + len(items) * fixed
    shards = prompts.shards(settings.shard_size)
    busy = min(workers.workers or 1, len(shards))
    shared = f", shared by {busy} workers" if busy > 1 else ""
    return "\n".join(
        [
            f"prompts      {len(items)} from {settings.prompts} ({prompts.left_out} left out as too long)",
            f"shards       {len(shards)} of up to {settings.shard_size} rollouts",
            f"tokens       at most {most:,} ({texts * settings.max_new_tokens} per prompt, fewer after an end token)",
            f"disk         at most about {size / 1e6:.1f} MB",
            f"time         at most about {most / rate / busy / 60:.1f} minutes at the {rate:,.0f} tokens/s of a short "
            f"probe{shared}",
        ]
    )
