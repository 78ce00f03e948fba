"""The acceptance predictor of a lag-free head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from operator import add, mul
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ..sampling import SamplingParams
from .calibration import sigmoid
from .draft_signals import DraftSignals
from .feature_model import features
from .lag_free_head import ENTROPY, INPUTS, VECTORS, LagFreeHead, all_evidence, copied_embeddings, copies_of
from .ngram_index import MAX_NGRAM, NOTHING, NgramMatch
from .predictor import AcceptancePredictor

ROWS = 8192  # of the embedding that are read at once

if TYPE_CHECKING:
    from ..length.base import Step


class LagFreePredictor(AcceptancePredictor):
    """A lag-free head and the embedding it reads.

    For one token a tensor operation takes longer than what it computes, and its code is rarely in the processor's
    caches. What depends on tokens alone is therefore tabulated when the first prediction is made, (V, width) numbers
    for the drafted token and for the copied one; the draft's state takes two operations and one read by the host, which
    on an accelerator is the only one; the rest is Python floats, about 0.3 µs for each hidden unit.

    Args:
        head: the head; its weights are taken as they are now.
        embedding: (V, d) the draft's output embedding.
        mean: mean acceptance in the data.
        uses_ngrams: whether it was trained on n-gram matches.
        samplings: sampling parameters of the data, if they are known.
    """

    lag = 0

    def __init__(
        self,
        head: LagFreeHead,
        embedding: Tensor,
        *,
        mean: float = 0.5,
        uses_ngrams: bool = True,
        samplings: tuple[SamplingParams, ...] = (),
    ) -> None:
        self.head = head.eval().requires_grad_(False)
        self.embedding, self.mean, self.samplings = embedding.detach(), mean, samplings
        self.uses_ngrams, self.width = uses_ngrams, head.width
        of_state, self.of_token, self.of_copy = head.inner.weight.detach()[:, INPUTS:].chunk(VECTORS, dim=1)
        self.of_state = (of_state / head.state_scale).t().contiguous()  # (d, width)

    @cached_property
    def tables(self) -> Tables:
        """What tokens and n-gram matches add to the hidden units."""
        return Tables.of(self.head, self.embedding, self.of_token, self.of_copy)

    def predict(self, step: Step) -> float:
        ngram_match = step.match() if self.uses_ngrams else NOTHING
        added = torch.mm(step.hidden.float(), self.of_state)  # (1, width)
        signals = step.host_signals(entropy=False)
        if signals is None:
            *hidden, confidence, top, entropy = torch.cat([added[0], step.signals_tensor()]).tolist()
            signals = confidence, top, entropy
        else:
            (hidden,) = added.tolist()
        return self._finish(hidden, signals, ngram_match, step.token)

    def _finish(self, hidden: list[float], signals: DraftSignals, ngram_match: NgramMatch, token: int) -> float:
        """Given what the draft's state adds to the hidden units, (width,)."""
        tables, width = self.tables, self.width
        log_q, doubt, _ = features(*signals)
        agrees, matches, share, copy = ngram_match
        of_match = tables.matches[agrees, matches, 0 if copy is None else 1 if copy == token else -1]
        of_token = tables.tokens[token * width : (token + 1) * width].tolist()
        units = [
            x + y + z + a * log_q + b * doubt + c * share
            for x, y, z, a, b, c in zip(hidden, of_token, of_match, *tables.numbers, strict=True)
        ]
        if copy is not None and copy < tables.size:
            units = [*map(add, units, tables.copies[copy * width : (copy + 1) * width].tolist())]
        active = [unit if unit > 0.0 else 0.0 for unit in units]
        return sigmoid(sum(map(mul, tables.out, active), tables.bias))

    @torch.inference_mode()
    def predict_all(
        self, signals: Sequence[DraftSignals], ngram_match: Sequence[NgramMatch], hidden: Tensor, tokens: Sequence[int]
    ) -> Tensor:
        """(N,) probabilities of N tokens, on the device of the head and the embedding.

        Args:
            hidden: (N, d) the states before the tokens, which may be on another device.
        """
        if not self.uses_ngrams:
            ngram_match = [NOTHING] * len(ngram_match)
        device = self.embedding.device
        copied = copied_embeddings(self.embedding, copies_of(ngram_match))
        numbers = all_evidence(signals, ngram_match, tokens).to(device)
        embedded = self.embedding[torch.tensor(tokens, device=device)]
        return torch.sigmoid(self.head(numbers, hidden.to(device), embedded, copied))


@dataclass(frozen=True)
class Tables:
    """What the inputs of a head that are not the draft's state add to its ``width`` hidden units, on the host.

    Attributes:
        size: V of the draft.
        tokens: (V·width,) of the drafted token, with the bias.
        copies: (V·width,) of the token that an n-gram match would continue with.
        matches: (width,) of an n-gram match, by ``agrees``, ``matches`` and whether the token is the match's: 1, -1, or
            0 where nothing matches.
        numbers: (3, width) weights of log q(y), log(1 - max q) and the match's share.
        out: (width,) weights of the hidden units in the logit.
        bias: of the logit.
    """

    size: int
    tokens: memoryview
    copies: memoryview
    matches: dict[tuple[int, int, int], list[float]]
    numbers: list[list[float]]
    out: list[float]
    bias: float

    @classmethod
    @torch.inference_mode()
    def of(cls, head: LagFreeHead, embedding: Tensor, of_token: Tensor, of_copy: Tensor) -> Tables:
        # (width, 7), with the standardisation in it
        of_evidence = (head.inner.weight[:, :INPUTS] / head.scale).cpu()
        of_evidence[:, ENTROPY] = 0.0
        bias = head.inner.bias.cpu() - of_evidence @ head.mean.cpu()
        log_q, doubt, _, agrees, matches, share, is_copy = of_evidence.unbind(1)
        return cls(
            len(embedding),
            _tabulate(embedding, of_token, bias),
            _tabulate(embedding, of_copy, torch.zeros_like(bias)),
            {
                (m, n, sign): (agrees * m / MAX_NGRAM + matches * n / MAX_NGRAM + is_copy * sign).tolist()
                for m, n, sign in product(range(MAX_NGRAM + 1), range(MAX_NGRAM + 1), (-1, 0, 1))
            },
            torch.stack([log_q, doubt, share]).tolist(),
            head.out.weight[0].tolist(),
            float(head.out.bias),
        )


def _tabulate(embedding: Tensor, weight: Tensor, bias: Tensor) -> memoryview:
    """(V·width,) ``weight`` (width, d) times every normalised row of ``embedding`` (V, d), plus ``bias`` (width,)."""
    parts = [
        F.linear(F.layer_norm(rows.float(), rows.shape[-1:]), weight).cpu() for rows in torch.split(embedding, ROWS)
    ]
    return (torch.cat(parts) + bias).flatten().numpy().data
