"""The draft length K of all requests of a step, from acceptance by position and measured times; without vLLM.

A step of n requests with K drafted tokens each yields n·(1 + Σ_{i≤K} s_i) tokens in expectation, where s_i is the
probability that the first i drafted tokens are accepted. K maximises tokens per second (:func:`.fixed_length_rates`).
Shapes: B the maximum number of requests, K the longest draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from specpilot.controllers.length.rate import fixed_length_rates

MEMORY = 512.0  # drafts after which a weight has decayed to 1/e
RECENT = 48.0  # the same for the drafts that are compared with all earlier ones
CHANGE = 3.5  # standard errors between recent and earlier acceptance after which earlier drafts are forgotten
FIRST = 0.6  # acceptance before the first draft
SMOOTHING = 4.0  # weight of the previous position in the acceptance of a position, in drafts
PROBE_SHARE = 0.005  # default share of the time for probes

Array = Any  # of NumPy


class PositionAcceptance:
    """Acceptance by position in the draft, with exponentially decaying weights.

    Every draft multiplies the weights of all positions. Without drafts nothing decays. A position is counted if all
    tokens before it were accepted. Its acceptance is smoothed towards that of the position before it, so that positions
    beyond the current drafts follow the positions within.

    Args:
        longest: the longest draft K.

    Attributes:
        trials, accepted: weighted counts by position (K,).
        recent: the same two counts with a shorter memory (2, K).
    """

    def __init__(self, longest: int) -> None:
        self.trials, self.accepted = np.zeros(longest), np.zeros(longest)
        self.recent = np.zeros((2, longest))

    @property
    def survivals(self) -> Array:
        """The probabilities s_0 … s_K (K + 1,) that the first 0, 1, … tokens of a draft are all accepted."""
        survivals, acceptance = [1.0], FIRST
        for trials, accepted in zip(self.trials.tolist(), self.accepted.tolist(), strict=True):
            acceptance = (accepted + SMOOTHING * acceptance) / (trials + SMOOTHING)
            survivals.append(survivals[-1] * acceptance)
        return np.array(survivals)

    def add(self, drafted: Array, accepted: Array) -> None:
        """Add the drafts of a step.

        Args:
            drafted: lengths of the drafts (N,), at least 1.
            accepted: numbers of accepted tokens (N,).
        """
        position = np.arange(len(self.trials))[:, None]
        counts = np.stack(
            [((position < drafted) & (position <= accepted)).sum(1), (position < np.minimum(accepted, drafted)).sum(1)]
        )
        self.recent = self.recent * (1.0 - 1.0 / RECENT) ** len(drafted) + counts
        keep = (1.0 - 1.0 / MEMORY) ** len(drafted)
        self.trials, self.accepted = self.trials * keep + counts[0], self.accepted * keep + counts[1]
        if self._has_changed():
            self.trials, self.accepted = self.recent.copy()

    def _has_changed(self) -> bool:
        """Return true if the acceptance of recent drafts differs from that of all drafts."""
        if self.trials[0] < 2.0 * RECENT:
            return False
        trials, accepted = self.recent
        mean = (self.accepted + 1.0) / (self.trials + 2.0)
        # Exponential weights halve the variance of a weighted count.
        variance = 0.5 * float((mean * (1.0 - mean) * trials).sum())
        return bool(abs((accepted - mean * trials).sum()) > CHANGE * np.sqrt(variance))


class AdaptiveLengths:
    """The best draft length by number of requests, with probes of longer drafts.

    A probe drafts the next longer length. It loses its time minus the time in which the best length yields the same
    expected tokens. Each step adds ``probe_share`` of its time to an allowance; a probe whose loss the allowance covers
    is due. Therefore acceptance is measured one length beyond the best, and the expected loss stays within the share.

    Args:
        lengths: the draft lengths to choose from, ascending.
        seconds: times of a step of 0 … B requests with each of 0 … K drafted tokens (B + 1, K + 1); row 0 is not used,
            and there may be more columns.
        probe_share: share of the time that probes may lose.

    Attributes:
        acceptance: acceptance by position.
        allowance: seconds that the next probe may lose.
    """

    def __init__(self, lengths: Sequence[int], seconds: Array, probe_share: float = PROBE_SHARE) -> None:
        self.lengths = np.array(lengths)
        self.seconds = np.asarray(seconds, dtype=float)[:, : self.lengths[-1] + 1]
        self.probe_share = probe_share
        self.acceptance = PositionAcceptance(int(self.lengths[-1]))
        self.allowance = 0.0
        self._plan()

    def _plan(self) -> None:
        """Compute, for every number of requests (B + 1,), the best length, that of a probe, and the probe's loss."""
        survivals = self.acceptance.survivals
        rates = fixed_length_rates(survivals, self.seconds)[:, self.lengths]  # tokens per second of one request
        rows, best_index = np.arange(len(rates)), rates.argmax(1)
        longer = np.minimum(best_index + 1, len(self.lengths) - 1)
        self.best, self.probe = self.lengths[best_index], self.lengths[longer]
        tokens = np.cumsum(survivals)[self.probe]
        self.loss = np.maximum(0.0, self.seconds[rows, self.probe] - tokens / rates[rows, best_index])

    def table(self) -> list[int]:
        """Return the draft length of the next step by its number of requests (B + 1)."""
        probe_is_affordable = self.loss <= self.allowance
        table: list[int] = np.where(probe_is_affordable, self.probe, self.best).tolist()
        return table

    def count_step(self, rows: int, length: int) -> None:
        """Update the allowance for probes after a step of ``rows`` requests that drafts ``length`` tokens for each.

        The step adds a share of its time to the allowance. A probe subtracts its expected loss.
        """
        allowance = self.allowance + self.probe_share * self.seconds[rows, length]
        if length > self.best[rows]:
            allowance -= self.loss[rows]
        self.allowance = min(max(allowance, 0.0), float(self.loss[rows]))  # at most one probe at a time

    def observe(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Update the acceptance, and with it the best lengths, by N verified drafts.

        Args:
            drafted: lengths of the drafts (N,), at least 1.
            accepted: numbers of accepted tokens (N,).
        """
        if len(drafted):
            self.acceptance.add(np.array(drafted), np.array(accepted))
            self._plan()
