"""Datasets of prompts: encoded prompts, builders of rows, and the functions that make or plan a dataset."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich.console import Console
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..common.console import duration, logger, stderr_console
from ..common.errors import InputError, counted, naming
from ..common.files import MANIFEST
from ..common.record import Identity
from ..controllers.checkpoints.fingerprint import PairFingerprint, model_fingerprint, tokenizer_fingerprint
from ..controllers.sampling import SamplingParams
from ..infer.prompting import day_of, uses_template
from ..infer.random_source import drawn_for
from ..models import LanguageModel, language_model
from ..models.loading.generation_defaults import generation_defaults, model_stop_tokens
from ..models.loading.names import load_any_model, load_tokenizer
from .dataset import ENOUGH, ResponseSource, ShardWriter, check_answered, day_in, rule_identity
from .kinds import Row, Rows
from .options import (
    ONE_PROCESS,
    AcceptanceDataOptions,
    AnswersDataOptions,
    RouterDataOptions,
    WorkerOptions,
)
from .prompts import fingerprint, prompts_of
from .ray_workers import open_workers
from .rollout import Rollout, roll_out
from .rows import name_of
from .workers import Description, OnDone, Workers, ignore, write_shards

R = TypeVar("R", bound=Row)
PROBE_TOKENS = 16
RolloutOptions = AcceptanceDataOptions | AnswersDataOptions | RouterDataOptions


@dataclass(frozen=True)
class Item:
    """An encoded prompt.

    Attributes:
        id: unique name of the prompt.
        prompt: the text.
        ids: the token ids.
        budget: maximum number of new tokens.
        number: index of the prompt in the dataset.
        domain: group of the prompt in reports.
        response: tokens of the target's text; None if the text is not generated yet.
    """

    id: str
    prompt: str
    ids: list[int]
    budget: int
    number: int = 0
    domain: str = "all"
    response: list[int] | None = None


@dataclass(frozen=True)
class EncodedPrompts:
    """The prompts of a dataset.

    Attributes:
        items: the prompts that are used.
        left_out: number of prompts that were too long.
        context: shortest context of the models in tokens; None if it is not limited.
        identity: the part of the dataset's identity that describes prompts and settings.
    """

    items: list[Item]
    left_out: int
    context: int | None
    identity: Identity

    def limits(self, max_new_tokens: int) -> list[str]:
        """Return a list with one message if the context leaves room for fewer than ``max_new_tokens`` tokens.

        The message has the number of prompts for which this holds. The list is empty if there are none.
        """
        return context_limits([item.budget < max_new_tokens for item in self.items], self.context)

    def shards(self, size: int) -> list[list[Item]]:
        """Return the prompts of each shard of ``size`` prompts."""
        return [self.items[i : i + size] for i in range(0, len(self.items), size)]


@dataclass(frozen=True)
class EngineTexts:
    """Texts of the target for all prompts of a dataset that another engine generated.

    Attributes:
        tokens: tokens of each text by prompt id.
        source: the engine and the hash of the texts, for the identity of the dataset.
    """

    tokens: dict[str, list[int]]
    source: ResponseSource


def context_limits(is_limited: Sequence[bool], context: int | None) -> list[str]:
    """Return a list with one message about the texts that the context limits; empty if there are none.

    Args:
        is_limited: for each text whether the context leaves room for fewer than ``max_new_tokens`` tokens.
        context: the context in tokens; None for no limit, so that no text is limited.
    """
    if not any(is_limited):
        return []
    return [
        f"max_new_tokens: the context of {context} tokens leaves room for fewer in {sum(is_limited)} of "
        f"{counted(len(is_limited), 'text')}"
    ]


def encode_prompts(
    settings: RolloutOptions, models: Description, stored_day: str | None = None, texts: EngineTexts | None = None
) -> EncodedPrompts:
    """Load and encode the prompts. The shortest context of the models limits the budgets.

    Args:
        settings: the options of the dataset.
        models: the result of :meth:`DatasetBuilder.describe`.
        stored_day: the date in the chat template, as YYYY-MM-DD, of a dataset that is continued; else None.
        texts: texts of the prompts, which are cut to the budgets; None if the target generates them.

    Raises:
        InputError: there are no prompts, or a prompt fills the context.
    """
    s = settings
    with naming("target", s.target):
        tokenizer = load_tokenizer(s.target, trust_remote_code=s.trust_remote_code)
    prompts = prompts_of(s)
    day = day_of(tokenizer, stored_day)
    context = models.context
    items: list[Item] = []
    left_out = 0
    for prompt in prompts:
        ids = prompt.encode(tokenizer, chat=s.chat, system=s.system, day=day, encoder=models.encoder)
        if s.max_prompt_tokens is not None and len(ids) > s.max_prompt_tokens:
            left_out += 1
            continue
        budget = s.max_new_tokens if context is None else min(s.max_new_tokens, context - len(ids))
        if context is not None and budget < 1:
            raise InputError(
                f"prompt {prompt.id}: {len(ids)} tokens, but the context holds {context}; "
                f"leave such prompts out with --max-prompt-tokens {max(context - s.max_new_tokens, context // 2)}"
            )
        response = None if texts is None else texts.tokens[prompt.id][:budget]
        items.append(Item(prompt.id, prompt.text, ids, budget, len(items), prompt.domain, response))
    if not items:
        raise InputError(f"{name_of(s.prompts)}: no prompt has --max-prompt-tokens tokens or fewer; raise that option")
    identity = {
        "prompts": {
            "source": name_of(s.prompts),
            "split": s.split,
            "count": len(items),
            "left_out": left_out,
            "sha256": fingerprint(prompts),
        },
        **({} if day is None else {"day": day}),
        "settings": {
            "chat": uses_template(tokenizer, s.chat),
            **({} if s.system is None else {"system": s.system}),
            "max_prompt_tokens": s.max_prompt_tokens,
            "max_new_tokens": s.max_new_tokens,
            "batch_size": s.batch_size,
            "shard_size": s.shard_size,
            "dtype": s.dtype,
            "device": models.device,
        },
        **({} if texts is None else {"responses": texts.source.to_dict()}),
    }
    return EncodedPrompts(items, left_out, context, identity)


def pair_identity(
    names: AcceptanceDataOptions, pair: PairFingerprint, target: LanguageModel, draft: LanguageModel
) -> Identity:
    """Return the part of a dataset's identity that describes a pair and its verification rule.

    It includes the vocabulary size to which the distributions of a larger draft are cut.
    """
    cut = {"vocab_size": target.vocab_size} if draft.vocab_size > target.vocab_size else {}
    return {"draft": names.draft, "fingerprint": pair.to_dict(), **cut, **rule_identity(names.verifier)}


class DatasetBuilder(ABC, Generic[R]):
    """Base class: makes the rows of groups of prompts with the models of a dataset.

    Attributes:
        kind: class of the rows.
        settings: the options of the dataset.
        models: all models, the target first; empty if another engine makes the rows.
        texts: number of texts generated for a prompt.
        token_bytes: bytes on disk of a generated token. int32 tokens compress to about 2.5 bytes, float32 labels to 4.
        row_bytes: bytes on disk of a row without prompt and tokens.
    """

    kind: type[R]
    settings: RolloutOptions
    models: list[LanguageModel]
    texts: int = 1
    token_bytes: float = 2.5
    row_bytes: int = 0

    @abstractmethod
    def identity(self) -> Identity:
        """Return all facts about the models that the rows depend on. A resumed run must have the same."""

    @abstractmethod
    def rows(self, items: list[Item], on_done: OnDone) -> list[R]:
        """Return a row for each prompt.

        Args:
            items: the prompts.
            on_done: called with the number of generated tokens of each text, when the text is finished.
        """

    @property
    def sampling(self) -> SamplingParams:
        """The sampling parameters of the texts."""
        return SamplingParams(self.settings.temperature, self.settings.top_k, self.settings.top_p)

    @property
    def device(self) -> str:
        """The type of the device that makes the rows."""
        return str(self.models[0].device.type)

    def make(self, unit: list[Item], on_done: OnDone = ignore) -> Rows[R]:
        """Return the shard of the prompts ``unit``.

        Prompts of similar lengths are decoded together, to save padding.
        """
        items = sorted(unit, key=lambda item: (len(item.ids), item.id))
        rows = dict(zip([item.id for item in items], self.rows(items, on_done), strict=True))
        return Rows([rows[item.id] for item in unit])

    def check_answers(self, answers: list[list[int]], stop_tokens: frozenset[int]) -> None:
        """Raise InputError if all of at least ``ENOUGH`` answers consist of ``stop_tokens``."""
        if len(answers) >= ENOUGH and all(stop_tokens.issuperset(answer) for answer in answers):
            raise InputError(
                f"target={self.settings.target!r}: the answers to {len(answers)} prompts are all empty; give "
                "prompts in the form that the model was trained with, by --chat or --no-chat"
            )

    def describe(self) -> Description:
        """Return the facts about the models that planning needs."""
        identity = {
            "kind": self.kind.kind,
            "target": self.settings.target,
            **self.identity(),
            "sampling": self.sampling.to_dict(),
            "seed": self.settings.seed,
        }
        context = min((m.context for m in self.models if m.context is not None), default=None)
        return Description(identity, self.device, context, encoder=any(m.encodes_prompts for m in self.models))

    @cached_property
    def prompts(self) -> EncodedPrompts:
        """All prompts of the dataset, encoded."""
        return encode_prompts(self.settings, self.describe())

    def uniforms(self, item: Item, stream: str) -> Tensor:
        """Return uniform numbers (T,), one for each token of the budget. Only the seed and the id determine them."""
        return drawn_for(self.settings.seed, stream, item.id, count=item.budget)


class TargetBuilder(DatasetBuilder[R]):
    """A builder whose target answers the prompts.

    Raises:
        InputError: the target is missing.
    """

    decoder_only = True  # an encoder-decoder is refused as the target

    def __init__(self, settings: RolloutOptions) -> None:
        self.settings = settings
        with naming("target", settings.target):
            model = load_any_model(
                settings.target, **settings.loading, **settings.placement, decoder_only=self.decoder_only
            )
        with suppress(InputError):  # decoding may refuse settings of the model
            followed = generation_defaults(model).sampling_params()
            if followed != self.sampling:
                logger.info(
                    f"{settings.target}: its generation_config has {followed}, but this data is sampled with "
                    f"{self.sampling}"
                )
        self.fingerprint = {"target": model_fingerprint(model), "tokenizer": tokenizer_fingerprint(self.tokenizer)}
        self.stop_tokens = model_stop_tokens(model, self.tokenizer)
        self.target = language_model(model)
        self.models = [self.target]
        self.roll_out = partial(roll_out, stop_tokens=self.stop_tokens, batch_size=settings.batch_size)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the target."""
        with naming("target", self.settings.target):
            return load_tokenizer(self.settings.target, trust_remote_code=self.settings.trust_remote_code)

    def answers(self, items: list[Item], on_done: OnDone = ignore) -> list[Rollout]:
        """Return the target's answers, sampled with the sampling parameters.

        Raises:
            InputError: all answers are empty.
        """
        uniforms = [self.uniforms(item, "x") for item in items]
        rollouts = self.roll_out(self.target, [item.ids for item in items], uniforms, self.sampling, on_done=on_done)
        self.check_answers([rollout.tokens for rollout in rollouts], self.stop_tokens)
        return rollouts


