"""The lag-free head: acceptance of a drafted token before the draft has read it.

SpecDec++'s head (Huang et al. 2024) reads the draft's state *at* a token, which exists one forward later. This one goes
by what is there when the token is drawn: the state its distribution came from, the token's embedding, the draft
signals, and n-gram matches of the text.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...common.errors import InputError
from .draft_signals import DraftSignals
from .feature_model import features
from .ngram_index import MAX_NGRAM, NgramMatch

FEATURES = 3  # of the inputs, those of the draft's distribution
INPUTS = (
    7  # log q(y), log(1 - max q), entropy; and of the n-gram match agrees, matches, share, and whether y is the copy
)
ENTROPY = 2  # its place among them; this head does not use it, since it takes most of a prediction's time to compute
VECTORS = 3  # the draft's state, the embedding of y and that of the copy


class LagFreeHead(nn.Module):
    """An MLP with one hidden layer of ReLU units, ℝ^(7 + 3d) → ℝ.

    The draft's state is divided by a constant instead of normalised, which takes longer than the rest of a prediction.

    Args:
        hidden_size: d, of the draft's last hidden state and of its output embedding.
        width: hidden units.
    """

    mean: Tensor
    scale: Tensor
    state_scale: Tensor

    def __init__(self, hidden_size: int, width: int = 32) -> None:
        super().__init__()
        for name, value in (("hidden_size", hidden_size), ("width", width)):
            if value < 1:
                raise InputError(f"{name}={value}: must be at least 1")
        self.hidden_size, self.width = hidden_size, width
        self.inner = nn.Linear(INPUTS + VECTORS * hidden_size, width)
        self.out = nn.Linear(width, 1)
        self.register_buffer("mean", torch.zeros(INPUTS))
        self.register_buffer("scale", torch.ones(INPUTS))
        self.register_buffer("state_scale", torch.ones(()))

    def forward(
        self, evidence: Tensor, hidden: Tensor, embedding: Tensor, copied: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Logits (…) that the token is accepted if all before it are.

        Args:
            evidence: (…, 7) :func:`evidence` of the token.
            hidden: (…, d) the draft's last hidden state at the token before.
            embedding: (…, d) the draft's output embedding of the token.
            copied: (…, d) that of the token that an n-gram match would continue with, zeros where there is none.
            mask: (…, 3d) factors of the entries of the three scaled vectors: dropout in training.
        """
        vectors = torch.cat([hidden.float() / self.state_scale, _normalised(embedding), _normalised(copied)], -1)
        if mask is not None:
            vectors = vectors * mask
        numbers = (evidence - self.mean) / self.scale
        numbers[..., ENTROPY] = 0.0
        units = self.inner(torch.cat([numbers, vectors], -1))
        return self.out(F.relu(units)).squeeze(-1)  # type: ignore[no-any-return]


def _normalised(x: Tensor) -> Tensor:
    """Shapes (…, d) → (…, d); without learnt scales: models differ in the length of these vectors."""
    return F.layer_norm(x.float(), x.shape[-1:])


def evidence(signals: DraftSignals, ngram_match: NgramMatch, token: int) -> list[float]:
    """(7,) numbers of a token: of the draft's distribution and of the n-gram match."""
    return [*features(*signals), *text_evidence(ngram_match, token)]


def text_evidence(ngram_match: NgramMatch, token: int) -> list[float]:
    """(4,) of them: those of the n-gram match."""
    agrees, matches, share, copy = ngram_match
    is_copy = 0.0 if copy is None else 1.0 if copy == token else -1.0
    return [agrees / MAX_NGRAM, matches / MAX_NGRAM, share, is_copy]


def all_evidence(signals: Sequence[DraftSignals], ngram_match: Sequence[NgramMatch], tokens: Sequence[int]) -> Tensor:
    """(N, 7) of N tokens."""
    rows = [evidence(*one) for one in zip(signals, ngram_match, tokens, strict=True)]
    return torch.tensor(rows, dtype=torch.float32).reshape(-1, INPUTS)


def copies_of(ngram_match: Sequence[NgramMatch]) -> Tensor:
    """(N,) the tokens that the matches would continue with, -1 where there is none."""
    return torch.tensor([-1 if one.copy is None else one.copy for one in ngram_match], dtype=torch.long)


def copied_embeddings(embedding: Tensor, copies: Tensor) -> Tensor:
    """(N, d) rows of ``embedding`` (V, d) for ``copies`` (N,); zeros for -1 and for tokens the draft does not have."""
    copies = copies.to(embedding.device)
    known = (copies >= 0) & (copies < len(embedding))
    return torch.where(known.unsqueeze(-1), embedding[torch.where(known, copies, 0)], 0.0)
