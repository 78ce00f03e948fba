"""The acceptance head's metrics against closed forms."""

import math

import pytest
import torch
from specpilot.train.metrics import Metrics
from torchmetrics.functional import calibration_error, kl_divergence
from torchmetrics.functional.classification import binary_auroc


def _random(n: int = 500) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(n, generator=generator), torch.rand(n, generator=generator)


def measured(name: str, logits: torch.Tensor, p: torch.Tensor) -> float:
    return Metrics(logits, p).compute()[name]


def test_kl() -> None:
    logits, p = _random()
    a = torch.sigmoid(logits)
    theirs = kl_divergence(torch.stack([p, 1 - p], 1), torch.stack([a, 1 - a], 1))
    assert measured("kl", logits, p) == pytest.approx(float(theirs), rel=1e-5)
    assert measured("kl", torch.zeros(1), torch.ones(1)) == pytest.approx(math.log(2))
    assert measured("kl", torch.tensor([-200.0]), torch.ones(1)) == pytest.approx(200)  # certain and wrong: finite


def test_auroc() -> None:
    """Of hard labels the usual one, of soft labels the expectation over their coins; it needs both outcomes."""
    logits, p = _random()
    labels = (p > 0.4).long()
    usual = float(binary_auroc(logits.sigmoid(), labels))
    assert measured("auroc", logits, labels.float()) == pytest.approx(usual, abs=1e-6)
    # Two tokens, the first ranked higher. A pair (accepted, rejected) is (1st, 2nd), (2nd, 1st) or one token with
    # itself, a tie, which counts one half.
    p1, p2 = 0.8, 0.3
    right, wrong, tied = p1 * (1 - p2), p2 * (1 - p1), p1 * (1 - p1) + p2 * (1 - p2)
    expected = (right + tied / 2) / (right + wrong + tied)
    assert measured("auroc", torch.tensor([2.0, -1.0]), torch.tensor([p1, p2])) == pytest.approx(expected)
    assert math.isnan(measured("auroc", torch.randn(4), torch.ones(4)))
    assert math.isnan(measured("auroc", torch.randn(4), torch.zeros(4)))


def test_brier_score_reliability_and_calibration_error() -> None:
    assert measured("brier", torch.zeros(2), torch.tensor([1.0, 0.25])) == pytest.approx((0.25 + 0.0625) / 2)
    a = torch.tensor([0.10, 0.12, 0.70, 0.72])
    p = torch.tensor([0.20, 0.00, 1.00, 0.60])
    found = Metrics(torch.logit(a), p)
    table = found.reliability()
    assert [(row.low, row.high, row.count) for row in table] == [(1 / 15, 2 / 15, 2), (10 / 15, 11 / 15, 2)]
    assert (table[0].predicted, table[0].observed) == (pytest.approx(0.11), pytest.approx(0.10))
    assert found.ece() == pytest.approx((2 * 0.01 + 2 * 0.09) / 4, abs=1e-6)
    assert Metrics(torch.tensor([100.0]), torch.ones(1)).reliability()[0].high == 1  # certainty: the last bin
    logits, p = _random()
    labels = (p > 0.4).long()
    theirs = calibration_error(logits.sigmoid(), labels, task="binary", n_bins=15, norm="l1")
    assert Metrics(logits, labels.float()).ece() == pytest.approx(float(theirs), abs=1e-5)


def test_the_best_constant() -> None:
    logits, p = _random(5000)
    constant = torch.logit(p.double().mean()).expand(len(p))
    assert measured("kl_constant", logits, p) == pytest.approx(measured("kl", constant, p))
    assert Metrics(torch.zeros(3), torch.ones(3)).compute()["kl_constant"] == pytest.approx(0)
