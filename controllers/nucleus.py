"""Top-p among all tokens: the most probable ones, up to a total probability.

Sorting a vocabulary of 50,000 takes milliseconds on a CPU. Often a few hundred tokens hold the probability, and finding
those above a floor is a comparison for each.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

FLOORS = (1e-4, 1e-5)  # tokens above the first are sorted; if all of them are kept, those above the next, at last all


def nucleus(probabilities: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The smallest set of most probable tokens whose total reaches ``top_p``, for each row of ``probabilities`` (N, V).

    Of equally probable tokens any may be kept, the same ones for the same row.

    Returns:
        Renormalised probabilities (N, k), the largest first, and their tokens (N, k). Shorter rows are filled up with
        a token that is not kept, of probability zero. A row with NaN gives NaN.
    """
    if probabilities.device.type != "cpu":
        return sort_all(probabilities, top_p)
    rows = probabilities.detach().numpy()
    candidates = [_candidates(row, top_p) for row in rows]
    most = max(count for _, count in candidates)
    values, found = np.zeros((len(rows), most), rows.dtype), np.empty((len(rows), most), np.int64)
    for place, (row, (tokens, count)) in enumerate(zip(rows, candidates, strict=True)):
        kept = row[tokens[:count]]
        values[place, :count] = kept / kept.sum()
        found[place] = tokens[:most] if len(tokens) >= most else np.pad(tokens, (0, most - len(tokens)), "edge")
    return torch.from_numpy(values), torch.from_numpy(found)


def sort_all(probabilities: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The same by sorting whole rows on their device; k = V."""
    values, tokens = probabilities.sort(-1, descending=True)
    return cut(values, top_p), tokens


def cut(probabilities: Tensor, top_p: float) -> Tensor:
    """``probabilities`` (..., k), the largest first: those before which there is less than ``top_p``, renormalised.

    The others become zero. The first is always kept.
    """
    before = probabilities.cumsum(-1) - probabilities
    probabilities = torch.where(before < top_p, probabilities, 0.0)
    return probabilities / probabilities.sum(-1, keepdim=True)


def _candidates(row: np.ndarray, top_p: float) -> tuple[np.ndarray, int]:
    """Tokens of one row (V,), the most probable first, and how many are kept, at least one.

    There are more than are kept, or all V.
    """
    for floor in FLOORS:
        tokens = np.flatnonzero(row >= floor)
        values = row[tokens]
        order = np.argsort(-values)
        count = _count(values[order], top_p)
        if count < len(tokens):
            return tokens[order], count
    order = np.argsort(-row)
    return order, _count(row[order], top_p)


def _count(values: np.ndarray, top_p: float) -> int:
    """How many of ``values``, the largest first, are kept: those before which there is less than ``top_p``."""
    return max(1, int((values.cumsum() - values < top_p).sum()))
