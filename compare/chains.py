"""Speed-ups of chains with a maximum length, as other engines draft them, from recorded texts or from logged rounds.

Two kinds of data have the same interface (:class:`Chains`):

* :class:`ReplayedChains`: counters of decoding recorded texts with a draft length, and with a minimum confidence below
  which a draft ends (llama.cpp's ``p_min``), or with copies by prompt lookup.
* :class:`LoggedChains`: how often the first, second, … drafted token of a round was verified and accepted. The speed-up
  of drafts of K tokens is then ``(1 + Σ_{k ≤ K} Π_{j ≤ k} a_j) / (round(K) / round(0))``. Here a_j is the acceptance
  rate of the j-th drafted token if all tokens before it are accepted, and ``round(K)`` is the time of
  :meth:`CostModel.round`. The formula is Theorem 3.8 of Leviathan et al. 2023, with an acceptance for each token.

Each speed-up is a function of sums over prompts. Intervals resample the prompts. Shapes: n is the number of prompts, D
the number of drafted tokens of a round that are counted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..common.record import Identity
from ..controllers.length import MAX_DRAFT
from ..controllers.length.cost_model import CostModel
from ..simulate.trace import END, Trace
from .interval import Interval, interval
from .recorded import Array, Measure

LENGTHS = tuple(range(1, 13))  # draft lengths that are replayed
P_MIN = (0.0, 0.2, 0.4, 0.6, 0.8)  # minimum confidences that are replayed
NGRAMS = (2, 1)  # lengths of the n-grams that prompt lookup searches, as transformers' ``max_matching_ngram_size=2``
FEW = 30  # verified tokens at a token of a round, below which its acceptance is noise


class ChainCounts(NamedTuple):
    """Counters of one replayed text, without the token and the forward of the prefill.

    Attributes:
        generated: tokens of the text.
        steps: forwards of the draft model.
        drafts: rounds in which the draft model or the copies were used.
        rounds: number of rounds that verified 0, 1, … ``MAX_DRAFT`` drafted tokens.
    """

    generated: int
    steps: int
    drafts: int
    rounds: Sequence[int]

    @property
    def row(self) -> list[int]:
        """The counters as a row of a table with ``WIDTH`` columns."""
        return [self.generated, self.steps, self.drafts, *self.rounds]


WIDTH = 3 + MAX_DRAFT + 1


class ChainSetting(NamedTuple):
    """The end of a chain.

    Attributes:
        length: maximum number of tokens of a draft.
        p_min: confidence below which a draft ends; 0 for drafts of ``length`` tokens.
    """

    length: int
    p_min: float = 0.0


def replay_chain(traced: Trace, setting: ChainSetting) -> ChainCounts:
    """Return the counters of decoding a traced text with chains of the draft model.

    As in llama.cpp, a token whose confidence is below ``p_min`` ends the draft and is not verified.
    """
    position, length = 1, len(traced.text)
    steps = drafts = 0
    rounds = [0] * (MAX_DRAFT + 1)
    while position < length:
        node, accepted = position, 0
        longest = min(setting.length, traced.budget - position - 1)
        tokens = 0
        while tokens < longest and node != END:
            steps += 1
            if traced.signals[node][0] < setting.p_min:
                break
            tokens += 1
            node = traced.after[node]
        while accepted < tokens and position + accepted < length and traced.kept[position + accepted]:
            accepted += 1
        rounds[tokens] += 1
        drafts += longest > 0
        position += accepted + 1
    return ChainCounts(length - 1, steps, drafts, rounds)


def replay_lookup(traced: Trace, setting: ChainSetting) -> ChainCounts:
    """Return the counters of decoding a traced text with copies by prompt lookup.

    The draft is the continuation of the first occurrence of the last two tokens in the prompt and the text. If the last
    two tokens did not occur before, it is the continuation of the first occurrence of the last token. A copied token is
    accepted if the target samples the same token.
    """
    tokens = [*traced.prompt, *traced.text]
    start, end = len(traced.prompt), len(tokens)
    limit = start + traced.budget
    first: dict[tuple[int, ...], int] = {}  # place after the first occurrence of an n-gram that a token follows
    indexed = 0
    position = start + 1
    rounds = [0] * (MAX_DRAFT + 1)
    while position < end:
        for after in range(indexed + 1, position):
            for n in NGRAMS:
                if after >= n:
                    first.setdefault(tuple(tokens[after - n : after]), after)
        indexed = position - 1
        matches = [first[key] for n in NGRAMS if (key := tuple(tokens[position - n : position])) in first]
        longest = min(setting.length, limit - position - 1)
        copied = tokens[matches[0] : min(matches[0] + longest, position)] if matches else []
        accepted = 0
        while accepted < len(copied) and position + accepted < end and copied[accepted] == tokens[position + accepted]:
            accepted += 1
        rounds[len(copied)] += 1
        position += accepted + 1
    return ChainCounts(len(traced.text) - 1, 0, sum(rounds[1:]), rounds)


GRID = tuple(ChainSetting(length, p_min) for p_min in P_MIN for length in LENGTHS)
COPY_GRID = tuple(ChainSetting(length) for length in LENGTHS)


def chains_measure() -> Measure:
    """Return the measure of the counters of every setting of ``GRID``, by setting and text."""
    return _measure("chains", GRID, replay_chain)


def copies_measure() -> Measure:
    """Return the measure of the counters of prompt lookup for every setting of ``COPY_GRID``, by setting and text."""
    return _measure("copies", COPY_GRID, replay_lookup)


def _measure(
    name: str, grid: Sequence[ChainSetting], replayed: Callable[[Trace, ChainSetting], ChainCounts]
) -> Measure:
    identity: Identity = {name: [list(setting) for setting in grid], "counters": list(ChainCounts._fields)}
    return Measure(identity, lambda traces: [[replayed(trace, setting).row for trace in traces] for setting in grid])


class Chains(ABC):
    """Evidence about the speed of chains, by setting."""

    @property
    @abstractmethod
    def settings(self) -> list[ChainSetting]:
        """The settings whose speed is known."""

    @property
    @abstractmethod
    def prompts(self) -> int:
        """The number of prompts."""

    @abstractmethod
    def columns(self, setting: ChainSetting, cost: CostModel) -> tuple[Array, ...]:
        """Return arrays (n,) with numbers of each prompt at ``cost``; :meth:`speedup` takes their sums over prompts."""

    @abstractmethod
    def speedup(self, setting: ChainSetting, cost: CostModel, *sums: Any) -> Any:
        """Return the speed-up over no drafts; infinite or NaN if it is not known.

        Args:
            setting: the setting.
            cost: the costs.
            sums: the sum of each of the :meth:`columns`, as numbers or as arrays.
        """

    @abstractmethod
    def subset(self, rows: NDArray[np.bool_]) -> Chains:
        """Return the evidence of the prompts where ``rows`` (n,) is true."""

    def value(self, setting: ChainSetting, cost: CostModel) -> float:
        """Return the speed-up over no drafts; infinite or NaN if it is not known."""
        return float(self.speedup(setting, cost, *(column.sum() for column in self.columns(setting, cost))))

    def speed(self, setting: ChainSetting, cost: CostModel) -> Interval:
        """Return the speed-up over no drafts with its 95 % interval over prompts."""
        return interval(lambda *sums: self.speedup(setting, cost, *sums), *self.columns(setting, cost))

    def ratio(self, setting: ChainSetting, other: ChainSetting, cost: CostModel) -> Interval:
        """Return the speed of a setting over that of another one on the same prompts, with its 95 % interval."""
        columns, other_columns = self.columns(setting, cost), self.columns(other, cost)

        def statistic(*sums: Any) -> Any:
            split = len(columns)
            return self.speedup(setting, cost, *sums[:split]) / self.speedup(other, cost, *sums[split:])

        return interval(statistic, *columns, *other_columns)

    def best(self, cost: CostModel, p_mins: Sequence[float] = (0.0,)) -> ChainSetting | None:
        """Return the fastest of some settings; None if no speed is known.

        Args:
            cost: the costs.
            p_mins: the minimum confidences of the settings that are considered.
        """
        among = [setting for setting in self.settings if setting.p_min in p_mins]
        values = {setting: self.value(setting, cost) for setting in among}
        finite = {setting: value for setting, value in values.items() if np.isfinite(value)}
        return max(finite, key=lambda setting: finite[setting]) if finite else None


@dataclass(frozen=True)
class ReplayedChains(Chains):
    """Evidence from counters of replayed texts.

    Attributes:
        counts: :attr:`ChainCounts.row` (n, WIDTH) of each prompt, by setting.
    """

    counts: Mapping[ChainSetting, Array]

    @classmethod
    def of(cls, grid: Sequence[ChainSetting], measured: Sequence[Sequence[Sequence[Sequence[int]]]]) -> ReplayedChains:
        """Return the evidence from the results of :func:`chains_measure` or :func:`copies_measure`.

        Args:
            grid: the settings of the measure.
            measured: the results, by batch, setting and text.
        """
        return cls(
            {
                setting: np.array([row for batch in measured for row in batch[index]], dtype=float).reshape(-1, WIDTH)
                for index, setting in enumerate(grid)
            }
        )

    @property
    def settings(self) -> list[ChainSetting]:
        return [*self.counts]

    @property
    def prompts(self) -> int:
        return len(next(iter(self.counts.values())))

    def columns(self, setting: ChainSetting, cost: CostModel) -> tuple[Array, ...]:
        generated, steps, drafts = self.counts[setting][:, :3].T
        rounds = self.counts[setting][:, 3:]
        return generated, steps, rounds @ np.arange(MAX_DRAFT + 1), rounds.sum(1), drafts, cost.deviation(rounds.T)

    def speedup(self, setting: ChainSetting, cost: CostModel, *sums: Any) -> Any:
        generated, steps, drafted, forwards, drafts, deviation = sums
        seconds = (
            cost.t_draft * steps + cost.t_verify_token * drafted
            + cost.verification(1) * forwards + cost.t_draft_start * drafts
        ) + cost.t_verify_token * deviation  # fmt: skip
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.float64(generated) * cost.round(0) / seconds

    def subset(self, rows: NDArray[np.bool_]) -> ReplayedChains:
        return ReplayedChains({setting: counts[rows] for setting, counts in self.counts.items()})


@dataclass(frozen=True)
class LoggedChains(Chains):
    """Numbers of verified and accepted tokens by position in a round.

    A token counts only if all tokens of its round before it were accepted.

    Attributes:
        verified, accepted: (n, D) numbers of tokens at the first D positions of the rounds of n prompts.
    """

    verified: Array
    accepted: Array

    @property
    def settings(self) -> list[ChainSetting]:
        enough = self.verified.sum(0) >= FEW
        longest = int(np.argmin(enough)) if not enough.all() else len(enough)
        return [ChainSetting(length) for length in range(1, longest + 1)]

    @property
    def prompts(self) -> int:
        return len(self.verified)

    def columns(self, setting: ChainSetting, cost: CostModel) -> tuple[Array, ...]:
        return (*self.verified[:, : setting.length].T, *self.accepted[:, : setting.length].T)

    def speedup(self, setting: ChainSetting, cost: CostModel, *sums: Any) -> Any:
        values = np.array(sums, dtype=float)
        verified, accepted = values[: setting.length], values[setting.length :]
        with np.errstate(invalid="ignore", divide="ignore"):
            tokens = 1 + np.cumprod(accepted / verified, axis=0).sum(0)
        return tokens * cost.round(0) / cost.round(setting.length)

    @classmethod
    def of(cls, rounds: Sequence[Sequence[Sequence[float]]]) -> LoggedChains:
        """Return the evidence of logged rounds.

        Args:
            rounds: the acceptance probabilities of the verified tokens, by prompt, round and token.
        """
        verified, accepted = (np.zeros((len(rounds), LENGTHS[-1])) for _ in range(2))
        for row, of_prompt in enumerate(rounds):
            for accept in of_prompt:
                verified[row, : len(accept)] += 1
                accepted[row, : len(accept)] += accept
        return cls(verified, accepted)

    def subset(self, rows: NDArray[np.bool_]) -> LoggedChains:
        return LoggedChains(self.verified[rows], self.accepted[rows])
