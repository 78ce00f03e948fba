"""``specpilot data acceptance``: prompts → rollouts of the target → acceptance labels → shards (SpecDec++ §3.3)."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from torch.nn.utils.rnn import pad_sequence

from ..controllers.checkpoints.fingerprint import PairFingerprint
from ..controllers.sampling import SamplingParams
from ..infer.loading.generation_defaults import stop_tokens_of
from ..infer.loading.names import check_same_tokenizer, load_any_model, load_tokenizer
from ..infer.models import language_model
from .builder import DatasetBuilder, Item, encode_prompts, plan, write_shards
from .dataset import SCHEMA_VERSION, DatasetWriter, Row
from .labels import label
from .options import ONE_PROCESS, OWN_RESPONSES, AcceptanceDataOptions, ResponseOptions, WorkerOptions
from .responses import make_responses
from .rollout import Rollout, roll_out
from .workers import OnDone, ignore, open_workers


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
        loading: dict[str, Any] = {
            "dtype": settings.dtype, "device": settings.device, "trust_remote_code": trust, "decoder_only": True
        }  # fmt: skip
        target = load_any_model(settings.target, **loading, **settings.placement)
        draft = load_any_model(settings.draft, target=target, **loading)
        self.pair = PairFingerprint.of(target, draft, tokenizer)
        self.stop_tokens = stop_tokens_of(target, tokenizer)
        self.models = [language_model(target), language_model(draft)]
        self.target, self.draft = self.models
        self.draft.require_tokens_alone("data acceptance")

    def identity(self) -> dict[str, Any]:
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
        }

    def make(self, unit: list[Item], on_done: OnDone = ignore) -> list[Row]:
        """Generate (where no text is given) and label a shard's rollouts.

        ``on_done`` is called with the length of each finished rollout.
        """
        size = self.settings.batch_size
        items = sorted(unit, key=lambda item: (len(item.ids), item.id))  # similar lengths together need little padding
        prompts = [item.ids for item in items]
        x = [Rollout(item.response, None, None) for item in items if item.response is not None]
        for rollout in x:
            on_done(len(rollout.tokens))
        if not x:
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
        return [rows[item.id] for item in unit]


def make_acceptance_data(
    settings: AcceptanceDataOptions,
    output: Path,
    console: Console | None = None,
    workers: WorkerOptions = ONE_PROCESS,
    responses: ResponseOptions = OWN_RESPONSES,
) -> Path:
    """Make or complete the dataset ``output``, and return its path.

    Texts of another engine are kept in a dataset of their own beside it, ``<output>-responses``.

    Raises:
        InputError: see :class:`AcceptanceDatasetBuilder`, :func:`~specpilot.data_gen.builder.encode_prompts`,
            :func:`~specpilot.data_gen.workers.open_workers`, :func:`~specpilot.data_gen.responses.make_responses` and
            :class:`~specpilot.data_gen.dataset.ShardWriter`.
    """
    console = console or Console(stderr=True)
    given = None
    if responses.responses is not None:
        given = make_responses(settings, responses, output.with_name(f"{output.name}-responses"), console, workers)
    with open_workers(partial(AcceptanceDatasetBuilder, settings), workers, settings.device, console) as group:
        prompts, identity = encode_prompts(settings, group.description), group.description["identity"]
        if given is not None:
            prompts, identity = given.add_to(prompts), identity | {"responses": given.source}
        with DatasetWriter(output, identity | prompts.identity) as writer:
            if write_shards(writer, prompts.shards(settings.shard_size), group, console):
                console.print(f"{output}: mean acceptance {writer.manifest['mean_acceptance']:.3f}")
    return output


def plan_acceptance_data(settings: AcceptanceDataOptions, workers: WorkerOptions = ONE_PROCESS) -> str:
    """Describe the work of :func:`make_acceptance_data`, timed on one short batch; writes nothing."""
    builder = AcceptanceDatasetBuilder(settings)
    return plan(builder, workers, token_bytes=9)  # int32 tokens compress to about 2.5 bytes, float32 labels to 4
