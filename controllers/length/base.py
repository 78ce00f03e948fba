"""What a length controller is: it sees each drafted token and answers *draft on* or *stop and verify*."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from ..acceptance.draft_signals import DraftSignals, signals_tensor
from ..acceptance.ngram_index import NgramMatch
from ..sampling import SamplingParams

MAX_DRAFT = 20  # no controller drafts more in one round
FEW = 128  # the longest distribution that is handled as a list


@dataclass(frozen=True)
class Step:
    """One drafted token, as the controller sees it.

    Attributes:
        index: 1 for the first token of the round.
        token: the token y_i.
        probability: q(y_i), of the warped draft distribution y_i was drawn from.
        q: (…, k) that distribution, without the tokens the sampling rules out.
        logits: (…, V) the draft's logits behind it.
        hidden: (1, d) the draft's last hidden state at the token *before* y_i (y_i itself has not been read yet).
        match: the n-gram match of y_i in the text before it; found when it is called, as long as the round drafts.
        listed: q as a list, where the sampler has it: no tensor operation is worth its call on so few numbers.

    All dimensions before the last have size 1; taking them off would be an operation more for every token.
    """

    index: int
    token: int
    probability: float
    q: Tensor
    logits: Tensor
    hidden: Tensor
    match: Callable[[], NgramMatch]
    listed: list[float] | None = field(default=None, kw_only=True)

    def confidence(self) -> float:
        """q(y_i); at temperature 0, where the warped q is a point mass, the unwarped softmax at y_i."""
        return float(self._unwarped[..., self.token]) if self.probability == 1.0 else self.probability

    def top_probability(self) -> float:
        """max q; at temperature 0, as in :meth:`confidence`, of the unwarped softmax."""
        probability = float(self.q.max())
        return float(self._unwarped.max()) if probability == 1.0 else probability

    def entropy(self) -> float:
        """H(q) in nats; at temperature 0, as in :meth:`confidence`, of the unwarped softmax."""
        q = self._unwarped if self.probability == 1.0 else self.q
        return float(torch.special.entr(q).sum())

    def signals(self) -> DraftSignals:
        """All three; on an accelerator with one read by the host at most."""
        known = self.listed_signals()
        if known is not None:
            return known
        confidence, top, entropy = self.signals_tensor().tolist()
        return confidence, top, entropy

    def listed_signals(self, *, entropy: bool = True) -> DraftSignals | None:
        """All three from the list of q; None where they are those of the unwarped softmax, or there is no list.

        Args:
            entropy: whether it is asked for; it takes most of the time, and is 0 if not.
        """
        q = self.listed
        if q is None and self.q.device.type == "cpu" and self.q.shape[-1] <= FEW:
            q = self.q.flatten().tolist()
        if q is None or self.probability == 1.0:
            return None
        doubt = -sum([share * math.log(share) for share in q if share]) if entropy else 0.0
        return self.probability, max(q), doubt

    def signals_tensor(self) -> Tensor:
        """(3,) all three, on the device of q."""
        chosen = None
        if self.probability != 1.0:
            chosen = torch.tensor(self.probability).to(self.q.device, non_blocking=True)
        return signals_tensor(self.token, chosen, self.q, self.logits)

    @cached_property
    def _unwarped(self) -> Tensor:
        return torch.softmax(self.logits.float(), -1)


class LengthController(ABC):
    """Decides how many tokens a round drafts. EOS, the token budget and ``MAX_DRAFT`` stop any controller.

    The token in hand is verified even when the answer is stop: the forward that proposed it is already paid for.
    """

    def check_sampling(self, sampling: SamplingParams) -> None:  # noqa: B027 — rules fit any sampling
        """Called with the sampling of every generation; a learned controller warns if it was trained under another."""

    def start_text(self) -> None:  # noqa: B027 — most rules remember nothing between rounds
        """Called before the first round of a generation: forget the one before."""

    def shared_by(self, rows: int) -> None:  # noqa: B027 — most rules do not ask
        """Called before every round with the number of requests that share its forwards, this one included."""

    @abstractmethod
    def start_round(self) -> bool:
        """Reset for a new round; False drafts nothing (a plain step of the target)."""

    @abstractmethod
    def observe(self, step: Step) -> bool:
        """Whether to draft another token after this one."""

    def end_round(self, drafted: int, accepted: int) -> None:  # noqa: B027 — most rules do not ask
        """Called after every verification of a draft: of ``drafted`` tokens, the first ``accepted`` were kept."""

    def timed(self, drafted: int, seconds: float) -> None:  # noqa: B027 — most rules do not ask
        """Called after every round with its wall time; of a batch's round, with its longest draft, for one row."""
