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


def fit_vocabulary(logits: Tensor, size: int) -> Tensor:
    """``logits`` (..., V) cut or filled up with -inf to ``size``: models of one tokenizer may pad their rows apart."""
    missing = size - logits.shape[-1]
    if missing == 0:
        return logits
    if missing < 0:
        return logits[..., :size]
    return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)


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
    rows: list[Tensor] = []
    drafting = longest > 0 and controller.start_round()
    while drafting:
        logits, hidden = model.forward(as_row(unread, model.device), keep=1)
        logits = fit_vocabulary(logits[0, -1], vocab_size)  # (V,)
        q = warp(logits)
        token = chance.sample(q)
        tokens.append(token)
        rows.append(q)
        unread = [token]
        drafting = (
            len(tokens) < longest
            and token not in stop_tokens
            and controller.observe(Step(len(tokens), token, q, logits, hidden[0, -1]))
        )
    return Draft(tokens, torch.stack(rows) if rows else torch.empty(0))
