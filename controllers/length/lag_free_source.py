"""Probabilities from a lag-free head: of the token in hand, and of the one after it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..calibration import sigmoid
from ..lag_free_head import INPUTS, VECTORS, LagFreeHead, all_evidence, copied_embeddings, copies_of, evidence
from ..lookup import NOTHING, Recalled
from ..origin import Origin
from ..said import Said
from ..warp import Warp
from .base import Step
from .source import AcceptanceSource, Judged

Array = NDArray[Any]
EPSILON = 1e-5  # of torch's layer norm


class LagFreeSource(AcceptanceSource):
    """A lag-free head and the embedding it reads.

    One token is judged in numpy, on the CPU: its operations on so few numbers take a fraction of what torch's calls do,
    and beside a small draft model that is the difference between worth it and not (docs/performance.md).

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
        inner, bias, out, self.shift = (
            tensor.detach().float().cpu().numpy()
            for tensor in (head.inner.weight, head.inner.bias, head.out.weight, head.out.bias)
        )
        # With z half of what goes into it, SiLU is z·(1 + tanh z); so all weights are halved.
        inner, bias, self.out = inner / 2, bias / 2, out
        means, scales = head.mean.cpu().numpy(), head.scale.cpu().numpy()
        # (width, 7), with the standardization in it; (width, d) each
        self.of_evidence = inner[:, :INPUTS] / scales
        self.bias = bias - self.of_evidence @ means
        of_hidden, of_token, of_copy = (_centred(part) for part in np.split(inner[:, INPUTS:], VECTORS, axis=1))
        # With a row that takes the mean, which layer norm needs too
        self.of_hidden = np.concatenate([of_hidden, np.full_like(of_hidden[:1], 1 / of_hidden.shape[1])])
        self.of_token, self.of_copy = of_token, of_copy
        # What a token's embedding comes to, once it has been asked for
        self.tokens: dict[int, Array] = {}
        self.copies: dict[int, Array] = {}

    def check_warp(self, warp: Warp) -> None:
        if self.origin is not None:
            self.origin.check_warp(warp)

    def judge(self, step: Step) -> Judged:
        recalled = step.recall() if self.looks_up else NOTHING
        state = _flat(step.hidden)
        products = self.of_hidden @ state
        z = products[:-1] / _deviation(state, float(products[-1]))
        z += self.of_evidence @ np.array(evidence(step.says(), recalled, step.token), dtype=np.float32)
        z += self._of_token(step.token)
        if recalled.copy is not None and recalled.copy < len(self.embedding):
            z += self._of_copy(recalled.copy)
        active = np.tanh(z)
        active += 1.0
        active *= z
        kept, then = (self.out @ active + self.shift).tolist()
        return Judged(sigmoid(kept), sigmoid(then) if self.foresees else None)

    def _of_token(self, token: int) -> Array:
        term = self.tokens.get(token)
        if term is None:
            term = self.tokens[token] = self.of_token @ self._embedded(token) + self.bias
        return term

    def _of_copy(self, token: int) -> Array:
        term = self.copies.get(token)
        if term is None:
            term = self.copies[token] = self.of_copy @ self._embedded(token)
        return term

    def _embedded(self, token: int) -> Array:
        """(d,) a token's embedding, its variance 1."""
        x = _flat(self.embedding[token])
        scaled: Array = x / _deviation(x, float(x.mean()))
        return scaled

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


def _centred(weights: Array) -> Array:
    """Weights (width, d) that give for any vector what ``weights`` give for it less its mean."""
    centred: Array = weights - weights.mean(axis=1, keepdims=True)
    return centred


def _flat(vector: Tensor) -> Array:
    """(d,) of a vector (…, d), all other sizes 1."""
    flat: Array = vector.float().cpu().numpy().reshape(-1)
    return flat


def _deviation(x: Array, mean: float) -> float:
    """Standard deviation of ``x`` (d,) as layer norm has it."""
    return math.sqrt(max(0.0, float(x @ x) / len(x) - mean * mean) + EPSILON)
