"""One drafted token and the distribution it was drawn from: what predictors and length controllers are given."""

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
    """(N, 3) draft signals of N tokens, as of :class:`Step`, computed on the device without synchronization.

    Args:
        tokens: (N,) y of each.
        chosen: (N,) its q(y).
        q: (N, k) the distributions, without the tokens excluded by sampling.
        logits: (N, V) the draft's logits.
    """
    unwarped = torch.softmax(logits.float(), -1)
    certain, top = chosen == 1.0, q.max(-1).values
    return torch.stack([
        torch.where(certain, unwarped.gather(-1, tokens.unsqueeze(-1)).squeeze(-1), chosen),
        torch.where(top == 1.0, unwarped.max(-1).values, top),
        torch.where(certain, torch.special.entr(unwarped).sum(-1), torch.special.entr(q).sum(-1)),
    ], -1)  # fmt: skip


def draft_signals(chosen: list[float], tokens: list[int], q: Tensor, logits: Tensor) -> list[DraftSignals]:
    """The draft signals of N tokens, read by the host; the arguments are those of :func:`signals_tensor`."""
    y, q_y = torch.tensor(tokens, device=q.device), torch.tensor(chosen, dtype=q.dtype, device=q.device)
    return [(confidence, top, entropy) for confidence, top, entropy in signals_tensor(y, q_y, q, logits).tolist()]


FEW = 128  # distributions up to this size are handled as lists


@dataclass(frozen=True)
class Step:
    """One drafted token, the input of a controller.

    Attributes:
        index: position in the draft, from 1.
        token: the token y_i.
        probability: q(y_i) in the draft distribution that y_i was drawn from.
        q: (…, k) that distribution, without the tokens excluded by sampling.
        logits: (…, V) the draft's logits.
        hidden: (1, d) the draft's last hidden state at the token *before* y_i; y_i has not been read yet.
        match: returns the n-gram match of y_i; computed when called, and only valid during the drafting of the round.
        listed: q as a list if available, which is faster than tensor operations.
        kept: (M,) the only tokens with finite logits, ascending; None if all may have them.
        draft_signals: the draft signals, where the host has read them together with the token.
        state_values: what the controller's predictor computes of ``hidden``, read together with the token as well.

    All dimensions before the last have size 1; they are kept to save an operation per token.
    """

    index: int
    token: int
    probability: float
    q: Tensor
    logits: Tensor
    hidden: Tensor
    match: Callable[[], NgramMatch]
    listed: list[float] | None = field(default=None, kw_only=True)
    kept: Tensor | None = field(default=None, kw_only=True)
    draft_signals: DraftSignals | None = field(default=None, kw_only=True)
    state_values: list[float] | None = field(default=None, kw_only=True)

    def confidence(self) -> float:
        """q(y_i); at temperature 0, where q is a point mass, the softmax at temperature 1."""
        if self.draft_signals is not None:
            return self.draft_signals[0]
        return self.unwarped_of(self.token) if self.probability == 1.0 else self.probability

    def top_probability(self) -> float:
        """max q; at temperature 0 as in :meth:`confidence`."""
        if self.draft_signals is not None:
            return self.draft_signals[1]
        probability = float(self.q.max())
        return float(self.unwarped.max()) if probability == 1.0 else probability

    def entropy(self) -> float:
        """H(q) in nats; at temperature 0 as in :meth:`confidence`."""
        if self.draft_signals is not None:
            return self.draft_signals[2]
        return self.unwarped_entropy if self.probability == 1.0 else float(torch.special.entr(self.q).sum())

    def signals(self) -> DraftSignals:
        """Confidence, top probability and entropy, with at most one synchronization on an accelerator."""
        known = self.host_signals()
        if known is not None:
            return known
        ((confidence, top, entropy),) = self.signals_tensor().tolist()
        return confidence, top, entropy

    def host_signals(self, *, entropy: bool = True) -> DraftSignals | None:
        """All three by the host; None if that needs a read from an accelerator.

        Args:
            entropy: whether to compute the entropy, which takes most of the time; otherwise it is 0.
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
        """(1, 3) all three, on the device of q."""
        token, chosen = (
            torch.tensor([value]).to(self.q.device, non_blocking=True) for value in (self.token, self.probability)
        )
        return signals_tensor(token, chosen, self.q.reshape(1, -1), self.logits.reshape(1, -1))

    @cached_property
    def unwarped(self) -> Tensor:
        """(M,) the softmax of the logits at temperature 1, of the tokens ``kept`` or of all."""
        logits = self.logits.flatten()
        return torch.softmax((logits if self.kept is None else logits[self.kept]).float(), -1)

    @cached_property
    def unwarped_entropy(self) -> float:
        """H of ``unwarped`` in nats."""
        return float(torch.special.entr(self.unwarped).sum())

    def unwarped_of(self, token: int) -> float:
        """The softmax at temperature 1 of ``token``."""
        if self.kept is None:
            return float(self.unwarped[token]) if token < len(self.unwarped) else 0.0
        place = int(torch.searchsorted(self.kept, token))
        known = place < len(self.kept) and int(self.kept[place]) == token
        return float(self.unwarped[place]) if known else 0.0
