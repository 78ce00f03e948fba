"""Held-out prompts by domain, and traces of the target's outputs for them.

An output is generated and traced once (:mod:`specpilot.simulate.trace`). Any number of controllers are then replayed
over it with the same random draws; the counters equal those of decoding with the controller.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch

from ..common.errors import InputError
from ..controllers.checkpoints.fingerprint import PairFingerprint
from ..controllers.sampling import SamplingParams
from ..data_gen.labels import can_read
from ..data_gen.prompts import PromptRow, load_prompts
from ..data_gen.rollout import roll_out
from ..infer.decoder import SpeculativeDecoder
from ..infer.prompting import encode_prompt
from ..infer.random_source import RandomSource
from ..simulate.trace import Trace, trace
from ..simulate.trace_shards import traceable
from .options import HeldOutOptions

BATCH = 20  # prompts rolled out and stored together


@dataclass(frozen=True)
class PromptBatch:
    """Prompts of one domain, rolled out together."""

    domain: str
    prompts: tuple[PromptRow, ...]

    @property
    def identity(self) -> dict[str, Any]:
        """The properties of the prompts that outputs depend on."""
        digest = hashlib.sha256("\0".join(row.prompt for row in self.prompts).encode()).hexdigest()
        return {"prompts": [row.id for row in self.prompts], "texts": digest}


def held_out(options: HeldOutOptions) -> list[PromptBatch]:
    """The first ``per_domain`` prompts of each domain, in batches.

    Raises:
        InputError: a domain has fewer.
    """
    most = options.per_domain
    by_domain: dict[str, list[PromptRow]] = {}
    for row in load_prompts(options.prompts, column=options.column, split=options.split, domains=options.domains):
        by_domain.setdefault(row.domain, []).append(row)
    for domain, rows in by_domain.items():
        if len(rows) < most:
            raise InputError(
                f"per_domain={most}: {options.prompts} has {len(rows)} prompts of {domain!r}; take fewer of each domain"
            )
    return [
        PromptBatch(domain, tuple(rows[start : min(start + BATCH, most)]))
        for domain, rows in sorted(by_domain.items())
        for start in range(0, most, BATCH)
    ]


def in_domain(options: HeldOutOptions, batches: Sequence[PromptBatch]) -> tuple[str, ...]:
    """The domains that controllers are trained on: ``options.in_domain``, or all.

    Raises:
        InputError: a domain has no prompts.
    """
    known = {batch.domain for batch in batches}
    if missing := set(options.in_domain) - known:
        raise InputError(
            f"in_domain: no prompts of {sorted(missing)[0]!r} in {options.prompts}; it has {', '.join(sorted(known))}"
        )
    return options.in_domain or tuple(sorted(known))


@dataclass(frozen=True)
class Tracer:
    """Generates the target's outputs and traces the draft's proposals along them.

    Attributes:
        decoder: holds the pair.
        seed: determines every random draw, together with a prompt's id.
        chat, system: how prompts are encoded, as by :func:`.encode_prompt`.
    """

    decoder: SpeculativeDecoder
    sampling: SamplingParams
    max_new_tokens: int
    seed: int
    chat: bool = True
    system: str | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that traces depend on besides the prompts."""
        (draft,) = self.decoder.drafts
        assert self.decoder.tokenizer is not None
        return {
            "version": version("specpilot"),
            "pair": PairFingerprint.of(self.decoder.target.model, draft.model, self.decoder.tokenizer).as_dict(),
            "sampling": self.sampling.as_dict(),
            "max_new_tokens": self.max_new_tokens,
            "seed": self.seed,
            "chat": self.chat,
            "system": self.system,
            "device": self.decoder.target.device.type,
        }

    def traces(self, batch: PromptBatch) -> list[Trace]:
        """Generate and trace the target's outputs, up to the first token outside the draft's vocabulary.

        Raises:
            InputError: a token of a prompt is outside the draft's vocabulary.
        """
        decoder, budget = self.decoder, self.max_new_tokens
        (draft,) = decoder.drafts
        prompts = [
            encode_prompt(decoder.tokenizer, row.prompt, chat=self.chat, system=self.system) for row in batch.prompts
        ]
        for row, prompt in zip(batch.prompts, prompts, strict=True):
            if not can_read(prompt, draft.vocab_size):
                raise InputError(
                    f"prompt {row.id!r}: token {max(prompt)} is outside the draft's vocabulary of {draft.vocab_size}; "
                    "take a draft with the target's whole vocabulary, or other prompts"
                )
        uniforms = [
            torch.rand(budget, generator=torch.Generator().manual_seed(self.seed_of("x", row))) for row in batch.prompts
        ]
        stops = frozenset(decoder.stop_tokens)
        rollouts = roll_out(decoder.target, prompts, uniforms, self.sampling, stops, batch_size=len(prompts))
        return [
            trace(
                decoder.target, draft, prompt, *traceable(rollout.tokens, budget, draft.vocab_size, stops),
                self.sampling, RandomSource(self.seed_of("y", row)), stops,
            )
            for row, prompt, rollout in zip(batch.prompts, prompts, rollouts, strict=True)
        ]  # fmt: skip

    def seed_of(self, stream: str, row: PromptRow) -> int:
        """The seed of a prompt's draws for one purpose."""
        digest = hashlib.sha256(f"{self.seed}\0{stream}\0{row.id}".encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)
