"""The lag-free head: will the target keep this token, and will it keep the one after it, before the draft reads either?

SpecDec++'s head (Huang et al. 2024) reads the draft's state *at* a token, which exists one forward later. This one goes
by what is there when the token is drawn: the state its distribution came from, the token's embedding, what the
distribution says of it, and what the text before says of it. Its second output looks one token further ahead.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import InputError
from .draft_signals import DraftSignals
from .feature_model import SMALLEST, features
from .ngram_index import MAX_NGRAM, NgramMatch

FEATURES = 3  # of the inputs, what the draft says
INPUTS = 7  # log q(y), log(1 - max q), entropy; and of the text agreement, match, share, and whether y is the copy
VECTORS = 3  # the draft's state, the embedding of y and that of the copy


class LagFreeHead(nn.Module):
    """An MLP with one hidden layer, ℝ^(7 + 3d) → ℝ².

    Args:
        hidden_size: d, of the draft's last hidden state and of its output embedding.
        width: hidden units.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, hidden_size: int, width: int = 128) -> None:
        super().__init__()
        for name, value in (("hidden_size", hidden_size), ("width", width)):
            if value < 1:
                raise InputError(f"{name}={value}: must be at least 1")
        self.hidden_size, self.width = hidden_size, width
        self.inner = nn.Linear(INPUTS + VECTORS * hidden_size, width)
        self.out = nn.Linear(width, 2)
        self.register_buffer("mean", torch.zeros(INPUTS))
        self.register_buffer("scale", torch.ones(INPUTS))

    def forward(
        self, evidence: Tensor, hidden: Tensor, embedding: Tensor, copied: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Logits (…, 2): that the token is kept if all before it are, and then the one that will be drafted after it.

        Args:
            evidence: (…, 7) :func:`evidence` of the token.
            hidden: (…, d) the draft's last hidden state at the token before.
            embedding: (…, d) the draft's output embedding of the token.
            copied: (…, d) that of the token which the text would go on with, zeros where there is none.
            mask: (…, 3d) factors of the entries of the three normalised vectors: dropout in training.
        """
        # Without learnt scales: models differ in how long these vectors are, and the first layer has weights enough.
        vectors = torch.cat([F.layer_norm(x.float(), x.shape[-1:]) for x in (hidden, embedding, copied)], -1)
        if mask is not None:
            vectors = vectors * mask
        return self.out(F.silu(self.inner(torch.cat([(evidence - self.mean) / self.scale, vectors], -1))))  # type: ignore[no-any-return]


def evidence(signals: DraftSignals, ngram_match: NgramMatch, token: int) -> list[float]:
    """(7,) numbers: what the draft and the text say of a token."""
    return [*features(*signals), *text_evidence(ngram_match, token)]


def text_evidence(ngram_match: NgramMatch, token: int) -> list[float]:
    """(4,) of them: what the text says."""
    agrees, matches, share, copy = ngram_match
    is_copy = 0.0 if copy is None else 1.0 if copy == token else -1.0
    return [agrees / MAX_NGRAM, matches / MAX_NGRAM, share, is_copy]


def feature_tensor(signals: Tensor) -> Tensor:
    """(3,) of them: :func:`~.feature_model.features` of ``signals`` (3,), on its device."""
    confidence, top, entropy = signals.unbind()
    return torch.stack([confidence.clamp(min=1e-30).log(), (1.0 - top).clamp(min=SMALLEST).log(), entropy])


def all_evidence(signals: Sequence[DraftSignals], ngram_match: Sequence[NgramMatch], tokens: Sequence[int]) -> Tensor:
    """(N, 7) of N tokens."""
    rows = [evidence(*one) for one in zip(signals, ngram_match, tokens, strict=True)]
    return torch.tensor(rows, dtype=torch.float32).reshape(-1, INPUTS)


def copies_of(ngram_match: Sequence[NgramMatch]) -> Tensor:
    """(N,) the tokens that the text would go on with, -1 where there is none."""
    return torch.tensor([-1 if one.copy is None else one.copy for one in ngram_match], dtype=torch.long)


def copied_embeddings(embedding: Tensor, copies: Tensor) -> Tensor:
    """(N, d) rows of ``embedding`` (V, d) for ``copies`` (N,); zeros for -1 and for tokens the draft does not have."""
    copies = copies.to(embedding.device)
    known = (copies >= 0) & (copies < len(embedding))
    return torch.where(known.unsqueeze(-1), embedding[torch.where(known, copies, 0)], 0.0)
