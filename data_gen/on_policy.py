"""``specpilot data on-policy``: logs the decoder's rounds: drafted tokens and their acceptance probabilities.

In decoding, a controller sees drafted tokens of its own rounds, whose distribution differs from that of drafted tokens
at all positions of a text. Training on logged rounds removes this difference (DAgger, Ross et al. 2011); training and
logging can be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from ..controllers.checkpoints.fingerprint import PairFingerprint
from ..controllers.length.cost_model import CostModel
from ..controllers.sampling import SamplingParams
from ..infer.decoder import SpeculativeDecoder
from ..infer.generation import Generation
from ..infer.loading.controllers import length_digest
from ..infer.random_source import sample_seed
from .builder import DatasetBuilder, Item, write_shards
from .dataset import SCHEMA_VERSION, ParquetWriter, read_shards
from .options import OnPolicyDataOptions
from .workers import OnDone, ThisProcess, ignore


@dataclass(frozen=True)
class RoundsRow:
    """One generation with its rounds; each draft is stored up to its first rejected token.

    Attributes:
        x: the generated tokens.
        starts: number of tokens of ``x`` before each round's draft.
        drafted: drafted tokens up to the first rejected one, a list per round.
        accept: min(1, p(y)/q(y)) of each drafted token.
    """

    prompt_id: str
    prompt: str
    prompt_ids: list[int]
    x: list[int]
    starts: list[int]
    drafted: list[list[int]]
    accept: list[list[float]]


class RoundsWriter(ParquetWriter[RoundsRow]):
    """Writes a dataset of rounds."""

    schema = pa.schema(
        [
            ("prompt_id", pa.string()),
            ("prompt", pa.string()),
            ("prompt_ids", pa.list_(pa.int32())),
            ("x", pa.list_(pa.int32())),
            ("starts", pa.list_(pa.int32())),
            ("drafted", pa.list_(pa.list_(pa.int32()))),
            ("accept", pa.list_(pa.list_(pa.float32()))),
        ]
    )

    def sums(self, rows: list[RoundsRow]) -> dict[str, Any]:
        return {
            "tokens": sum(len(row.x) for row in rows),
            "drafted": sum(len(draft) for row in rows for draft in row.drafted),
            "acceptance_sum": float(sum(sum(draft) for row in rows for draft in row.accept)),
        }

    def outcome(self, shards: list[dict[str, Any]]) -> dict[str, Any]:
        drafted = sum(shard["drafted"] for shard in shards)
        return {"mean_acceptance": sum(shard["acceptance_sum"] for shard in shards) / max(1, drafted)}


class OnPolicyDatasetBuilder(DatasetBuilder[RoundsRow]):
    """Decoder, prompts and settings of one dataset of rounds.

    Raises:
        InputError: a model, the controller or the prompts are missing or do not fit, or a prompt fills the context.
    """

    settings: OnPolicyDataOptions

    def __init__(self, settings: OnPolicyDataOptions) -> None:
        self.settings = settings
        cost = None if settings.cost is None else str(settings.cost)
        self.decoder = SpeculativeDecoder.from_pretrained(
            settings.target, settings.draft, length=settings.length, threshold=settings.threshold, cost=cost,
            dtype=settings.dtype, device=settings.device, trust_remote_code=settings.trust_remote_code,
            **settings.placement,
        )  # fmt: skip
        (draft,) = self.decoder.drafts
        tokenizer = self.decoder.tokenizer
        assert tokenizer is not None, "decoder was not loaded by name"
        self.pair = PairFingerprint.of(self.decoder.target.model, draft.model, tokenizer)
        self.models = [self.decoder.target, draft]
        self.places = {item.id: place for place, item in enumerate(self.prompts.items)}

    def identity(self) -> dict[str, Any]:
        s = self.settings
        controller = length_digest(s.length)
        target, (draft,) = self.decoder.target, self.decoder.drafts
        return {
            "kind": "rounds",
            "schema_version": SCHEMA_VERSION,
            "code_version": version("specpilot"),
            "target": s.target,
            "draft": s.draft,
            "fingerprint": self.pair.as_dict(),
            "sampling": SamplingParams(s.temperature, s.top_k, s.top_p).as_dict(),
            "seed": s.seed,
            "length": s.length,
            "threshold": s.threshold,
            "cost": cost_identity(s.cost),
            # The digest: a controller retrained in the same folder drafts differently.
            **({} if controller is None else {"controller": controller}),
            # The target's vocabulary size, if the draft's is larger and was cut to it.
            **({"vocab_size": target.vocab_size} if draft.vocab_size > target.vocab_size else {}),
        }

    def make(self, unit: list[Item], on_done: OnDone = ignore) -> list[RoundsRow]:
        settings = self.settings
        rows: list[RoundsRow] = []
        for start in range(0, len(unit), settings.batch_size):
            items = unit[start : start + settings.batch_size]
            generations = self.decoder.generate(
                [item.ids for item in items],
                max_new_tokens=settings.max_new_tokens,
                temperature=settings.temperature,
                top_k=settings.top_k,
                top_p=settings.top_p,
                seed=[sample_seed(settings.seed, self.places[item.id]) for item in items],
            )
            for item, generation in zip(items, generations, strict=True):
                rows.append(as_row(item, generation))
                on_done(len(generation.tokens))
        return rows


def cost_identity(cost: str | float | None) -> str | dict[str, float] | None:
    """The seconds of ``cost``, independent of the file's name, or ``"auto"`` if it is measured."""
    return cost if cost in (None, "auto") else CostModel.load(cost).as_dict()


def as_row(item: Item, generation: Generation) -> RoundsRow:
    """The rounds of one generation under token-wise verification."""
    starts: list[int] = []
    drafted: list[list[int]] = []
    accept: list[list[float]] = []
    said = 0
    for round in generation.rounds:
        if round.drafted:
            verified = round.accepted + 1  # up to the first rejected token, or all tokens if none is rejected
            starts.append(said)
            drafted.append(round.drafted[:verified])
            accept.append([min(1.0, ratio) for ratio in round.ratios[:verified]])
        said += len(round.emitted)
    return RoundsRow(item.id, item.prompt, item.ids, generation.tokens, starts, drafted, accept)


def make_on_policy_data(settings: OnPolicyDataOptions, output: Path, console: Console | None = None) -> Path:
    """Make or complete the dataset ``output``, and return its path.

    Raises:
        InputError: see :class:`OnPolicyDatasetBuilder` and :class:`~specpilot.data_gen.dataset.ShardWriter`.
    """
    console = console or Console(stderr=True)
    builder = OnPolicyDatasetBuilder(settings)
    prompts = builder.prompts
    with RoundsWriter(output, builder.identity() | prompts.identity) as writer:
        if write_shards(writer, prompts.shards(settings.shard_size), ThisProcess(builder), console):
            mean = writer.manifest["mean_acceptance"]
            console.print(f"{output}: mean acceptance of drafted tokens {mean:.3f}")
    return output


def read_rounds(folder: str | Path) -> list[RoundsRow]:
    """All rows of a dataset of rounds; shards are checked against the manifest's hashes.

    Raises:
        InputError: a shard is missing or does not match the manifest.
    """
    return [RoundsRow(**row) for row in read_shards(folder)]
