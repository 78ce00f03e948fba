"""``specpilot data acceptance``: prompts → rollouts of the target → acceptance labels → shards (SpecDec++ §3.3)."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from torch.nn.utils.rnn import pad_sequence

from ..controllers.checkpoints.fingerprint import PairFingerprint
from ..controllers.sampling import SamplingParams
from ..infer.generation_defaults import stop_tokens_of
from ..infer.loading import check_same_tokenizer, load_any_model, load_tokenizer
from ..infer.models import language_model
from ..options import AcceptanceDataOptions
from .builder import DatasetBuilder, Item, write_shards
from .dataset import SCHEMA_VERSION, DatasetWriter, Row
from .labels import label
from .rollout import roll_out


class AcceptanceDatasetBuilder(DatasetBuilder[Row]):
    """Models, prompts and settings of one dataset; turns groups of prompts into rows.

    Raises:
        InputError: a model or prompt source is missing, the pair does not fit, or a prompt fills the context.
    """

    settings: AcceptanceDataOptions

    def __init__(self, settings: AcceptanceDataOptions) -> None:
        self.settings = settings
        self.sampling = SamplingParams(settings.temperature, settings.top_k, settings.top_p)
        trust = settings.trust_remote_code
        tokenizer = load_tokenizer(settings.target, trust_remote_code=trust)
        check_same_tokenizer(tokenizer, load_tokenizer(settings.draft, trust_remote_code=trust))
        target, draft = (
            load_any_model(
                name, dtype=settings.dtype, device=settings.device, trust_remote_code=trust, decoder_only=True
            )
            for name in (settings.target, settings.draft)
        )
        self.pair = PairFingerprint.of(target, draft, tokenizer)
        self.stop_tokens = stop_tokens_of(target, tokenizer)
        self.target, self.draft = language_model(target), language_model(draft)
        self.prepare(tokenizer, [self.target, self.draft])

    def identity(self) -> dict[str, Any]:
        """Everything the rows depend on; a resumed run must have the same."""
        s = self.settings
        return {
            "kind": "acceptance",
            "schema_version": SCHEMA_VERSION,
            "code_version": version("specpilot"),
            "target": s.target,
            "draft": s.draft,
            "fingerprint": self.pair.as_dict(),
            "sampling": self.sampling.as_dict(),
            "seed": s.seed,
            # The target's vocabulary size, if the draft's is larger and was cut to it.
            **({"vocab_size": self.target.vocab_size} if self.draft.vocab_size > self.target.vocab_size else {}),
            **self.prompt_identity(self.target.device),
        }

    def rows(self, shard: list[Item], on_done: Callable[[int], None] = lambda tokens: None) -> list[Row]:
        """Generate and label a shard's rollouts; ``on_done`` is called with the length of each finished rollout."""
        size = self.settings.batch_size
        items = sorted(shard, key=lambda item: (len(item.ids), item.id))  # similar lengths together need little padding
        prompts = [item.ids for item in items]
        x = roll_out(
            self.target,
            prompts,
            [self.uniforms(item, "x") for item in items],
            self.sampling,
            self.stop_tokens,
            batch_size=size,
            on_done=on_done,
        )
        rows: dict[str, Row] = {}
        for start in range(0, len(items), size):
            batch = slice(start, start + size)
            uniforms = pad_sequence([self.uniforms(item, "y") for item in items[batch]], batch_first=True)
            labels = label(self.target, self.draft, prompts[batch], x[batch], uniforms, self.sampling)
            for item, rollout, (y, p) in zip(items[batch], x[batch], labels, strict=True):
                rows[item.id] = Row(item.id, item.prompt, item.ids, rollout.tokens[: len(y)], y, p)
        return [rows[item.id] for item in shard]


def make_acceptance_data(settings: AcceptanceDataOptions, output: Path, console: Console | None = None) -> Path:
    """Make or complete the dataset ``output``, and return its path.

    Raises:
        InputError: see :class:`AcceptanceDatasetBuilder` and :class:`~specpilot.data_gen.dataset.DatasetWriter`.
    """
    console = console or Console(stderr=True)
    generator = AcceptanceDatasetBuilder(settings)
    with DatasetWriter(output, generator.identity()) as writer:
        if write_shards(writer, generator, console):
            console.print(f"{output}: mean acceptance {writer.manifest['mean_acceptance']:.3f}")
    return output


PROBE_TOKENS = 16


def plan_acceptance_data(settings: AcceptanceDataOptions) -> str:
    """Describe the work of :func:`make_acceptance_data`, timed on one short batch; writes nothing."""
    generator = AcceptanceDatasetBuilder(settings)
    probe = [
        Item(item.id, item.prompt, item.ids, min(item.budget, PROBE_TOKENS))
        for item in generator.items[: settings.batch_size]
    ]
    started = time.perf_counter()
    rows = generator.rows(probe)
    rate = max(1, sum(len(row.x) for row in rows)) / (time.perf_counter() - started)
    most = sum(item.budget for item in generator.items)
    prompt_tokens = sum(len(item.ids) for item in generator.items)
    size = (most * 9 + prompt_tokens * 3) / 1e6  # int32 tokens compress to about 2.5 bytes, float32 labels to 4
    return "\n".join(
        [
            f"prompts      {len(generator.items)} from {settings.prompts} ({generator.left_out} left out as too long)",
            f"shards       {len(generator.shards())} of up to {settings.shard_size} rollouts",
            f"tokens       at most {most:,} ({settings.max_new_tokens} per rollout, fewer after an end token)",
            f"disk         at most about {size:.1f} MB",
            f"time         at most about {most / rate / 60:.1f} minutes at the {rate:,.0f} tokens/s of a short probe",
        ]
    )
