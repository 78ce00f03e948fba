"""What predictors are trained on: examples, batches of inputs, and a summary of the data. Nothing here is Lightning's.

Shapes: M drafted tokens, d the draft's hidden size, V the draft's vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..arms import Arm
from ..checkpoints.provenance import Provenance

ABSENT = torch.empty(0)  # the value of a column that the context of the features does not have
ROUND_TOKENS = 10  # drafted tokens of a round whose outcome is recorded
ACCEPTED, REJECTED, NOT_DRAFTED = 1, 0, -1  # outcomes; a token after a rejected one is rejected


@dataclass(frozen=True)
class Examples:
    """M training examples: drafted tokens, or with the context ``ROUNDS`` rounds. ``data_gen`` fills the columns.

    Attributes:
        accept: (M,) the target's acceptance probability min(1, p(y)/q(y)); of a round, that of its first token.
        states: (M, d) the draft's last hidden state before y (target context) or at y (mixed context); with rounds, the
            target's last hidden state that the newest token of the text was drawn from.
        evidence: (M, 7) numbers of y, see :func:`~.lag_free_head.evidence`; the first is log q(y). Target context.
        tokens: (M,) y. Target context.
        copies: (M,) the token that an n-gram match would continue with, -1 where there is none. Target context.
        places: (M,) number of tokens of the text before the round, from 1. Rounds.
        kept: (M, 10) the outcome of each drafted token: ``ACCEPTED``, ``REJECTED`` or ``NOT_DRAFTED``. Rounds.
        counts: (n,) number of examples of each text; not in batches.
        embedding: (V, d) the draft's output embedding, memory-mapped; set by training.
    """

    accept: Tensor
    states: Tensor
    evidence: Tensor = ABSENT
    tokens: Tensor = ABSENT
    copies: Tensor = ABSENT
    places: Tensor = ABSENT
    kept: Tensor = ABSENT
    counts: Tensor = ABSENT
    embedding: Tensor = ABSENT

    def __len__(self) -> int:
        return len(self.accept)

    @property
    def labels(self) -> Tensor:
        """What is predicted: the outcomes of rounds, else (M,) acceptance probabilities."""
        return self.accept if self.kept is ABSENT else self.kept

    def columns(self) -> dict[str, Tensor]:
        """The tensors that are there, by name, without ``embedding``."""
        columns = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "embedding"}
        return {name: column for name, column in columns.items() if column is not ABSENT}


@dataclass(frozen=True)
class DataSummary:
    """Numbers of the training data that a network or a checkpoint is made of.

    Attributes:
        hidden_size: size of ``Examples.states``, of the copied tokens' embeddings, or of a router's embeddings.
        mean_acceptance: mean of ``Examples.accept``.
        examples: number of training examples.
        arms: the arms of a router.
    """

    hidden_size: int
    mean_acceptance: float = 0.5
    examples: int = 0
    arms: tuple[Arm, ...] = ()


@dataclass(frozen=True)
class Origin:
    """Where a checkpoint comes from: the fields that every ``Config`` has.

    Attributes:
        provenance, datasets, metrics: as in :class:`~specpilot.controllers.checkpoints.config.ControllerConfig`.
    """

    provenance: Provenance
    datasets: list[str]
    metrics: dict[str, float]


class Batch(NamedTuple):
    """This process's M examples of a batch.

    Attributes:
        inputs: of the network, (M, …) each.
        labels: (M, …) acceptance probabilities or outcomes.
        first: index of the first example in the batch of all processes.
        total: number of examples in the batch of all processes.
        prior: (M,) probabilities that are predicted without the network; None if there are none.
        seed: seed of the step's random numbers.
    """

    inputs: Sequence[Tensor]
    labels: Tensor
    first: int
    total: int
    prior: Tensor | None = None
    seed: int = 0

    def dropout(self, share: float, width: int) -> Tensor | None:
        """(M, width) factors 0 or 1 / (1 - share); None if ``share`` is 0.

        An example has the same factors on one device and on several.
        """
        if not share:
            return None
        device = self.labels.device
        generator = torch.Generator(device)
        generator.manual_seed(self.seed)
        drawn = torch.rand((self.total, width), generator=generator, device=device)
        kept = drawn[self.first : self.first + len(self.labels)] >= share
        return kept / (1 - share)


Parts = Callable[[], Iterator[Any]]
"""Returns the training examples of the first epoch, part by part."""


def network_logits(network: nn.Module, batch: Batch, mask: Tensor | None = None) -> Tensor:
    """(M, …) logits of ``network`` for a batch.

    Args:
        mask: the network's last input, such as dropout factors; None if it has none.
    """
    logits: Tensor = network(*(inputs.float() for inputs in batch.inputs), *(() if mask is None else (mask,)))
    return logits.float()


def cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the binary cross-entropy of M logits and soft labels (M,), and M; two scalars."""
    losses = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    return losses, losses.new_tensor(len(labels))


def confidence_logits(log_q: Tensor) -> Tensor:
    """(M,) logits of q(y), the draft's confidence, given log q(y) (M,)."""
    confidence = log_q.float().clamp(max=-1e-7)
    return confidence - torch.log(-torch.expm1(confidence))
