"""``specpilot data answers``: the target's own answers to prompts, to train a draft on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from ..controllers.checkpoints.fingerprint import model_fingerprint, tokenizer_fingerprint
from ..controllers.sampling import SamplingParams
from ..infer.loading.generation_defaults import stop_tokens_of
from ..infer.loading.names import load_any_model, load_tokenizer
from ..infer.models import language_model
from .builder import DatasetBuilder, Item, encode_prompts, plan, write_shards
from .dataset import SCHEMA, SCHEMA_VERSION, ParquetWriter
from .options import ONE_PROCESS, AnswersDataOptions, WorkerOptions
from .rollout import roll_out
from .workers import OnDone, ignore, open_workers

COLUMNS = ("prompt_id", "prompt", "prompt_ids", "x")


@dataclass(frozen=True)
class Answer:
    """One answer ``x``, including the end token if it was reached."""

    prompt_id: str
    prompt: str
    prompt_ids: list[int]
    x: list[int]


class AnswersWriter(ParquetWriter[Answer]):
    """Writes a dataset of answers."""

    schema = pa.schema([SCHEMA.field(name) for name in COLUMNS])

    def sums(self, rows: list[Answer]) -> dict[str, Any]:
        return {"tokens": sum(len(row.x) for row in rows)}


class AnswersBuilder(DatasetBuilder[Answer]):
    """The target and the settings of one dataset.

    Raises:
        InputError: the target is missing.
    """

    settings: AnswersDataOptions

    def __init__(self, settings: AnswersDataOptions) -> None:
        self.settings = settings
        self.sampling = SamplingParams(settings.temperature, settings.top_k, settings.top_p)
        trust = settings.trust_remote_code
        tokenizer = load_tokenizer(settings.target, trust_remote_code=trust)
        model = load_any_model(
            settings.target, dtype=settings.dtype, device=settings.device, trust_remote_code=trust, decoder_only=True,
            **settings.placement,
        )  # fmt: skip
        self.fingerprint = {"target": model_fingerprint(model), "tokenizer": tokenizer_fingerprint(tokenizer)}
        self.stop_tokens = stop_tokens_of(model, tokenizer)
        self.models = [language_model(model)]

    def identity(self) -> dict[str, Any]:
        return {
            "kind": "answers",
            "schema_version": SCHEMA_VERSION,
            "code_version": version("specpilot"),
            "target": self.settings.target,
            "draft": None,
            "fingerprint": self.fingerprint,
            "sampling": self.sampling.as_dict(),
            "seed": self.settings.seed,
        }

    def make(self, unit: list[Item], on_done: OnDone = ignore) -> list[Answer]:
        items = sorted(unit, key=lambda item: (len(item.ids), item.id))  # similar lengths together need little padding
        found = roll_out(
            self.models[0],
            [item.ids for item in items],
            [self.uniforms(item, "x") for item in items],
            self.sampling,
            self.stop_tokens,
            batch_size=self.settings.batch_size,
            on_done=on_done,
        )
        answers = {item.id: rollout.tokens for item, rollout in zip(items, found, strict=True)}
        return [Answer(item.id, item.prompt, item.ids, answers[item.id]) for item in unit]


def make_answers(
    settings: AnswersDataOptions, output: Path, console: Console | None = None, workers: WorkerOptions = ONE_PROCESS
) -> Path:
    """Make or complete the dataset ``output``, and return its path.

    Raises:
        InputError: see :func:`~specpilot.data_gen.acceptance.make_acceptance_data`.
    """
    console = console or Console(stderr=True)
    with open_workers(partial(AnswersBuilder, settings), workers, settings.device, console) as group:
        prompts = encode_prompts(settings, group.description)
        with AnswersWriter(output, group.description["identity"] | prompts.identity) as writer:
            write_shards(writer, prompts.shards(settings.shard_size), group, console)
    return output


def plan_answers(settings: AnswersDataOptions, workers: WorkerOptions = ONE_PROCESS) -> str:
    """Describe the work of :func:`make_answers`, timed on one short batch; writes nothing."""
    return plan(AnswersBuilder(settings), workers, token_bytes=2.5)