def make_dataset(
    builder: Callable[[Any], DatasetBuilder[R]],
    settings: RolloutOptions,
    output: str | Path,
    *,
    console: Console | None = None,
    workers: WorkerOptions = ONE_PROCESS,
    texts: EngineTexts | None = None,
    stored_day: str | None = None,
    prepare: Callable[[Workers[list[Item], Rows[R]], list[Item]], None] | None = None,
) -> Path:
    """Make or complete the dataset ``output``, and return its path.

    Args:
        builder: loads the models of ``settings``; called in each worker's process.
        settings: the options of the dataset.
        output: folder of the dataset.
        console: shows the progress. By default, standard error.
        workers: workers on a Ray cluster. By default, this process.
        texts: texts of another engine; None if the target generates them.
        stored_day: date for the chat template, as YYYY-MM-DD. By default, the date in the manifest, or today.
        prepare: called with the workers and the prompts before the first shard is made, while the folder is locked.

    Raises:
        InputError: a model cannot be loaded, or all answers are empty; also as :func:`encode_prompts`,
            :func:`~.ray_workers.open_workers` and :class:`~.dataset.ShardWriter`.
    """
    console, output = console or stderr_console(), Path(output)
    with open_workers(partial(builder, settings), workers, settings.device, console) as group:
        prompts = encode_prompts(settings, group.description, stored_day or day_in(output / MANIFEST), texts)
        shards = prompts.shards(settings.shard_size)
        with ShardWriter(output, {**group.description.identity, **prompts.identity}) as writer:
            if prepare is not None:
                prepare(group, prompts.items)
            is_new = write_shards(writer, [*map(len, shards)], shards.__getitem__, group.make_all, console)
            check_answered(output, writer.manifest)  # a shard may have only a few prompts
            mean = writer.manifest.mean_acceptance
            if is_new and mean is not None:
                console.print(f"{output}: mean acceptance {mean:.3f}")
        for line in prompts.limits(settings.max_new_tokens):  # at the end, because an error is a single line
            console.print(f"{output}: {line}", soft_wrap=True)
    return output


