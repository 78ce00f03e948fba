"""Attention of the lean forward against the definition, in every form that a kernel is chosen by."""

from __future__ import annotations

import pytest
import torch
from specpilot.infer.models.lean_attention import SHORT, attention, per_group
from specpilot.infer.models.masks import as_scores
from torch import Tensor

SIZE = 16  # of a head


def by_definition(q: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """Softmax of the scores of the columns ``seen`` (B, n, m), head by head, in float64."""
    group = q.shape[1] // keys.shape[1]
    keys, values = (part.double().repeat_interleave(group, 1) for part in (keys, values))
    scores = q.double() @ keys.transpose(-1, -2) / SIZE**0.5
    return scores.masked_fill(~seen.unsqueeze(1), -torch.inf).softmax(-1) @ values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (4, 1)], ids=str)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("n", [1, 2, 5, SHORT + 1])
@pytest.mark.parametrize("masked", [True, False], ids=["mask", "no mask"])
def test_every_form_is_attention(dtype: torch.dtype, heads: tuple[int, int], batch: int, n: int, masked: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    width = n + 7
    cache = [torch.randn(batch, heads[1], width + 9, SIZE, generator=generator).to(dtype) for _ in range(2)]
    keys, values = (part[:, :, :width] for part in cache)  # views of longer buffers, as in a cache
    q = torch.randn(batch, n, heads[0], SIZE, generator=generator).to(dtype).transpose(1, 2)
    seen = torch.ones(batch, n, width, dtype=torch.bool)
    mask = None
    if masked:
        seen = torch.rand(batch, n, width, generator=generator) < 0.5
        seen[..., 0] = True
        mask = per_group(as_scores(seen, dtype), heads[0] // heads[1])
    found = attention(q, keys, values, mask, False)
    assert found.shape == q.shape
    assert found.dtype == dtype
    tolerance = 0.02 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found.double(), by_definition(q, keys, values, seen), rtol=0, atol=tolerance)
