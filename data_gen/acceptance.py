"""``specpilot data acceptance``: prompts → rollouts of the target → acceptance labels → shards (SpecDec++ §3.3)."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..controllers.errors import InputError
from ..controllers.fingerprint import PairFingerprint
from ..controllers.warp import Warp
from ..infer.cached_model import CachedModel
from ..infer.decoder import stop_tokens_of
from ..infer.models import check_same_tokenizer, load_causal_lm, load_tokenizer
from ..infer.prompting import encode_prompt
from .dataset import SCHEMA_VERSION, DatasetWriter, Row
from .labels import label
from .prompts import fingerprint, load_prompts
from .rollout import roll_out
from .settings import AcceptanceData


@dataclass(frozen=True)
class Item:
    """A prompt ready to be rolled out, with the budget its length leaves."""

    id: str
    prompt: str
    ids: list[int]
    budget: int


class AcceptanceGenerator:
    """Models, prompts and settings of one dataset; turns groups of prompts into rows.

    Raises:
        InputError: a model or prompt source is missing, the pair does not fit, or a prompt fills the context.
    """

    def __init__(self, settings: AcceptanceData) -> None:
        self.settings = settings
        self.warp = Warp(settings.temperature, settings.top_k, settings.top_p)
        prompts = load_prompts(
            settings.prompts,
            column=settings.column,
            split=settings.split,
            limit=settings.limit,
        )
        trust = settings.trust_remote_code
        tokenizer = load_tokenizer(settings.target, trust_remote_code=trust)
        check_same_tokenizer(tokenizer, load_tokenizer(settings.draft, trust_remote_code=trust))
        target, draft = (
            load_causal_lm(name, dtype=settings.dtype, device=settings.device, trust_remote_code=trust)
            for name in (settings.target, settings.draft)
        )
        self.pair = PairFingerprint.of(target, draft, tokenizer)
        self.stop_tokens = stop_tokens_of(target, tokenizer)
        self.target, self.draft = CachedModel(target), CachedModel(draft)
        self.prompts_fingerprint = fingerprint(prompts)

        context = min((m.context for m in (self.target, self.draft) if m.context is not None), default=None)
        self.items: list[Item] = []
        self.left_out = 0
        for prompt in prompts:
            ids = encode_prompt(tokenizer, prompt.prompt, chat=settings.chat)
            if settings.max_prompt_tokens is not None and len(ids) > settings.max_prompt_tokens:
                self.left_out += 1
                continue
            room = settings.max_new_tokens if context is None else min(settings.max_new_tokens, context - len(ids))
            if room < 1:
                raise InputError(
                    f"prompt {prompt.id}: {len(ids)} tokens, but the context holds {context}; "
                    f"leave such prompts out with --max-prompt-tokens {context - settings.max_new_tokens}"  # type: ignore[operator]
                )
            self.items.append(Item(prompt.id, prompt.prompt, ids, room))
        if not self.items:
            raise InputError(f"{settings.prompts}: no prompt is left after --max-prompt-tokens")

    def identity(self) -> dict[str, Any]:
        """Everything the rows depend on; what a resumed run is compared with."""
        s = self.settings
        return {
            "kind": "acceptance",
            "schema_version": SCHEMA_VERSION,
            "code_version": version("specpilot"),
            "target": s.target,
            "draft": s.draft,
            "fingerprint": self.pair.as_dict(),
            "warp": self.warp.as_dict(),
            "seed": s.seed,
            "prompts": {
                "source": s.prompts,
                "split": s.split,
                "count": len(self.items),
                "left_out": self.left_out,
                "sha256": self.prompts_fingerprint,
            },
            "settings": {
                "chat": s.chat,
                "max_prompt_tokens": s.max_prompt_tokens,
                "max_new_tokens": s.max_new_tokens,
                "batch_size": s.batch_size,
                "shard_size": s.shard_size,
                "dtype": s.dtype,
                "device": self.target.device.type,
            },
        }

    def shards(self) -> list[list[Item]]:
        """The prompts of each shard."""
        size = self.settings.shard_size
        return [self.items[i : i + size] for i in range(0, len(self.items), size)]

    def rows(self, shard: list[Item], on_done: Callable[[int], None] = lambda tokens: None) -> list[Row]:
        """Roll out and label a shard; ``on_done`` is called with the length of every finished rollout."""
        size = self.settings.batch_size
        items = sorted(shard, key=lambda item: (len(item.ids), item.id))  # like lengths together: little is padded
        prompts = [item.ids for item in items]
        x = roll_out(
            self.target,
            prompts,
            [self._uniforms(item, "x") for item in items],
            self.warp,
            self.stop_tokens,
            batch_size=size,
            on_done=on_done,
        )
        rows: dict[str, Row] = {}
        for start in range(0, len(items), size):
            batch = slice(start, start + size)
            uniforms = pad_sequence([self._uniforms(item, "y") for item in items[batch]], batch_first=True)
            labels = label(self.target, self.draft, prompts[batch], x[batch], uniforms, self.warp)
            for item, rollout, (y, p) in zip(items[batch], x[batch], labels, strict=True):
                rows[item.id] = Row(item.id, item.prompt, item.ids, rollout.tokens, y, p)
        return [rows[item.id] for item in shard]

    def _uniforms(self, item: Item, stream: str) -> Tensor:
        """(T,) numbers, as many as the item's budget, that depend on the seed and the prompt's id alone."""
        digest = hashlib.sha256(f"{self.settings.seed}\0{stream}\0{item.id}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))
        return torch.rand(item.budget, generator=generator)


def make_acceptance_data(settings: AcceptanceData, output: Path, console: Console | None = None) -> Path:
    """Make (or finish) the dataset ``output``; returns it.

    Raises:
        InputError: see :class:`AcceptanceGenerator` and :class:`~specpilot.data_gen.dataset.DatasetWriter`.
    """
    console = console or Console(stderr=True)
    generator = AcceptanceGenerator(settings)
    shards = generator.shards()
    with DatasetWriter(output, generator.identity()) as writer:
        if writer.manifest["complete"]:
            console.print(f"{output}: already complete ({len(generator.items)} rollouts)")
            return output
        done = sum(len(shard) for shard in shards[: writer.finished])
        if done:
            console.print(f"{output}: {done} rollouts are there, going on with the rest")
        columns = (
            TextColumn("rollouts"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("", total=len(generator.items), completed=done, rate="")
            started, tokens = time.perf_counter(), 0

            def count(length: int) -> None:
                nonlocal tokens
                tokens += length
                progress.update(task, advance=1, rate=f"{tokens / (time.perf_counter() - started):,.0f} tokens/s")

            for shard in shards[writer.finished :]:
                writer.write(generator.rows(shard, count))
            writer.complete()
        mean = writer.manifest["mean_acceptance"]
        console.print(f"{output}: {len(generator.items)} rollouts, {tokens} new tokens, mean acceptance {mean:.3f}")
    return output


PROBE_TOKENS = 16


def plan_acceptance_data(settings: AcceptanceData) -> str:
    """What :func:`make_acceptance_data` would do, from one short timed batch; writes nothing."""
    generator = AcceptanceGenerator(settings)
    probe = [
        Item(item.id, item.prompt, item.ids, min(item.budget, PROBE_TOKENS))
        for item in generator.items[: settings.batch_size]
    ]
    started = time.perf_counter()
    rows = generator.rows(probe)
    rate = sum(len(row.x) for row in rows) / (time.perf_counter() - started)
    most = sum(item.budget for item in generator.items)
    prompt_tokens = sum(len(item.ids) for item in generator.items)
    size = (most * 9 + prompt_tokens * 3) / 1e6  # int32 tokens compress to about 2.5 bytes, float32 labels to 4
    return "\n".join(
        [
            f"prompts      {len(generator.items)} from {settings.prompts} ({generator.left_out} left out as too long)",
            f"shards       {len(generator.shards())} of up to {settings.shard_size} rollouts",
            f"tokens       at most {most:,} ({settings.max_new_tokens} a rollout; end tokens come earlier)",
            f"disk         at most about {size:.1f} MB",
            f"time         at most about {most / rate / 60:.1f} minutes at the {rate:,.0f} tokens/s of a short probe",
        ]
    )
