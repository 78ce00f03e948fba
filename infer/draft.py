"""Drafts: the tokens a draft model proposed and the distributions they were really drawn from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..controllers.length import LengthController, Step
from ..controllers.warp import Warp
from .cache import as_row
from .cached_model import CachedModel
from .chance import Chance


@dataclass(frozen=True)
class Draft:
    """A tree of drafted tokens; a chain is one with a single branch.

    Attributes:
        tokens: one for each node; children come after their parents, siblings in the order they were drawn.
        q: (N, V) row i is the warped distribution token i was drawn from (its first sibling's, if without replacement).
        parents: the node above each, -1 for children of the root.
        n_forwards: forwards of the draft model it took.
    """

    tokens: list[int]
    q: Tensor
    parents: list[int]
    n_forwards: int

    @classmethod
    def chain(cls, tokens: list[int], q: Tensor) -> Draft:
        """y_1 … y_K, each after the one before; a forward each."""
        return cls(tokens, q, list(range(-1, len(tokens) - 1)), len(tokens))

    def pick(self, distributions: Tensor) -> Tensor:
        """(N,) what row i of ``distributions`` (N or more, V) gives token i."""
        index = torch.tensor(self.tokens, dtype=torch.long, device=distributions.device).unsqueeze(1)
        return distributions[: len(self.tokens)].gather(1, index).squeeze(1)


NO_DRAFT = Draft.chain([], torch.empty(0))


def draft_chain(
    model: CachedModel,
    unread: list[int],
    controller: LengthController,
    warp: Warp,
    chance: Chance,
    *,
    vocab_size: int,
    longest: int,
    stop_tokens: frozenset[int],
) -> Draft:
    """Draft token by token until the controller stops, ``longest`` is reached, or a stop token is drawn.

    Args:
        model: the draft model; its cache holds all but the ``unread`` last tokens of the text so far.
        unread: tokens to read first, at least one.
        vocab_size: the target's vocabulary size V, which ``q`` is brought to.
    """
    tokens: list[int] = []
    drawn_from: list[tuple[Tensor, Tensor | None]] = []
    drafting = longest > 0 and controller.start_round()
    while drafting:
        logits, hidden = model.forward(as_row(unread, model.device), keep=1)
        logits = logits[0, -1]  # (V,)
        if len(logits) > vocab_size:  # models of one tokenizer may pad their rows apart
            logits = logits[:vocab_size]
        q, likely = warp.top(logits)  # (k,)
        choice = chance.sample(q)
        token = choice if likely is None else int(likely[choice])
        tokens.append(token)
        drawn_from.append((q, likely))
        unread = [token]
        drafting = (
            len(tokens) < longest
            and token not in stop_tokens
            and controller.observe(Step(len(tokens), token, q, choice, logits, hidden[0, -1]))
        )
    return Draft.chain(tokens, dense(drawn_from, vocab_size)) if tokens else NO_DRAFT


def dense(drawn_from: list[tuple[Tensor, Tensor | None]], vocab_size: int) -> Tensor:
    """(K, V) from K pairs of probabilities (k,) and their tokens (k,), None where they are the first k in order."""
    q = torch.stack([probabilities for probabilities, _ in drawn_from])
    dense = q.new_zeros(len(q), vocab_size)
    tokens = [likely for _, likely in drawn_from if likely is not None]
    if not tokens:
        dense[:, : q.shape[1]] = q
        return dense
    return dense.scatter_(1, torch.stack(tokens), q)
