"""The copy head: the probability that the target accepts a copied token, predicted from its match and its embedding.

Prompt lookup (Saxena 2023) copies the continuation of an earlier occurrence of a text's last tokens. The text so far
shows how often it continues like its matches, but not at which places. The head also reads the embeddings of the copied
token and of the token before it, which distinguish a likely continuation from an unlikely one.

Hybrid Verified Decoding (Su et al. 2026, arXiv 2606.01019) predicts the accepted length of a draft from a cache before
the draft is verified, and selects by this length between the draft and that of a model. This head does the same with
``draft="NAME+ngram"`` and ``copies``: the sum of survivals is the predicted length, and :mod:`..length.draft_sources`
compares it with the model's drafts. There are four differences. Acceptance is predicted token by token. Costs decide.
The cache is the text itself. The model may draft after a copy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...common.errors import InputError
from ..checkpoints.config import ControllerConfig
from ..training_options import CopyTrainingOptions
from .calibration import sigmoid
from .ngram_index import MAX_NGRAM, NgramMatch
from .token_head import TokenHead, check_sizes, normalised, tabulate
from .training import Batch, DataSummary, Origin, Parts, cross_entropy, network_logits

if TYPE_CHECKING:
    from .metrics import Metrics

EVIDENCE = 9  # number of results of :func:`copy_evidence`
VECTORS = 2  # the embeddings of the copied token and of the token before it
CLOSEST = 0.01  # minimum distance of a rate from 0 and 1


@dataclass(frozen=True, kw_only=True)
class Config(ControllerConfig):
    """The configuration of a copy head.

    Attributes:
        hidden_size: size d of the target's output embedding.
        width: number of hidden units of the head.
        tokens: number of copied tokens in the training data.
    """

    kind = "copy-head"
    option = "copies"
    title = "Copy head"
    summary = (
        "Predicts the probability that the target model accepts a token copied from the text, as prompt lookup drafts "
        "it. Its inputs are the match that the token was copied after, how often the text has gone on like its matches "
        "so far, and the embeddings of the token and of the one before it. It needs no draft model."
    )

    hidden_size: int
    width: int
    tokens: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self.hidden_size, self.width)

    def module(self) -> CopyHead:
        return CopyHead(self.hidden_size, self.width)

    def usage(self) -> str:
        return f'target="{self.provenance.target}", draft="ngram", copies="path/to/this/folder", cost="auto"'

    def rows(self) -> dict[str, str]:
        return {
            "hidden units": f"{self.width}",
            "trained on": f"{self.tokens:,} copied tokens",
        }


class CopyHead(TokenHead):
    """A :class:`.TokenHead` ℝ^(9 + 2d) → ℝ, where d is the size of the target's output embedding."""

    def __init__(self, hidden_size: int, width: int = 32) -> None:
        super().__init__(EVIDENCE, VECTORS, hidden_size, width)

    def forward(self, evidence: Tensor, copied: Tensor, last: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the logits (…) that the copied token is accepted if all tokens before it are.

        Args:
            evidence: (…, 9) :func:`copy_evidence` of the token.
            copied: (…, d) the target's output embedding of the token.
            last: (…, d) the target's output embedding of the token before it.
            mask: (…, 2d) dropout factors of the two normalised embeddings.
        """
        return self.logit(self.numbers(evidence), torch.cat([normalised(copied), normalised(last)], -1), mask)


def copy_evidence(
    rate: float, recent: float, run: int, match: NgramMatch, *, answer: bool, distance: int
) -> list[float]:
    """Return the numbers (9,) that describe a copied token.

    Args:
        rate: the text's acceptance rate so far after matches of this length.
        recent: the acceptance rate of the latest matches of all lengths.
        run: length of the match, at least 1.
        match: the n-gram match of the token.
        answer: whether the token is copied from the answer instead of the prompt.
        distance: number of tokens from the token's origin to the end of the text, at least 1.
    """
    return [
        _log_odds(rate), _log_odds(recent), float(run), math.log(run),
        match.agrees / MAX_NGRAM, match.matches / MAX_NGRAM, match.share, float(answer), math.log(distance),
    ]  # fmt: skip


def _log_odds(rate: float) -> float:
    """Return the log-odds of ``rate``, which is clipped to [``CLOSEST``, 1 - ``CLOSEST``]."""
    rate = min(max(rate, CLOSEST), 1.0 - CLOSEST)
    return math.log(rate / (1.0 - rate))


class Copies(NamedTuple):
    """M copied tokens.

    Attributes:
        evidence: (M, 9) :func:`copy_evidence` of each token.
        rate: (M,) the prediction without a head: the text's acceptance rate after matches of this length.
        tokens: (M,) the copied tokens.
        last: (M,) the tokens before the copied tokens.
        accepted: (M,) 1 if the text continues with the copied token, else 0.
        embedding: (V, d) the target's output embedding.
    """

    evidence: Tensor
    rate: Tensor
    tokens: Tensor
    last: Tensor
    accepted: Tensor
    embedding: Tensor


def new_network(options: CopyTrainingOptions, data: DataSummary, parts: Parts) -> CopyHead:
    """Return a head with random weights and the scales of the training examples' evidence."""
    head = CopyHead(data.hidden_size, options.width)
    scale, mean = torch.std_mean(torch.cat([copies.evidence for copies in parts()]), 0, correction=0)
    head.standardise(mean, scale)
    return head


def inputs(copies: Copies, options: CopyTrainingOptions) -> tuple[Tensor, ...]:
    """Return the arguments of :meth:`CopyHead.forward`."""
    return copies.evidence, copies.embedding[copies.tokens], copies.embedding[copies.last]


def loss(network: CopyHead, batch: Batch, options: CopyTrainingOptions) -> tuple[Tensor, Tensor]:
    """Return the binary cross-entropy with the labels ``Copies.accepted``, with dropout on the embeddings."""
    mask = batch.dropout(options.dropout, VECTORS * network.hidden_size)
    return cross_entropy(network_logits(network, batch, mask), batch.labels)


def predictions(network: CopyHead, batch: Batch, options: CopyTrainingOptions) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the labels, and the logits of the head and of the text's acceptance rates."""
    assert batch.prior is not None
    return batch.labels, {"head": network_logits(network, batch), "rates": torch.logit(batch.prior, eps=1e-4)}


def metrics(judged: Mapping[str, Metrics], options: CopyTrainingOptions) -> dict[str, float]:
    """Return the metrics of the head, and under ``…_rates`` two metrics of the text's acceptance rates."""
    untrained = judged["rates"].compute()
    return judged["head"].compute() | {f"{name}_rates": untrained[name] for name in ("kl", "auroc")}


def to_checkpoint(options: CopyTrainingOptions, data: DataSummary, origin: Origin) -> Config:
    """Return the configuration of a trained head."""
    return Config(**vars(origin), hidden_size=data.hidden_size, width=options.width, tokens=data.examples)


class CopyPredictor:
    """Predicts acceptance with a copy head. The contributions of tokens are tables, so that a prediction is fast.

    Args:
        head: the head; its current weights are copied.
        embedding: (V, d) the target's output embedding.

    Raises:
        InputError: the embedding has another size, or is offloaded.
    """

    @torch.inference_mode()
    def __init__(self, head: CopyHead, embedding: Tensor) -> None:
        if embedding.is_meta:
            raise InputError(
                "reads the target's output embedding, which is offloaded; load the target without offloading"
            )
        if embedding.shape[1] != head.hidden_size:
            raise InputError(
                f"reads embeddings of size {head.hidden_size}, but this target's embeddings have size "
                f"{embedding.shape[1]}; train a copy head for this target"
            )
        self.head = head.cpu().eval().requires_grad_(False)
        inner = head.inner.weight
        evidence_weight = inner[:, :EVIDENCE] / head.scale  # (width, 9)
        copied, last = inner[:, EVIDENCE:].chunk(VECTORS, dim=1)
        bias = head.inner.bias - evidence_weight @ head.mean
        self.copied: NDArray[np.float32] = tabulate(embedding, copied, bias).numpy()  # (V, width)
        self.last: NDArray[np.float32] = tabulate(embedding, last, torch.zeros(head.width)).numpy()  # (V, width)
        self.evidence: NDArray[np.float32] = evidence_weight.numpy()
        self.weights: NDArray[np.float32] = head.out.weight[0].numpy()
        self.bias = float(head.out.bias)

    def predict(self, evidence: Sequence[float], token: int, last: int) -> float:
        """Return the probability that the target accepts ``token``, copied after ``last``.

        Args:
            evidence: (9,) :func:`~.copy_head.copy_evidence`.
        """
        units = self.evidence @ np.array(evidence, np.float32)
        units += self.copied[token]
        units += self.last[last]
        return sigmoid(float(np.maximum(units, 0.0) @ self.weights) + self.bias)
