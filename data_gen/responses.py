"""Texts of the target from another engine: shards of their own, which our forwards label to make acceptance data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from ..common.json_file import build
from ..controllers.sampling import SamplingParams
from .builder import EncodedPrompts, Item, encode_prompts, write_shards
from .dataset import MANIFEST, SCHEMA_VERSION, ParquetWriter, damaged_shards, read_manifest, read_shards
from .options import ONE_PROCESS, AcceptanceDataOptions, ResponseOptions, WorkerOptions
from .workers import ShardMaker, open_workers

UNCHECKED = (  # of a server
    "; not checked: that the engine ran this target, in which precision, and that it sampled with these parameters"
)


@dataclass(frozen=True)
class ResponseRow:
    """One text.

    Attributes:
        tokens: its tokens, including the end token if it was reached.
        finish_reason: ``stop`` or ``length``.
        reported: number of tokens that the engine reported.
        exact: whether the engine returned ``tokens``; otherwise they are those of ``text``, tokenised again.
    """

    prompt_id: str
    text: str
    tokens: list[int]
    finish_reason: str
    reported: int
    exact: bool


class ResponseWriter(ParquetWriter[ResponseRow]):
    """Writes a dataset of texts."""

    schema = pa.schema(
        [
            ("prompt_id", pa.string()),
            ("text", pa.string()),
            ("tokens", pa.list_(pa.int32())),
            ("finish_reason", pa.string()),
            ("reported", pa.int32()),
            ("exact", pa.bool_()),
        ]
    )

    def sums(self, rows: list[ResponseRow]) -> dict[str, Any]:
        return {
            "tokens": sum(len(row.tokens) for row in rows),
            "tokenised_again": sum(not row.exact for row in rows),
            "of_other_length": sum(len(row.tokens) != row.reported for row in rows),
        }


@dataclass(frozen=True)
class Responses:
    """A complete dataset of texts.

    Attributes:
        tokens: prompt id → tokens.
        source: the engine and the dataset's hash, for the identity of the labelled data.
    """

    tokens: dict[str, list[int]]
    source: dict[str, Any]

    def add_to(self, prompts: EncodedPrompts) -> EncodedPrompts:
        """``prompts`` with their texts, which are cut to their budgets."""
        items = [replace(item, response=self.tokens[item.id][: item.budget]) for item in prompts.items]
        return replace(prompts, items=items)


def make_responses(
    settings: AcceptanceDataOptions, responses: ResponseOptions, folder: Path, console: Console, workers: WorkerOptions
) -> Responses:
    """Make or complete the texts of the target in ``folder``.

    Raises:
        InputError: the engine gives no texts, or ``folder`` belongs to another run.
    """
    new_maker, group_options = maker_of(settings, responses, folder, workers)
    with open_workers(new_maker, group_options, settings.device, console) as group:
        prompts, source = encode_prompts(settings, group.description), group.description["identity"]
        identity = {
            "kind": "responses",
            "schema_version": SCHEMA_VERSION,
            "code_version": version("specpilot"),
            "target": settings.target,
            "draft": None,
            "fingerprint": {},
            "sampling": SamplingParams(settings.temperature, settings.top_k, settings.top_p).as_dict(),
            "seed": settings.seed,
            "responses": source,
            **prompts.identity,
        }
        with ResponseWriter(folder, identity) as writer:
            write_shards(writer, prompts.shards(settings.shard_size), group, console)
    manifest = read_manifest(folder)
    again, other = (sum(shard[name] for shard in manifest["shards"]) for name in ("tokenised_again", "of_other_length"))
    console.print(
        f"{folder}: {again} of {len(prompts.items)} texts were tokenised again, {other} into another number of tokens"
        f"{UNCHECKED if responses.responses == 'openai' else ''}",
        soft_wrap=True,
    )
    tokens = {row["prompt_id"]: row["tokens"] for row in read_shards(folder)}
    return Responses(tokens, source | {"sha256": manifest["dataset_fingerprint"]})


def maker_of(
    settings: AcceptanceDataOptions, responses: ResponseOptions, folder: Path, workers: WorkerOptions
) -> tuple[Callable[[], ShardMaker[list[Item], list[ResponseRow]]], WorkerOptions]:
    """What makes the texts, and where: a server is asked by this process, and complete texts need no engine."""
    if responses.responses == "openai":
        from .openai_responses import OpenAIResponses

        return partial(OpenAIResponses, settings, responses), ONE_PROCESS
    from .vllm_responses import VllmResponses

    version = version_of_complete(folder)
    return partial(VllmResponses, settings, responses, version), workers if version is None else ONE_PROCESS


def version_of_complete(folder: Path) -> str | None:
    """The version of vLLM that made the texts in ``folder``, if they are complete and undamaged."""
    if not (folder / MANIFEST).is_file():
        return None
    manifest = read_manifest(folder)
    if not manifest["complete"] or damaged_shards(folder, manifest):
        return None
    source = build(dict[str, Any], manifest.get("responses", {}), "responses")
    return None if "version" not in source else str(source["version"])


def seed_of(seed: int, item: Item) -> int:
    """The seed of a prompt's text, 31 bits."""
    return int.from_bytes(hashlib.sha256(f"{seed}\0{item.id}".encode()).digest()[:4]) >> 1
