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
        token: token id.
        logprob: natural logarithm of its probability.
        top: the most probable tokens at its position and their log probabilities, in descending order.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class DraftedToken:
    """A drafted token and its verification.

    Attributes:
        token: token id.
        p, q: its probability under target and draft, with the request's sampling parameters.
        predicted: the acceptance probability that the length controller predicted; None without a prediction.
        position: position in the draft, from 0; in a tree, the depth.
        accepted: whether the token was accepted.
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
        top_logprobs: number of alternatives of each token to record; None records no log probabilities.
        drafts: whether the drafted tokens of each round are recorded.

    Attributes:
        logprobs: the log probabilities of each generated token.
        drafted: the drafted tokens of each round.
    """

    def __init__(self, top_logprobs: int | None = None, drafts: bool = False) -> None:
        self.top_logprobs, self.drafts = top_logprobs, drafts
        self.logprobs: list[TokenLogprob] = []
        self.drafted: list[list[DraftedToken]] = []

    def verified(self, request: Request, draft: Draft, verdict: Verdict, p: TokenDistribution, logits: Tensor) -> None:
        if self.top_logprobs is not None:
            rows = [0, *(node + 1 for node in verdict.path)]
            self.logprobs += token_logprobs(logits[rows], request.output.rounds[-1].emitted, self.top_logprobs)
        if self.drafts:
            self.drafted.append(self._drafted(request, draft, p))

    def _drafted(self, request: Request, draft: Draft, p: TokenDistribution) -> list[DraftedToken]:
        """Return the record of a verified draft; ``p`` holds the target's distributions."""
        accepted_nodes = request.output.rounds[-1].path
        predicted: list[float] = []
        if isinstance(request.length, RateOptimal) and draft.tokens:
            predicted = request.length.predicted
        records = []
        distributions = [part.part(i, i + 1) for part in draft.distributions for i in range(len(part.probabilities))]
        for node, (token, q) in enumerate(zip(draft.tokens, distributions, strict=True)):
            row = p.part(draft.parents[node] + 1, draft.parents[node] + 2)
            index = node - draft.copied  # index among the draft model's tokens; copied tokens have no prediction
            prediction = predicted[index] if 0 <= index < len(predicted) else None
            position = len(ancestors_of(draft.parents, node))
            records.append(
                DraftedToken(token, row.of([token])[0], q.of([token])[0], prediction, position, node in accepted_nodes)
            )
        return records


def token_logprobs(logits: Tensor, tokens: list[int], top: int) -> list[TokenLogprob]:
    """Return the log probabilities of ``tokens`` under the softmax of the rows of ``logits``, with alternatives.

    Args:
        logits: (N, V) logits.
        tokens: a token for each of the first rows.
        top: number of alternatives.
    """
    logprobs = torch.log_softmax(logits[: len(tokens)].float(), -1)
    chosen = logprobs.gather(1, torch.tensor(tokens, device=logprobs.device).unsqueeze(1)).squeeze(1).tolist()
    values, indices = (part.tolist() for part in logprobs.topk(min(top, logprobs.shape[1])))
    return [
        TokenLogprob(token, logprob, list(zip(best, best_values, strict=True)))
        for token, logprob, best, best_values in zip(tokens, chosen, indices, values, strict=True)
    ]
