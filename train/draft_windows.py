"""Windows of text, and the target's states on them, for the training of drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from ..data_gen.documents import Document


class TargetStates(NamedTuple):
    """What is stored of a target's forward over B windows of T tokens.

    Attributes:
        states: (B, T, d) last hidden states, after the final norm, in bfloat16.
        log_normaliser: (B, T) log Σ_v exp(z_v) of the logits z over all V tokens.
        best: (B, T) the most probable tokens.
    """

    states: Tensor
    log_normaliser: Tensor
    best: Tensor


@dataclass(frozen=True)
class Windows:
    """B windows of T tokens.

    Attributes:
        tokens: (B, T).
        learned: (B, T) whether the token after each is one that the draft is to propose.
        target: the target's states, if they are stored.
    """

    tokens: Tensor
    learned: Tensor
    target: TargetStates | None = None

    def take(self, rows: Tensor) -> Windows:
        return Windows(self.tokens[rows], self.learned[rows])

    def to(self, device: torch.device, **_: object) -> Self:
        target = None if self.target is None else TargetStates(*(value.to(device) for value in self.target))
        return type(self)(self.tokens.to(device), self.learned.to(device), target)


def pack(documents: Sequence[Document], window: int) -> Windows:
    """The documents one after another, cut into windows; the last one is filled with tokens that nothing follows."""
    tokens: list[int] = []
    learned: list[bool] = []
    for document in documents:
        count, start = len(document.tokens), max(1, document.start)
        tokens += document.tokens
        learned += [place + 1 >= start for place in range(count - 1)] + [False]
    missing = -len(tokens) % window
    shape = -1, window
    return Windows(
        torch.tensor(tokens + [0] * missing, dtype=torch.int32).view(shape),
        torch.tensor(learned + [False] * missing).view(shape),
    )
