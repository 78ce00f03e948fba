"""A draft: the tokens a draft model proposed and the distributions they were really drawn from."""

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
    """A chain of drafted tokens.

    Attributes:
        tokens: y_1 … y_K.
        q: (K, V) row i is the warped distribution y_i was drawn from.
    """

    tokens: list[int]
    q: Tensor


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
        logits = logits[0, -1, :vocab_size]  # (V,): models of one tokenizer may pad their rows apart
        q, likely = warp.top(logits)  # (k,)
        choice = chance.sample(q)
        token = choice if likely is None else int(likely[choice])
        tokens.append(token)
        drawn_from.append((q, likely))
        unread = [token]
        drafting = (
            len(tokens) < longest
            and token not in stop_tokens
            and controller.observe(Step(len(tokens), token, q, float(q[choice]), logits, hidden[0, -1]))
        )
    return Draft(tokens, _dense(drawn_from, vocab_size) if tokens else torch.empty(0))


def _dense(drawn_from: list[tuple[Tensor, Tensor | None]], vocab_size: int) -> Tensor:
    """(K, V) from K pairs of probabilities (k,) and their tokens (k,), None where they are the first k in order."""
    q = torch.stack([probabilities for probabilities, _ in drawn_from])
    dense = q.new_zeros(len(q), vocab_size)
    tokens = [likely for _, likely in drawn_from if likely is not None]
    if not tokens:
        dense[:, : q.shape[1]] = q
        return dense
    return dense.scatter_(1, torch.stack(tokens), q)
