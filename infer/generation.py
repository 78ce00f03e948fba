"""What a decoder run gives back: tokens, text, a trace of its rounds, and the counters every report is made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .draft import Draft
    from .verify import Verdict


@dataclass
class Round:
    """One draft and its verification.

    Attributes:
        drafted: tokens the draft proposed; those of a tree level by level.
        path: which of them the target kept, by index: the first ones of a chain, a path down a tree.
        emitted: tokens this round added to the output: accepted ones, then the target's own; trimmed after EOS.
        ratios: p(y)/q(y) of each drafted token, under token-wise verification; it is accepted with probability
            min(1, p(y)/q(y)) if it keeps all before.
        parents: the index of the token before each drafted one; -1 for the first tokens of a tree's branches.
    """

    drafted: list[int]
    path: list[int]
    emitted: list[int]
    ratios: list[float] = field(default_factory=list, compare=False)  # equal but for rounding is equal
    parents: list[int] = field(default_factory=list)

    @property
    def accepted(self) -> int:
        """How many drafted tokens were kept."""
        return len(self.path)


@dataclass
class Stats:
    """Counters of one run; prefills count as neither kind of forward, but a token taken from one is a target forward.

    Attributes:
        seconds: wall time of the rounds, prefill excluded.
        prefill_seconds: wall time of both prefills.
        n_verified_tokens: positions the target scored over all its forwards.
    """

    n_generated: int = 0
    n_draft_forwards: int = 0
    n_target_forwards: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    n_discarded: int = 0
    n_verified_tokens: int = 0
    seconds: float = 0.0
    prefill_seconds: float = 0.0

    def __add__(self, other: Stats) -> Stats:
        return Stats(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second of wall time, prefill included."""
        return _ratio(self.n_generated, self.seconds + self.prefill_seconds)

    @property
    def acceptance_rate(self) -> float:
        """Accepted share of the drafted tokens."""
        return _ratio(self.n_accepted, self.n_drafted)

    @property
    def discard_rate(self) -> float:
        """Discarded draft tokens per generated token (SpecDec++ eq. 2.3)."""
        return _ratio(self.n_discarded, self.n_generated)

    @property
    def verification_rate(self) -> float:
        """Target forwards per generated token (SpecDec++ eq. 2.3)."""
        return _ratio(self.n_target_forwards, self.n_generated)

    @property
    def block_efficiency(self) -> float:
        """Generated tokens per target forward (SpecTr §2)."""
        return _ratio(self.n_generated, self.n_target_forwards)


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0


@dataclass
class Generation:
    """The output of one prompt.

    Attributes:
        prompt_tokens: token ids the target was given; those that an encoder read.
        tokens: generated ids, the end token included where it was reached.
        text: their text, special tokens left out.
        finish_reason: ``"eos"``, ``"length"`` (the budget) or ``"context"`` (the model's longest input).
        arm: which arm a router chose, counted from 0; None without a router.
        seed: the seed with which this text alone is made again; None where the random source was given.
        rounds: the trace. Round 0 is the token taken from the prefill: nothing drafted, one emitted.
    """

    prompt_tokens: list[int]
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str = "length"
    arm: int | None = None
    seed: int | None = None
    rounds: list[Round] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)

    def record_verdict(self, draft: Draft, verdict: Verdict, stop_tokens: frozenset[int]) -> list[int]:
        """Add the round of a verified draft and count its forwards; returns its output."""
        emitted = [*(draft.tokens[node] for node in verdict.path), verdict.token]
        if draft.from_target:  # its forwards read a beam a row, all of them new
            self.stats.n_target_forwards += draft.n_forwards
            return self.record(Round([], [], emitted), stop_tokens)
        self.stats.n_draft_forwards += draft.n_forwards
        self.stats.n_target_forwards += 1
        if self.rounds:  # the first token comes of the prefill
            self.stats.n_verified_tokens += len(draft.tokens) + 1
        return self.record(Round(draft.tokens, verdict.path, emitted, verdict.ratios, draft.parents), stop_tokens)

    def record(self, round: Round, stop_tokens: frozenset[int]) -> list[int]:
        """Add a round, its output trimmed after the first stop token; returns that output."""
        for i, token in enumerate(round.emitted):
            if token in stop_tokens:
                del round.emitted[i + 1 :]
                break
        self.rounds.append(round)
        self.tokens += round.emitted
        self.stats.n_generated += len(round.emitted)
        self.stats.n_drafted += len(round.drafted)
        self.stats.n_accepted += round.accepted
        self.stats.n_discarded += len(round.drafted) - round.accepted
        return round.emitted
