"""Tokens that a model draws on its device before the host has read them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ..controllers.sampling import SamplingParams


class Sampled(NamedTuple):
    """The sampling of a chain.

    Attributes:
        sampling: sampling parameters.
        size: the target's vocabulary size, to which logits are cut.
        distributions: whether the distributions are stored, for a verification rule.
        shared: whether the tokens' random numbers are keys of noise that target and draft share.
    """

    sampling: SamplingParams
    size: int
    distributions: bool = True
    shared: bool = False


class DraftedTokens(NamedTuple):
    """K tokens of each of B texts, on the device.

    Attributes:
        probabilities: (K, B, k) probabilities that each token was drawn from; k = 0 if they are not stored.
        tokens: (K, B, k) the tokens of these probabilities.
        drawn: (K, B) the sampled tokens.
        chosen: (K, B) the probabilities of the sampled tokens.
    """

    probabilities: Tensor
    tokens: Tensor
    drawn: Tensor
    chosen: Tensor
