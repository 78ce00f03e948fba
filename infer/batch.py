"""Several prompts decoded together: each row drafts, verifies and ends on its own, and has the law it has alone.

A row's tosses come from its own seed and its verdicts from the same verifier as alone, so it even says what it says
alone, but for rounding. What rows share is the forwards.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from ..controllers.length import MAX_DRAFT, LengthController
from ..controllers.lookup import Lookup
from ..controllers.sampling import SamplingParams
from .cached_model import CachedModel
from .distribution import TokenDistribution
from .draft import NO_DRAFT, Chain, Draft
from .generation import Generation, Round
from .random_source import RandomSource
from .rows import Rows
from .verify import Verifier

SEND_AWAY = 0.75  # close the ranks once so few of the rows are still running


@dataclass
class Row:
    """One prompt on its way: what it has said, its budget, and what decides for it."""

    generation: Generation
    budget: int
    chance: RandomSource
    length: LengthController
    text: list[int]

    def __post_init__(self) -> None:
        self.lookup = Lookup(self.text)


class Batch:
    """The state of several prompts that one target and one draft (or none) decode.

    Args:
        rows: the prompts, nothing said yet.
        verify: a verifier of chains.
    """

    def __init__(
        self,
        target: CachedModel,
        draft: CachedModel | None,
        rows: list[Row],
        *,
        verify: Verifier,
        warp: SamplingParams,
        stop_tokens: frozenset[int],
    ) -> None:
        self.rows, self.verify, self.warp, self.stop_tokens = rows, verify, warp, stop_tokens
        self.read = Rows(target, len(rows))
        self.guessed = None if draft is None else Rows(draft, len(rows))

    @torch.inference_mode()
    def run(self) -> None:
        """Fill the rows' generations. Times are the batch's: every row waits for the forwards of all."""
        started = time.perf_counter()
        self._prefill()
        seconds = time.perf_counter() - started
        for row in self.rows:
            row.generation.stats.prefill_seconds = seconds
        while running := [i for i, row in enumerate(self.rows) if not self._ended(row)]:
            started = time.perf_counter()
            if len(running) <= SEND_AWAY * len(self.rows):
                self._keep(running)
            verified, longest = self._round()
            seconds = time.perf_counter() - started
            for row in verified:
                row.generation.stats.seconds += seconds
            verified[0].length.timed(longest, seconds)  # what rows learn of the machine they share

    def _ended(self, row: Row) -> bool:
        said = row.generation.tokens
        return len(said) >= row.budget or said[-1] in self.stop_tokens

    def _keep(self, running: list[int]) -> None:
        """Send the other rows away."""
        self.rows = [self.rows[i] for i in running]
        self.read.keep_rows(running)
        if self.guessed is not None:
            self.guessed.keep_rows(running)

    def _prefill(self) -> None:
        prompts = [row.text for row in self.rows]
        logits, _ = self.read.read(prompts, last=True)
        if self.guessed is not None:
            # Up to a token the draft has no embedding for, if there is one: that row goes on without a draft.
            size = self.guessed.model.vocab_size
            ends = [next((i for i, token in enumerate(p) if token >= size), len(p)) for p in prompts]
            self.guessed.read([prompt[:end] for prompt, end in zip(prompts, ends, strict=True)], last=True)
        p = TokenDistribution.under(self.warp, logits[:, -1])
        for i, row in enumerate(self.rows):
            row.length.start_text()
            row.generation.stats.n_target_forwards += 1
            row.text += row.generation.record(Round([], [], [p.sample(i, row.chance)]), self.stop_tokens)

    def _round(self) -> tuple[list[Row], int]:
        """Draft and verify; the rows that did, and how long the longest draft was."""
        drafts = [NO_DRAFT] * len(self.rows) if self.guessed is None else self._draft(self.guessed)
        new = [
            [] if self._ended(row) else [row.text[-1], *draft.tokens]
            for row, draft in zip(self.rows, drafts, strict=True)
        ]
        logits, _ = self.read.read(new, last=False)
        width = logits.shape[1]
        p = TokenDistribution.under(self.warp, logits.flatten(0, 1))  # row by row, K + 1 of each
        kept = [*self.read.lengths]
        verified = [i for i, tokens in enumerate(new) if tokens]
        for i in verified:
            kept[i] = self._judge(self.rows[i], p.part(i * width, i * width + len(new[i])), drafts[i])
        self.read.forget(kept)
        if self.guessed is not None:
            self.guessed.forget([min(pair) for pair in zip(kept, self.guessed.lengths, strict=True)])
        return [self.rows[i] for i in verified], max(len(draft.tokens) for draft in drafts)

    def _judge(self, row: Row, p: TokenDistribution, draft: Draft) -> int:
        """Verify one row's draft by the target's distributions ``p``; how much of the text the caches keep."""
        verdict = self.verify(p, draft, row.chance)
        if draft.tokens:
            row.length.end_round(len(draft.tokens), verdict.accepted)
        kept = len(row.text) + verdict.accepted
        row.text += row.generation.record_verdict(draft, verdict, self.stop_tokens)
        return kept

    def _draft(self, guessed: Rows) -> list[Draft]:
        """A chain for each row; rows that have stopped wait for the others."""
        vocab_size = self.read.model.vocab_size
        chains = []
        for row, length in zip(self.rows, guessed.lengths, strict=True):
            unread = row.text[length:]
            can_draft = not self._ended(row) and max(unread) < guessed.model.vocab_size
            longest = min(MAX_DRAFT, row.budget - len(row.generation.tokens) - 1) if can_draft else 0
            chains.append(Chain(unread, row.length, row.chance, longest, self.stop_tokens, row.lookup))
        while any(chain.drafting for chain in chains):
            reading = [chain.unread if chain.drafting else [] for chain in chains]
            logits, hidden = guessed.read(reading, last=True)
            q = TokenDistribution.under(self.warp, logits[:, -1], vocab_size)  # of every row
            for i, chain in enumerate(chains):
                if chain.drafting:
                    chain.add(q.part(i, i + 1), logits[i], hidden[i])
        return [chain.draft() for chain in chains]