def plan(builder: DatasetBuilder[R], workers: WorkerOptions = ONE_PROCESS) -> str:
    """Return a description of the work, with its duration by a short batch that is decoded. Writes nothing."""
    settings, prompts = builder.settings, builder.prompts
    items = prompts.items
    probe = [replace(item, budget=min(item.budget, PROBE_TOKENS)) for item in items[: settings.batch_size]]
    tokens: list[int] = []
    started = time.perf_counter()
    builder.make(probe, tokens.append)
    rate = max(1, sum(tokens)) / (time.perf_counter() - started)
    per_prompt, most = builder.texts * settings.max_new_tokens, builder.texts * sum(item.budget for item in items)
    size = most * builder.token_bytes + sum(len(item.ids) for item in items) * 3 + len(items) * builder.row_bytes
    shards = prompts.shards(settings.shard_size)
    worker_count = min(workers.workers or 1, len(shards))
    shared = f", shared by {worker_count} workers" if worker_count > 1 else ""
    return "\n".join(
        [
            f"prompts      {len(items)} from {name_of(settings.prompts)} ({prompts.left_out} left out as too long)",
            f"shards       {len(shards)} of up to {settings.shard_size} rollouts",
            f"tokens       at most {most:,} ({per_prompt} per prompt, fewer after an end token)",
            *(f"             {line}" for line in prompts.limits(settings.max_new_tokens)),
            f"disk         at most about {size / 1e6:.1f} MB",
            f"time         at most about {duration(most / rate / worker_count)} by a probe's {rate:,.0f} tokens/s"
            f"{shared}",
        ]
    )
