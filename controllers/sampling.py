"""Sampling parameters: temperature, then top-k, then top-p, then renormalisation.

The same parameters apply to target and draft, in data generation, labelling and decoding. A controller's checkpoint
records the parameters of its training. Temperature 0 is the point mass on the arg-max.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from numbers import Integral, Real
from typing import Self

import torch
from torch import Tensor

from ..common.errors import InputError, is_finite
from .shared_noise import scores
from .truncation import cut, largest, nucleus, top_k


@dataclass(frozen=True)
class SamplingParams:
    """Sampling settings.

    Attributes:
        temperature: divisor of the logits; 0 is greedy.
        top_k: number of most probable tokens that are kept; None keeps all.
        top_p: the smallest set of most probable tokens whose total probability reaches ``top_p`` is kept; 1 keeps all.

    Raises:
        InputError: a value is out of range or not a number.
    """

    temperature: float = 1.0
    top_k: int | None = 50
    top_p: float = 1.0

    def __post_init__(self) -> None:
        for name, kind, noun in (("temperature", Real, "a number"), ("top_k", Integral, "a whole number"),
                                 ("top_p", Real, "a number")):  # fmt: skip
            value = vars(self)[name]
            if (name, value) != ("top_k", None) and (isinstance(value, bool) or not isinstance(value, kind)):
                raise InputError(f"{name}={value!r}: must be {noun}")
        if not (self.temperature >= 0 and is_finite(self.temperature)):
            raise InputError(f"temperature={self.temperature}: must be a finite number ≥ 0 (0 is greedy)")
        if 0 < self.temperature < 1e-6 or (
            self.temperature and 0 < self.top_p < 1e-30
        ):  # smaller numbers are near the limit of single precision
            name, value = ("temperature", self.temperature) if self.temperature < 1e-6 else ("top_p", self.top_p)
            raise InputError(f"{name}={value}: too small to compute with; give temperature=0 for greedy decoding")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k={self.top_k}: must be at least 1; leave it out (null) to keep every token")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p={self.top_p}: must be in (0, 1]; 1 keeps every token")
        top_k = None if self.top_k is None else int(self.top_k)  # converts NumPy's numbers and fractions
        vars(self).update(temperature=float(self.temperature), top_k=top_k, top_p=float(self.top_p))

    def to_dict(self) -> dict[str, float | int | None]:
        return asdict(self)

    def is_equivalent(self, other: SamplingParams) -> bool:
        """Return true if both give the same distribution for all logits; at temperature 0 the rest has no effect."""
        return self == other or self.temperature == other.temperature == 0

    def to_power(self, exponent: float) -> Self:
        """Return settings whose probabilities are those of these settings to the power of ``exponent``, normalised.

        The new temperature is the temperature divided by ``exponent``. With top-p other tokens may be kept.
        """
        if exponent == 1 or self.temperature == 0:
            return self
        return replace(self, temperature=self.temperature / exponent)

    @property
    def support(self) -> int | None:
        """The maximum number of tokens with positive probability: 1 at temperature 0, else k; None without top-k."""
        return 1 if self.temperature == 0 else self.top_k

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the probabilities for ``logits`` (..., V), of the same shape, in float32 or float64.

        Raises:
            InputError: a row has no finite maximum (NaN or infinite logits).
        """
        probabilities, tokens = self.top(logits)
        require_finite(float(probabilities.sum()))  # faster than checking each number
        if tokens is None:
            return probabilities
        return torch.zeros_like(logits, dtype=probabilities.dtype).scatter_(-1, tokens, probabilities)

    def top(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the same distribution without the excluded tokens; NaN if a row has no finite maximum.

        Returns:
            Probabilities (..., k) and their tokens (..., k). Without top-k and top-p, tokens are None and the
            probabilities are those of all V tokens in order.
        """
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if self.temperature == 0:
            token = largest(logits)
            return logits.gather(-1, token).softmax(-1), token  # 1, or NaN
        if self.top_k is None:
            rows = torch.softmax(logits if self.temperature == 1 else logits / self.temperature, -1)
            if self.top_p == 1:
                return rows, None
            probabilities, tokens = nucleus(rows.reshape(-1, logits.shape[-1]), self.top_p)
            return probabilities.reshape(*logits.shape[:-1], -1), tokens.reshape(*logits.shape[:-1], -1)
        values, tokens = top_k(logits, min(self.top_k, logits.shape[-1]))  # most probable first
        probabilities = torch.softmax(values if self.temperature == 1 else values / self.temperature, -1)
        if self.top_p < 1:
            probabilities = cut(probabilities, self.top_p)
        return probabilities, tokens


def require_finite(mass: float) -> None:
    """Check that ``mass``, a sum of probabilities, is finite.

    Raises:
        InputError: ``mass`` is NaN or infinite.
    """
    if not math.isfinite(mass):
        raise InputError("the model returned NaN or infinite logits; check its weights and precision (try float32)")


def draw_by(probabilities: Tensor, tokens: Tensor | None, numbers: Tensor) -> Tensor:
    """Sample from N distributions without a read by the host; return the indices (N,) of the chosen entries.

    Args:
        probabilities: (N, k) probabilities.
        tokens: (N, k) their tokens; None for the tokens 0 … k - 1.
        numbers: (N,) uniform numbers in float64, or integers: keys of noise that target and draft share.
    """
    if numbers.dtype == torch.long:
        return scores(probabilities, tokens, numbers).argmax(-1)
    return draw_unchecked(probabilities, numbers)


def draw_unchecked(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Sample by the inverse CDF without a read by the host; NaN probabilities give the last token.

    Args:
        probabilities: (..., V) probabilities, which need not be normalised.
        uniforms: (...) numbers in [0, 1).

    Returns:
        Tokens (...).
    """
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    points = uniforms.unsqueeze(-1) * cumulative[..., -1:]
    return torch.searchsorted(cumulative, points, right=True).squeeze(-1).clamp(max=probabilities.shape[-1] - 1)
