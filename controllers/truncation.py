"""Top-k and top-p among all tokens of a vocabulary, on a CPU faster than by sorting or by ``torch.topk``.

``torch.topk`` copies every number together with its index. The k largest numbers are in the k blocks with the largest
maxima, and the search for these blocks copies nothing. With a vocabulary of 150,000 and k = 50 this takes a quarter of
the time. Sorting a vocabulary of 50,000 for top-p takes milliseconds. Often a few hundred tokens have almost all of the
probability, and one comparison per token finds those above a floor.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

BLOCK = 64  # numbers in a block; most large vocabularies are padded to a multiple of 64
FEWEST = 40_000  # minimum length of a row for which blocks are faster


def largest(logits: Tensor) -> Tensor:
    """Return the index (..., 1) of the largest of ``logits`` (..., V), the first of equal ones; NaN is the largest.

    On a CPU NumPy takes 3 µs for 50,000 numbers, ``torch.argmax`` 28 µs and ``torch.max`` 89 µs.
    """
    if logits.device.type != "cpu" or logits.requires_grad:
        return logits.argmax(-1, keepdim=True)
    return torch.from_numpy(logits.numpy().argmax(-1, keepdims=True))


def top_k(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest of ``logits`` (..., V), the largest first, and their indices, (..., k) each.

    NaN is the largest number. Among equal numbers the choice is arbitrary, as in ``torch.topk``, but the same for the
    same row.
    """
    size = logits.shape[-1]
    if logits.device.type != "cpu" or size < FEWEST or size % BLOCK or 4 * k * BLOCK > size:
        values, indices = logits.topk(k)
        return values, indices
    blocks = logits.reshape(*logits.shape[:-1], -1, BLOCK)
    best = blocks.amax(-1).topk(k, sorted=False).indices  # (..., k)
    values, places = blocks.take_along_dim(best.unsqueeze(-1), -2).flatten(-2).topk(k)
    return values, best.gather(-1, places // BLOCK) * BLOCK + places % BLOCK


FLOORS = (1e-4, 1e-5)  # tokens above the first floor are sorted; if all are kept, those above the next, finally all


def nucleus(probabilities: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """Return the smallest set of most probable tokens whose total reaches ``top_p``, for each row.

    Among equally probable tokens the choice is arbitrary, but the same for the same row.

    Args:
        probabilities: (N, V) probabilities.
        top_p: the total.

    Returns:
        Renormalised probabilities (N, k), the largest first, and their tokens (N, k). Shorter rows are filled up with a
        token that is not kept, of probability zero. A row with NaN gives NaN.
    """
    if probabilities.device.type != "cpu":
        return sort_rows(probabilities, top_p)
    rows = probabilities.detach().numpy()
    candidates = [_candidates(row, top_p) for row in rows]
    width = max(count for _, count in candidates)
    values, kept_tokens = np.zeros((len(rows), width), rows.dtype), np.empty((len(rows), width), np.int64)
    for index, (row, (tokens, count)) in enumerate(zip(rows, candidates, strict=True)):
        largest = row[tokens[:count]]
        values[index, :count] = largest / largest.sum()
        kept_tokens[index] = (
            tokens[:width] if len(tokens) >= width else np.pad(tokens, (0, width - len(tokens)), "edge")
        )
    return torch.from_numpy(values), torch.from_numpy(kept_tokens)


def sort_rows(probabilities: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """Return the same as :func:`nucleus` by sorting whole rows on their device; k = V."""
    values, tokens = probabilities.sort(-1, descending=True)
    return cut(values, top_p), tokens


def cut(probabilities: Tensor, top_p: float) -> Tensor:
    """Keep the ``probabilities`` (..., k), the largest first, before which the total is below ``top_p``; renormalise.

    The other probabilities become zero. The first is always kept.
    """
    before = probabilities.cumsum(-1) - probabilities
    probabilities = torch.where(before < top_p, probabilities, 0.0)
    return probabilities / probabilities.sum(-1, keepdim=True)


def _candidates(row: np.ndarray, top_p: float) -> tuple[np.ndarray, int]:
    """Return tokens of one row (V,), the most probable first, and the number of them that is kept, at least one.

    There are more tokens than are kept, or all V.
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
    """Return the number of ``values``, the largest first, before which the total is below ``top_p``; at least 1."""
    return max(1, int((values.cumsum() - values < top_p).sum()))
