"""Base of the datasets made of rollouts: encoded prompts, shards, random numbers, and the writing loop."""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..controllers.errors import InputError
from ..infer.models import LanguageModel
from ..infer.prompting import encode_prompt
from ..options import AcceptanceDataOptions, RouterDataOptions
from .dataset import ParquetWriter
from .prompts import fingerprint, load_prompts

R = TypeVar("R")


@dataclass(frozen=True)
class Item:
    """An encoded prompt, and the maximum number of new tokens (``budget``)."""

    id: str
    prompt: str
    ids: list[int]
    budget: int
    domain: str = "all"


class DatasetBuilder(ABC, Generic[R]):
    """Turns groups of prompts into rows.

    Attributes:
        items: the encoded prompts, after :meth:`prepare`.
        left_out: number of prompts that were too long.
    """

    settings: AcceptanceDataOptions | RouterDataOptions
    items: list[Item]
    left_out: int
    prompts_fingerprint: str

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Everything the rows depend on; a resumed run must have the same."""

    @abstractmethod
    def rows(self, shard: list[Item], on_done: Callable[[int], None] = lambda tokens: None) -> list[R]:
        """The rows of a shard; ``on_done`` is called with the number of tokens generated for each prompt."""

    def prepare(self, tokenizer: PreTrainedTokenizerBase, models: Sequence[LanguageModel]) -> None:
        """Load and encode the prompts; budgets are limited by the shortest context of ``models``.

        Raises:
            InputError: there are no prompts, or one fills the context.
        """
        settings = self.settings
        prompts = load_prompts(
            settings.prompts,
            column=settings.column,
            split=settings.split,
            limit=settings.limit,
            skip=settings.skip,
            domains=settings.domains,
        )
        self.prompts_fingerprint = fingerprint(prompts)
        context = min((m.context for m in models if m.context is not None), default=None)
        self.items, self.left_out = [], 0
        for prompt in prompts:
            ids = encode_prompt(tokenizer, prompt.prompt, chat=settings.chat, system=settings.system)
            if settings.max_prompt_tokens is not None and len(ids) > settings.max_prompt_tokens:
                self.left_out += 1
                continue
            room = settings.max_new_tokens if context is None else min(settings.max_new_tokens, context - len(ids))
            if room < 1:
                raise InputError(
                    f"prompt {prompt.id}: {len(ids)} tokens, but the context holds {context}; "
                    f"leave such prompts out with --max-prompt-tokens {context - settings.max_new_tokens}"  # type: ignore[operator]
                )
            self.items.append(Item(prompt.id, prompt.prompt, ids, room, prompt.domain))
        if not self.items:
            raise InputError(f"{settings.prompts}: no prompt has at most --max-prompt-tokens tokens; raise it")

    def prompt_identity(self, device: torch.device) -> dict[str, Any]:
        """The part of the identity that describes prompts and settings."""
        s = self.settings
        return {
            "prompts": {
                "source": s.prompts,
                "split": s.split,
                "count": len(self.items),
                "left_out": self.left_out,
                "sha256": self.prompts_fingerprint,
            },
            "settings": {
                "chat": s.chat,
                **({} if s.system is None else {"system": s.system}),
                "max_prompt_tokens": s.max_prompt_tokens,
                "max_new_tokens": s.max_new_tokens,
                "batch_size": s.batch_size,
                "shard_size": s.shard_size,
                "dtype": s.dtype,
                "device": device.type,
            },
        }

    def shards(self) -> list[list[Item]]:
        """The prompts of each shard."""
        size = self.settings.shard_size
        return [self.items[i : i + size] for i in range(0, len(self.items), size)]

    def uniforms(self, item: Item, stream: str) -> Tensor:
        """(T,) uniform numbers, one per token of the budget; they depend only on the seed and the prompt's id."""
        digest = hashlib.sha256(f"{self.settings.seed}\0{stream}\0{item.id}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))
        return torch.rand(item.budget, generator=generator)


def write_shards(writer: ParquetWriter[R], builder: DatasetBuilder[R], console: Console) -> bool:
    """Write the missing shards and mark the dataset complete; return False if it already was."""
    total, output = len(builder.items), writer.folder
    for name in writer.forget_damaged():
        console.print(f"{output / name}: missing or changed; made again", soft_wrap=True)
    if writer.manifest["complete"]:
        console.print(f"{output}: already complete ({total} rollouts)")
        return False
    shards = builder.shards()
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

        for index, shard in missing.items():
            writer.write(builder.rows(shard, count), index)
        writer.complete()
    console.print(f"{output}: {total} rollouts, {tokens} new tokens")
    return True
