"""Held-out prompts by domain, and rules of stopping replayed over the target's texts after them.

A text is rolled out and traced once; any number of controllers then meet it with the same tosses
(:mod:`specpilot.simulate.trace`), and their counters are those that the decoder would have come to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ...controllers.acceptance.acceptance_head import AcceptanceHead
from ...controllers.errors import InputError
from ...controllers.length import HeadPredictor, LengthController, Prediction
from ...controllers.sampling import SamplingParams
from ...data_gen.prompts import PromptRow, load_prompts
from ...data_gen.rollout import roll_out
from ...data_gen.vocabulary import can_read, traceable
from ...infer.decoder import SpeculativeDecoder
from ...infer.generation import Stats
from ...infer.prompting import encode_prompt
from ...infer.random_source import RandomSource
from ...simulate.replay import PrecomputedPredictor, replay
from ...simulate.trace import Trace, trace

CHUNK = 20  # prompts that are rolled out together: the least that a killed run loses


class Counts(NamedTuple):
    """The counters of one decoded text."""

    generated: int
    drafted: int
    accepted: int
    target_forwards: int

    @classmethod
    def of(cls, stats: Stats) -> Counts:
        return cls(stats.n_generated, stats.n_drafted, stats.n_accepted, stats.n_target_forwards)

    @property
    def stats(self) -> Stats:
        return Stats(
            n_generated=self.generated,
            n_draft_forwards=self.drafted,
            n_target_forwards=self.target_forwards,
            n_drafted=self.drafted,
            n_accepted=self.accepted,
            n_discarded=self.drafted - self.accepted,
            n_verified_tokens=self.drafted + self.target_forwards - 1,
        )


@dataclass(frozen=True)
class Chunk:
    """Prompts of one domain that are rolled out together."""

    domain: str
    prompts: tuple[PromptRow, ...]


def held_out(source: str, per_domain: int) -> list[Chunk]:
    """The first ``per_domain`` prompts of each domain in the test split of ``source``, in chunks.

    Raises:
        InputError: a domain has fewer.
    """
    by_domain: dict[str, list[PromptRow]] = {}
    for row in load_prompts(source, split="test"):
        by_domain.setdefault(row.domain, []).append(row)
    for domain, rows in by_domain.items():
        if len(rows) < per_domain:
            raise InputError(f"per_domain={per_domain}: {domain} has {len(rows)} prompts in the test split of {source}")
    return [
        Chunk(domain, tuple(rows[start : min(start + CHUNK, per_domain)]))
        for domain, rows in sorted(by_domain.items())
        for start in range(0, per_domain, CHUNK)
    ]


class Texts:
    """The target's texts after prompts, with all that a draft might say beside them.

    Args:
        decoder: the pair.
        seed: decides every toss, together with a prompt's id.
    """

    def __init__(self, decoder: SpeculativeDecoder, sampling: SamplingParams, max_new_tokens: int, seed: int) -> None:
        self.decoder, self.sampling, self.max_new_tokens, self.seed = decoder, sampling, max_new_tokens, seed

    def traces(self, chunk: Chunk) -> list[Trace]:
        """Roll the target out over a chunk's prompts and trace each text, as far as the draft can read it.

        Raises:
            InputError: the draft has no embedding for a token of a prompt.
        """
        decoder, budget = self.decoder, self.max_new_tokens
        (draft,) = decoder.drafts
        prompts = [encode_prompt(decoder.tokenizer, row.prompt, chat=True) for row in chunk.prompts]
        for row, prompt in zip(chunk.prompts, prompts, strict=True):
            if not can_read(prompt, draft.vocab_size):
                raise InputError(
                    f"prompt {row.id!r}: token {max(prompt)} is beyond the {draft.vocab_size} that the draft can read; "
                    "take a draft with the target's whole vocabulary, or other prompts"
                )
        uniforms = [
            torch.rand(budget, generator=torch.Generator().manual_seed(self._seed("x", row))) for row in chunk.prompts
        ]
        texts = roll_out(
            decoder.target, prompts, uniforms, self.sampling, frozenset(decoder.stop_tokens), batch_size=len(prompts)
        )
        stops = frozenset(decoder.stop_tokens)
        return [
            trace(
                decoder.target, draft, prompt, *traceable(text.tokens, budget, draft.vocab_size, stops), self.sampling,
                RandomSource(self._seed("y", row)), stops,
            )
            for row, prompt, text in zip(chunk.prompts, prompts, texts, strict=True)
        ]  # fmt: skip

    def count(self, traces: Sequence[Trace], rule: Callable[[int], LengthController]) -> list[Counts]:
        """Counters of decoding each of ``traces`` with the controller that ``rule`` makes for it, given its place."""
        return [Counts.of(replay(t, rule(i), self.decoder.stop_tokens)) for i, t in enumerate(traces)]

    def _seed(self, stream: str, row: PromptRow) -> int:
        digest = hashlib.sha256(f"{self.seed}\0{stream}\0{row.id}".encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)


def judge_at_once(head: AcceptanceHead, traces: Sequence[Trace]) -> list[PrecomputedPredictor]:
    """A source for each trace, whose judgements are ``head``'s own probabilities, made in one go."""
    source = HeadPredictor(head)
    return [
        PrecomputedPredictor(source, [Prediction(chance) for chance in head.probability(t.states).tolist()])
        for t in traces
    ]


def by_domain(chunks: Sequence[Chunk], counts: Sequence[Sequence[Counts]]) -> dict[str, list[Counts]]:
    """``counts`` of chunks' prompts, put together by domain."""
    found: dict[str, list[Counts]] = {}
    for chunk, of_chunk in zip(chunks, counts, strict=True):
        found.setdefault(chunk.domain, []).extend(of_chunk)
    return found


def chunk_identity(chunk: Chunk) -> dict[str, Any]:
    """What a chunk's texts depend on, of the chunk itself."""
    digest = hashlib.sha256("\0".join(row.prompt for row in chunk.prompts).encode()).hexdigest()
    return {"prompts": [row.id for row in chunk.prompts], "texts": digest}


def pooled(counts: Mapping[str, Sequence[Counts]], domains: Sequence[str]) -> Iterator[Counts]:
    """The counters of several domains' prompts, one after the other."""
    for domain in domains:
        yield from counts[domain]
