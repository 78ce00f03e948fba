"""Training data of predictors: examples, batches of inputs, and a summary of the data, independent of Lightning.

Shapes: M is the number of drafted tokens, d the draft's hidden size, V the draft's vocabulary size.
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

ABSENT = torch.empty(0)  # the value of a column that does not exist for the context of the features
ROUND_TOKENS = 10  # number of drafted tokens of a round whose outcomes are recorded
ACCEPTED, REJECTED, NOT_DRAFTED = 1, 0, -1  # outcomes; tokens after a rejected token are rejected


@dataclass(frozen=True)
class Examples:
    """M training examples, which ``data_gen`` writes: drafted tokens, or with the context ``ROUNDS`` whole rounds.

    Attributes:
        accept: (M,) the acceptance probability min(1, p(y)/q(y)); for a round, that of its first token.
        states: (M, d) the draft's last hidden state before y (target context) or at y (mixed context); for a round, the
            target's last hidden state that the newest token of the text was drawn from.
        evidence: (M, 7) numbers of y, see :func:`~.lag_free_head.evidence`; the first is log q(y). Target context.
        tokens: (M,) y. Target context.
        copies: (M,) the token that an n-gram match would continue with; -1 without a match. Target context.
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
        """The labels: the outcomes (M, 10) of rounds, else the acceptance probabilities (M,)."""
        return self.accept if self.kept is ABSENT else self.kept

    def columns(self) -> dict[str, Tensor]:
        """Return the existing tensors by name, without ``embedding``."""
        columns = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "embedding"}
        return {name: column for name, column in columns.items() if column is not ABSENT}


@dataclass(frozen=True)
class DataSummary:
    """Numbers of the training data that determine a network or a checkpoint.

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
    """The training from which a checkpoint comes: the fields that every ``Config`` has.

    Attributes:
        provenance: the models and sampling parameters of the training.
        datasets: SHA-256 of each training dataset.
        metrics: metrics on held-out prompts.
    """

    provenance: Provenance
    datasets: list[str]
    metrics: dict[str, float]


class Batch(NamedTuple):
    """The M examples of a batch that this process trains on.

    Attributes:
        inputs: the network's inputs, (M, …) each.
        labels: (M, …) acceptance probabilities or outcomes.
        first: index of the first example in the batch of all processes.
        total: number of examples in the batch of all processes.
        prior: (M,) probabilities predicted without the network; None if there are none.
        seed: seed of the step's random numbers.
    """

    inputs: Sequence[Tensor]
    labels: Tensor
    first: int
    total: int
    prior: Tensor | None = None
    seed: int = 0

    def dropout(self, probability: float, width: int) -> Tensor | None:
        """Return dropout factors (M, width), 0 or 1 / (1 - probability); None if ``probability`` is 0.

        An example has the same factors with one device and with several.

        Args:
            probability: probability that a factor is 0.
            width: number of factors of an example.
        """
        if not probability:
            return None
        device = self.labels.device
        generator = torch.Generator(device)
        generator.manual_seed(self.seed)
        drawn = torch.rand((self.total, width), generator=generator, device=device)
        is_kept = drawn[self.first : self.first + len(self.labels)] >= probability
        return is_kept / (1 - probability)


Parts = Callable[[], Iterator[Any]]
"""Returns the training examples of the first epoch, part by part."""


def network_logits(network: nn.Module, batch: Batch, mask: Tensor | None = None) -> Tensor:
    """Return the logits (M, …) of ``network`` for a batch.

    Args:
        network: the network.
        batch: the batch.
        mask: the network's last input, such as dropout factors; None without such an input.
    """
    logits: Tensor = network(*(inputs.float() for inputs in batch.inputs), *(() if mask is None else (mask,)))
    return logits.float()


def cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of the binary cross-entropy of logits (M,) and soft labels (M,), and M, as scalar tensors."""
    losses = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    return losses, losses.new_tensor(len(labels))


def confidence_logits(log_q: Tensor) -> Tensor:
    """Return the logits (M,) of q(y), the draft's confidence, given ``log_q`` (M,)."""
    confidence = log_q.float().clamp(max=-1e-7)
    return confidence - torch.log(-torch.expm1(confidence))
