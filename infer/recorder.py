"""Optional records of a request's rounds: log probabilities of its tokens, and how its drafts were verified."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..controllers.length import RateOptimal
from ..models.read import ancestors_of
from .core import Draft, Request, RoundHook, TokenDistribution, Verdict


@dataclass(frozen=True)
class TokenLogprob:
    """A generated token under the target's softmax, before temperature, top-k and top-p.

    Attributes:
        logprob: natural logarithm of its probability.
        top: the most probable tokens there and theirs, in descending order.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class DraftedToken:
    """A drafted token and its verification.

    Attributes:
        p, q: its probability under target and draft, both under the request's sampling parameters.
        predicted: the acceptance probability that the length controller predicted; None where it predicts none.
        position: in the draft, from 0; in a tree, its depth.
        accepted: whether it was kept.
    """

    token: int
    p: float
    q: float
    predicted: float | None
    position: int
    accepted: bool


class RoundRecorder(RoundHook):
    """Records the rounds of one request.

    Args:
        top_logprobs: alternatives of each token to keep with its log probability; None keeps no log probabilities.
        drafts: keep what was drafted in each round.

    Attributes:
        logprobs: one for each generated token.
        drafted: a list for each round.
    """

    def __init__(self, top_logprobs: int | None = None, drafts: bool = False) -> None:
        self.top_logprobs, self.drafts = top_logprobs, drafts
        self.logprobs: list[TokenLogprob] = []
        self.drafted: list[list[DraftedToken]] = []

    def verified(self, request: Request, draft: Draft, verdict: Verdict, p: TokenDistribution, logits: Tensor) -> None:
        if self.top_logprobs is not None:
            rows = [0, *(node + 1 for node in verdict.path)]
            self.logprobs += logprobs_of(logits[rows], request.output.rounds[-1].emitted, self.top_logprobs)
        if self.drafts:
            self.drafted.append(self._drafted(request, draft, p))

    def _drafted(self, request: Request, draft: Draft, p: TokenDistribution) -> list[DraftedToken]:
        kept = request.output.rounds[-1].path
        predicted: list[float] = []
        if isinstance(request.length, RateOptimal) and draft.tokens:
            predicted = request.length.predicted
        found = []
        each = [part.part(i, i + 1) for part in draft.distributions for i in range(len(part.probabilities))]
        for node, (token, q) in enumerate(zip(draft.tokens, each, strict=True)):
            row = p.part(draft.parents[node] + 1, draft.parents[node] + 2)
            place = node - draft.copied  # among the model's own tokens, which alone are predicted
            prediction = predicted[place] if 0 <= place < len(predicted) else None
            position = len(ancestors_of(draft.parents, node))
            found.append(DraftedToken(token, row.of([token])[0], q.of([token])[0], prediction, position, node in kept))
        return found


def logprobs_of(logits: Tensor, tokens: list[int], top: int) -> list[TokenLogprob]:
    """Log probabilities of ``tokens`` under the softmax of the rows of ``logits`` (N, V), and the ``top`` best."""
    logprobs = torch.log_softmax(logits[: len(tokens)].float(), -1)
    chosen = logprobs.gather(1, torch.tensor(tokens, device=logprobs.device).unsqueeze(1)).squeeze(1).tolist()
    values, indices = (part.tolist() for part in logprobs.topk(min(top, logprobs.shape[1])))
    return [
        TokenLogprob(token, logprob, list(zip(best, best_values, strict=True)))
        for token, logprob, best, best_values in zip(tokens, chosen, indices, values, strict=True)
    ]
