"""The output of decoding: tokens, text, a trace of the rounds, and counters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Round:
    """One draft and its verification.

    Attributes:
        drafted: drafted tokens; those of a tree each after the one before it in its branch.
        path: indices of the accepted tokens: the first ones of a chain, or a path of a tree.
        emitted: tokens added to the output: the accepted ones, then the target's own; up to the one that ends the text.
        ratios: p(y)/q(y) of each drafted token under token-wise verification, which accepts it with probability
            min(1, p(y)/q(y)) if all earlier ones are accepted.
        parents: index of the token before each drafted one; -1 for the first tokens of a tree's branches.
        copied: number of first drafted tokens that were copied from the text.
    """

    drafted: list[int]
    path: list[int]
    emitted: list[int]
    ratios: list[float] = field(default_factory=list, compare=False)  # subject to rounding
    parents: list[int] = field(default_factory=list)
    copied: int = field(default=0, compare=False)  # of no consequence

    @property
    def accepted(self) -> int:
        """Number of accepted drafted tokens."""
        return len(self.path)

    def as_dict(self) -> dict[str, int | list[int]]:
        """Its tokens and what became of them, as JSON values."""
        names = ("drafted", "parents", "accepted", "path", "emitted")
        return {name: getattr(self, name) for name in names}


@dataclass
class Stats:
    """Counters of one run. Prefills are not counted as forwards, except for the target's, which gives the first token.

    Attributes:
        seconds: wall time of the rounds, prefill excluded.
        prefill_seconds: wall time of both prefills.
        n_verified_tokens: number of positions scored by all target forwards.
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
        prompt_tokens: token ids of the prompt; for an encoder-decoder the encoder's input.
        tokens: generated ids, up to the end token or the one that completes a stop string.
        text: their text without special tokens and stop string; it continues the prompt's text.
        finish_reason: ``"eos"``, ``"stop"`` (a stop string or a request's own stop token), ``"length"`` (the budget) or
            ``"context"`` (the model's longest input).
        arm: index of the arm that a router chose; None without a router.
        seed: the seed that reproduces this text alone; None if a random source was given.
        rounds: the trace. Round 0 is the prefill, with no drafted and one emitted token.
    """

    prompt_tokens: list[int]
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str = "length"
    arm: int | None = None
    seed: int | None = None
    rounds: list[Round] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)

    def record(self, round: Round, ends: Callable[[int], bool]) -> list[int]:
        """Add a round, with its output truncated after the first token that ``ends`` the text; returns that output."""
        for i, token in enumerate(round.emitted):
            if ends(token):
                del round.emitted[i + 1 :]
                round.path = round.path[: i + 1]
                break
        self.rounds.append(round)
        self.tokens += round.emitted
        self.stats.n_generated += len(round.emitted)
        self.stats.n_drafted += len(round.drafted)
        self.stats.n_accepted += round.accepted
        self.stats.n_discarded += len(round.drafted) - round.accepted
        return round.emitted
