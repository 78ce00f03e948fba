"""Texts of the target from another engine: shards of their own, which our forwards label to make acceptance data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from ..common.json_file import build
from .builder import DatasetBuilder, GivenTexts, Item, make_dataset
from .dataset import read_manifest, whole_manifest
from .kinds import ResponseRow, read_dataset
from .options import ONE_PROCESS, AcceptanceDataOptions, ResponseOptions, WorkerOptions

UNCHECKED = (  # of a server
    "; not checked: that the engine ran this target, in which precision, and that it sampled with these parameters"
)


class ResponseMaker(DatasetBuilder[ResponseRow]):
    """Asks another engine for texts; there is no model in it.

    Attributes:
        source: engine and settings that the texts depend on; ``source`` names the engine.
    """

    kind = ResponseRow
    settings: AcceptanceDataOptions
    source: dict[str, Any]

    def __init__(self, settings: AcceptanceDataOptions, responses: ResponseOptions) -> None:
        self.settings, self.responses, self.models = settings, responses, []

    @property
    def device(self) -> str:
        return str(self.source["source"])

    def identity(self) -> dict[str, Any]:
        return {"draft": None, "fingerprint": {}, "responses": self.source}

    def seed_of(self, item: Item) -> int:
        """The seed of a prompt's text, 31 bits."""
        digest = hashlib.sha256(f"{self.settings.seed}\0{item.id}".encode()).digest()
        return int.from_bytes(digest[:4]) >> 1


def make_responses(
    settings: AcceptanceDataOptions, responses: ResponseOptions, folder: Path, console: Console, workers: WorkerOptions
) -> GivenTexts:
    """Make or complete the texts of the target in ``folder``.

    Raises:
        InputError: the engine gives no texts, or ``folder`` belongs to another run.
    """
    new_maker, group_options = maker_of(settings, responses, folder, workers)
    make_dataset(new_maker, settings, folder, console, group_options)
    manifest = read_manifest(folder)
    again, other = (sum(shard[name] for shard in manifest["shards"]) for name in ("tokenised_again", "of_other_length"))
    tokens = {row.prompt_id: row.tokens for row in read_dataset(folder, ResponseRow)}
    console.print(
        f"{folder}: {again} of {len(tokens)} texts were tokenised again, {other} into another number of tokens"
        f"{UNCHECKED if responses.responses == 'openai' else ''}",
        soft_wrap=True,
    )
    return GivenTexts(tokens, manifest["responses"] | {"sha256": manifest["dataset_fingerprint"]})


def maker_of(
    settings: AcceptanceDataOptions, responses: ResponseOptions, folder: Path, workers: WorkerOptions
) -> tuple[Callable[[], ResponseMaker], WorkerOptions]:
    """What makes the texts, and where: a server is asked by this process, and complete texts need no engine."""
    if responses.responses == "openai":
        from .openai_responses import OpenAIResponses

        return partial(OpenAIResponses, settings, responses), ONE_PROCESS
    from .vllm_responses import VllmResponses

    made = whole_manifest(folder, {})
    source = {} if made is None else build(dict[str, Any], made.get("responses", {}), "responses")
    version = None if "version" not in source else str(source["version"])
    return partial(VllmResponses, settings, responses, version), workers if version is None else ONE_PROCESS
