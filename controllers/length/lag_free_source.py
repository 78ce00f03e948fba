"""Probabilities from a lag-free head: of the token in hand, and of the one after it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..calibration import sigmoid
from ..lag_free_head import INPUTS, VECTORS, LagFreeHead, all_evidence, copied_embeddings, copies_of, evidence
from ..lookup import NOTHING, Recalled
from ..origin import Origin
from ..said import Said
from ..sampling import SamplingParams
from .base import Step
from .source import AcceptanceSource, Judged


class LagFreeSource(AcceptanceSource):
    """A lag-free head and the embedding it reads.

    For one token the modules around the tensors take longer than what they compute, and what a token's embedding comes
    to is remembered: (width,) floats for every token that came up.

    Args:
        head: the head; its weights are taken as they are now.
        embedding: (V, d) the draft's output embedding.
        mean: mean acceptance in the data.
        foresees: whether the head was taught what comes after the token in hand.
        looks_up: whether it was taught what the text before says of a token.
        origin: what the head was trained for, if that is known.
    """

    late = 0

    def __init__(
        self,
        head: LagFreeHead,
        embedding: Tensor,
        *,
        mean: float = 0.5,
        foresees: bool = True,
        looks_up: bool = True,
        origin: Origin | None = None,
    ) -> None:
        self.head = head.eval().requires_grad_(False)
        self.embedding, self.mean, self.origin = embedding.detach(), mean, origin
        self.foresees, self.looks_up = foresees, looks_up
        inner, bias = head.inner.weight.detach(), head.inner.bias.detach()
        # (width, 7), with the standardization in it; (width, d) each
        self.of_evidence = inner[:, :INPUTS] / head.scale
        self.bias = bias - self.of_evidence @ head.mean
        self.of_hidden, self.of_token, self.of_copy = (
            part.contiguous() for part in inner[:, INPUTS:].chunk(VECTORS, dim=1)
        )
        self.out = head.out.weight.detach(), head.out.bias.detach()
        self.shape = [head.hidden_size]
        self.tokens: dict[int, Tensor] = {}
        self.copies: dict[int, Tensor] = {}

    def check_warp(self, warp: SamplingParams) -> None:
        if self.origin is not None:
            self.origin.check_warp(warp)

    def judge(self, step: Step) -> Judged:
        recalled = step.recall() if self.looks_up else NOTHING
        numbers = torch.tensor(evidence(step.says(), recalled, step.token), device=self.bias.device)
        z = F.linear(self._normal(step.hidden), self.of_hidden, self._token_term(step.token))
        z = z + F.linear(numbers, self.of_evidence)
        if recalled.copy is not None and recalled.copy < len(self.embedding):
            z = z + self._copy_term(recalled.copy)
        kept, then = F.linear(F.silu(z), *self.out).flatten().tolist()
        return Judged(sigmoid(kept), sigmoid(then) if self.foresees else None)

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
    def judge_all(
        self, said: Sequence[Said], recalled: Sequence[Recalled], hidden: Tensor, tokens: Sequence[int]
    ) -> list[Judged]:
        """Judge N tokens at once, given the states (N, d) before them."""
        if not self.looks_up:
            recalled = [NOTHING] * len(recalled)
        copied = copied_embeddings(self.embedding, copies_of(recalled))
        numbers = all_evidence(said, recalled, tokens)
        chances = torch.sigmoid(self.head(numbers, hidden, self.embedding[torch.tensor(tokens)], copied)).tolist()
        return [Judged(kept, then if self.foresees else None) for kept, then in chances]
