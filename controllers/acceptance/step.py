"""One drafted token and the distribution that it was drawn from: the input of predictors and length controllers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from .ngram_index import NgramMatch

DraftSignals = tuple[float, float, float]
"""Confidence q(y), top probability max q, and the entropy of q in nats.

At temperature 0, where q is a point mass, all three are those of the softmax at temperature 1.
"""


def signals_tensor(tokens: Tensor, chosen: Tensor, q: Tensor, logits: Tensor) -> Tensor:
    """Return the draft signals (N, 3) of N tokens, computed on the device without synchronization.

    Args:
        tokens: (N,) the tokens y.
        chosen: (N,) their probabilities q(y).
        q: (N, k) their distributions, without the tokens excluded by sampling.
        logits: (N, V) the draft's logits.
    """
    unwarped = torch.softmax(logits.float(), -1)
    is_point_mass, top = chosen == 1.0, q.max(-1).values
    return torch.stack([
        torch.where(is_point_mass, unwarped.gather(-1, tokens.unsqueeze(-1)).squeeze(-1), chosen),
        torch.where(top == 1.0, unwarped.max(-1).values, top),
        torch.where(is_point_mass, torch.special.entr(unwarped).sum(-1), torch.special.entr(q).sum(-1)),
    ], -1)  # fmt: skip


def draft_signals(chosen: list[float], tokens: list[int], q: Tensor, logits: Tensor) -> list[DraftSignals]:
    """Return the draft signals of N tokens as lists; the arguments are those of :func:`signals_tensor`."""
    y, q_y = torch.tensor(tokens, device=q.device), torch.tensor(chosen, dtype=q.dtype, device=q.device)
    return [(confidence, top, entropy) for confidence, top, entropy in signals_tensor(y, q_y, q, logits).tolist()]


FEW = 128  # maximum size of distributions that are processed as lists


@dataclass(frozen=True)
class Step:
    """One drafted token, the input of a controller.

    Attributes:
        index: position in the draft, from 1.
        token: the token y_i.
        probability: q(y_i) in the draft distribution that y_i was drawn from.
        q: (…, k) this distribution, without the tokens excluded by sampling.
        logits: (…, V) the draft's logits.
        hidden: (1, d) the draft's last hidden state at the token *before* y_i; the draft has not read y_i yet.
        match: returns the n-gram match of y_i; may be called only while the round is drafted.
        listed: q as a list if available, which is faster than tensor operations.
        kept_tokens: (M,) the only tokens with finite logits, ascending; None for all.
        draft_signals: the draft signals, if the host has read them together with the token; otherwise None.
        state_values: the predictor's :meth:`~.predictor.AcceptancePredictor.state_values` of ``hidden``, if the host
            has read them together with the token; otherwise None.

    All dimensions before the last have size 1. Removing them would take an operation per token.
    """

    index: int
    token: int
    probability: float
    q: Tensor
    logits: Tensor
    hidden: Tensor
    match: Callable[[], NgramMatch]
    listed: list[float] | None = field(default=None, kw_only=True)
    kept_tokens: Tensor | None = field(default=None, kw_only=True)
    draft_signals: DraftSignals | None = field(default=None, kw_only=True)
    state_values: list[float] | None = field(default=None, kw_only=True)

    def confidence(self) -> float:
        """Return q(y_i); at temperature 0, where q is a point mass, the softmax at temperature 1."""
        if self.draft_signals is not None:
            return self.draft_signals[0]
        return self.unwarped_of(self.token) if self.probability == 1.0 else self.probability

    def top_probability(self) -> float:
        """Return the maximum of q. At temperature 0, q is one token, and the maximum is that of q at temperature 1."""
        if self.draft_signals is not None:
            return self.draft_signals[1]
        probability = float(self.q.max())
        return float(self.unwarped.max()) if probability == 1.0 else probability

    def entropy(self) -> float:
        """Return H(q) in nats; at temperature 0 that of the softmax at temperature 1."""
        if self.draft_signals is not None:
            return self.draft_signals[2]
        return self.unwarped_entropy if self.probability == 1.0 else float(torch.special.entr(self.q).sum())

    def signals(self) -> DraftSignals:
        """Return confidence, top probability and entropy, with at most one synchronization on an accelerator."""
        signals = self.host_signals()
        if signals is not None:
            return signals
        ((confidence, top, entropy),) = self.signals_tensor().tolist()
        return confidence, top, entropy

    def host_signals(self, *, entropy: bool = True) -> DraftSignals | None:
        """Return the three signals if this needs no read from an accelerator; otherwise None.

        Args:
            entropy: whether the entropy is computed, which takes most of the time; otherwise it is 0.
        """
        if self.draft_signals is not None:
            return self.draft_signals
        on_host, q = self.q.device.type == "cpu", self.listed
        if q is None and on_host and self.q.shape[-1] <= FEW:
            q = self.q.flatten().tolist()
        if q is not None and self.probability != 1.0:
            doubt = -sum([share * math.log(share) for share in q if share]) if entropy else 0.0
            return self.probability, max(q), doubt
        if not on_host:
            return None
        return self.confidence(), self.top_probability(), self.entropy() if entropy else 0.0

    def signals_tensor(self) -> Tensor:
        """Return the three signals (1, 3) on the device of q."""
        token, chosen = (
            torch.tensor([value]).to(self.q.device, non_blocking=True) for value in (self.token, self.probability)
        )
        return signals_tensor(token, chosen, self.q.reshape(1, -1), self.logits.reshape(1, -1))

    @cached_property
    def unwarped(self) -> Tensor:
        """The softmax (M,) of the logits at temperature 1, over the tokens ``kept_tokens`` or over all tokens."""
        logits = self.logits.flatten()
        return torch.softmax((logits if self.kept_tokens is None else logits[self.kept_tokens]).float(), -1)

    @cached_property
    def unwarped_entropy(self) -> float:
        """H of ``unwarped`` in nats."""
        return float(torch.special.entr(self.unwarped).sum())

    def unwarped_of(self, token: int) -> float:
        """Return the probability of ``token`` under the softmax at temperature 1."""
        if self.kept_tokens is None:
            return float(self.unwarped[token]) if token < len(self.unwarped) else 0.0
        index = int(torch.searchsorted(self.kept_tokens, token))
        is_kept = index < len(self.kept_tokens) and int(self.kept_tokens[index]) == token
        return float(self.unwarped[index]) if is_kept else 0.0
