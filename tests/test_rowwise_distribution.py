"""Distributions that are computed row by row are those that are computed at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from specpilot.controllers.length import OnlineConfidence
from specpilot.controllers.length.base import FEW
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.distribution import RowwiseDistribution, TokenDistribution
from specpilot.infer.random_source import RandomSource

from .tiny import make

SAMPLINGS = [
    SamplingParams(0.0), SamplingParams(1.0, None), SamplingParams(0.7, 5), SamplingParams(1.0, None, 0.9),
    SamplingParams(1.0, FEW + 20),
]  # fmt: skip


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_row(sampling: SamplingParams, dtype: torch.dtype) -> None:
    logits = torch.randn(6, 3 * FEW, generator=torch.Generator().manual_seed(2)).to(dtype) * 3
    whole, rowwise = TokenDistribution.from_logits(sampling, logits), RowwiseDistribution(sampling, logits)
    for row in (4, 0, 4):
        assert torch.equal(rowwise.row(row), whole.row(row))
        dense = torch.zeros(whole.size)
        tokens, probabilities = rowwise.support(row)
        dense.scatter_add_(0, tokens, probabilities)
        assert torch.equal(dense, whole.row(row))
        assert rowwise.sample(row, RandomSource(row)) == whole.sample(row, RandomSource(row))
    assert set(rowwise.found) == {0, 4}
    assert torch.equal(rowwise.dense, whole.dense)
    assert rowwise.of([7, 8]) == whole.of([7, 8])
    assert (rowwise.lists is None) == (whole.lists is None)


TREES: list[dict[str, Any]] = [
    {"tree": "2x2", "verifier": "mcss"},
    {"tree": "auto", "length": OnlineConfidence(cost=CostModel(0.05, 0.98, 0.02))},
]


@pytest.mark.parametrize("options", TREES)
def test_a_trees_verification_reads_one_path(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[RowwiseDistribution] = []
    create = RowwiseDistribution.__init__

    def noted(self: RowwiseDistribution, sampling: SamplingParams, logits: torch.Tensor) -> None:
        create(self, sampling, logits)
        made.append(self)

    monkeypatch.setattr(RowwiseDistribution, "__init__", noted)
    decoder = SpeculativeDecoder(make(), make(layers=1), **options)
    decoder.generate([5, 9, 2], max_new_tokens=30, seed=3)
    assert made
    assert all(len(rows.found) < len(rows.logits) for rows in made)
