"""Probabilities from a lag-free head: of the token in hand, and of the one after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ..sampling import SamplingParams
from .calibration import sigmoid
from .draft_signals import DraftSignals, signals_tensor
from .lag_free_head import (
    INPUTS,
    VECTORS,
    LagFreeHead,
    all_evidence,
    copied_embeddings,
    copies_of,
    evidence,
    feature_tensor,
    text_evidence,
)
from .ngram_index import NOTHING, NgramMatch
from .predictor import AcceptancePredictor, Prediction

if TYPE_CHECKING:
    from ..length.base import Step


class LagFreePredictor(AcceptancePredictor):
    """A lag-free head and the embedding it reads.

    For one token the modules around the tensors take longer than what they compute, and what a token's embedding comes
    to is remembered: (width,) floats for every token that came up. On the CPU the few numbers of the evidence are
    worked out as Python floats. On an accelerator that would stall it: there they stay tensors, and a judgement takes
    one read by the host.

    Args:
        head: the head; its weights are taken as they are now.
        embedding: (V, d) the draft's output embedding.
        mean: mean acceptance in the data.
        predicts_next: whether the head was taught what comes after the token in hand.
        uses_ngrams: whether it was taught what the text before says of a token.
        sampling: sampling parameters of the data, if they are known.
    """

    lag = 0

    def __init__(
        self,
        head: LagFreeHead,
        embedding: Tensor,
        *,
        mean: float = 0.5,
        predicts_next: bool = True,
        uses_ngrams: bool = True,
        sampling: SamplingParams | None = None,
    ) -> None:
        self.head = head.eval().requires_grad_(False)
        self.embedding, self.mean, self.sampling = embedding.detach(), mean, sampling
        self.predicts_next, self.uses_ngrams = predicts_next, uses_ngrams
        inner, bias = head.inner.weight.detach(), head.inner.bias.detach()
        # (width, 7), with the standardization in it; (width, d) each
        self.of_evidence = inner[:, :INPUTS] / head.scale
        self.bias = bias - self.of_evidence @ head.mean
        self.of_hidden, self.of_token, self.of_copy = (
            part.contiguous() for part in inner[:, INPUTS:].chunk(VECTORS, dim=1)
        )
        self.out = head.out.weight.detach(), head.out.bias.detach()
        self.shape = [head.hidden_size]
        self.on_host = self.bias.device.type == "cpu"
        self.tokens: dict[int, Tensor] = {}
        self.copies: dict[int, Tensor] = {}

    def predict(self, step: Step) -> Prediction:
        ngram_match = step.match() if self.uses_ngrams else NOTHING
        if self.on_host:
            numbers = torch.tensor(evidence(step.signals(), ngram_match, step.token))
        else:
            numbers = self._evidence_on_device(step, ngram_match)
        z = F.linear(self._normal(step.hidden), self.of_hidden, self._token_term(step.token))
        z = z + F.linear(numbers, self.of_evidence)
        if ngram_match.copy is not None and ngram_match.copy < len(self.embedding):
            z = z + self._copy_term(ngram_match.copy)
        kept, then = F.linear(F.silu(z), *self.out).flatten().tolist()
        return Prediction(sigmoid(kept), sigmoid(then) if self.predicts_next else None)

    def _evidence_on_device(self, step: Step, ngram_match: NgramMatch) -> Tensor:
        """(7,) as :func:`~specpilot.controllers.acceptance.lag_free_head.evidence`, without a read by the host."""
        # One copy to the device for all that the host knows; it does not wait for the device's work.
        known = torch.tensor([step.probability, *text_evidence(ngram_match, step.token)])
        known = known.to(self.bias.device, non_blocking=True)
        chosen = None if step.probability == 1.0 else known[0]
        return torch.cat([feature_tensor(signals_tensor(step.token, chosen, step.q, step.logits)), known[1:]])

    def _token_term(self, token: int) -> Tensor:
        term = self.tokens.get(token)
        if term is None:
            term = self.tokens[token] = F.linear(self._normal(self.embedding[token]), self.of_token, self.bias)
        return term

    def _copy_term(self, token: int) -> Tensor:
        term = self.copies.get(token)
        if term is None:
            term = self.copies[token] = F.linear(self._normal(self.embedding[token]), self.of_copy)
        return term

    def _normal(self, vector: Tensor) -> Tensor:
        return F.layer_norm(vector.float(), self.shape)

    @torch.inference_mode()
    def predict_all(
        self, signals: Sequence[DraftSignals], ngram_match: Sequence[NgramMatch], hidden: Tensor, tokens: Sequence[int]
    ) -> list[Prediction]:
        """Judge N tokens at once, given the states (N, d) before them, which may be on another device."""
        probabilities = self.probabilities(signals, ngram_match, hidden, tokens).tolist()
        return [Prediction(kept, then if self.predicts_next else None) for kept, then in probabilities]

    def probabilities(
        self, signals: Sequence[DraftSignals], ngram_match: Sequence[NgramMatch], hidden: Tensor, tokens: Sequence[int]
    ) -> Tensor:
        """(N, 2) the judgements of :meth:`predict_all`, on the device of the head and the embedding."""
        if not self.uses_ngrams:
            ngram_match = [NOTHING] * len(ngram_match)
        device = self.embedding.device
        copied = copied_embeddings(self.embedding, copies_of(ngram_match))
        numbers = all_evidence(signals, ngram_match, tokens).to(device)
        embedded = self.embedding[torch.tensor(tokens, device=device)]
        return torch.sigmoid(self.head(numbers, hidden.to(device), embedded, copied))
