"""The trained head's acceptance probabilities for vLLM's model runner V2: tensor operations alone, no vLLM needed."""

from __future__ import annotations

import math

import pytest
import torch
from specpilot.controllers.acceptance.lag_free_head import LagFreeHead
from specpilot.controllers.acceptance.lag_free_predictor import LagFreePredictor
from specpilot.controllers.acceptance.ngram_index import NOTHING
from specpilot.infer.integrations.vllm.acceptance_estimator import TrainedAcceptanceEstimator
from torch import Tensor

VOCABULARY, WIDTH = 12, 6  # fewer tokens than candidates: the expectation is over all of them


@pytest.fixture
def predictor() -> LagFreePredictor:
    torch.manual_seed(1)
    head = LagFreeHead(WIDTH, 5)
    return LagFreePredictor(head, torch.randn(VOCABULARY, WIDTH))


def by_hand(predictor: LagFreePredictor, logits: Tensor, state: Tensor, temperature: float) -> float:
    """Σ_y q(y)·a(y), with the predictions that the decoder makes of each token in turn."""
    q = (logits / (temperature or 1.0)).softmax(-1)
    entropy = float(torch.special.entr(q).sum())
    tokens = [int(q.argmax())] if temperature == 0 else list(range(VOCABULARY))
    signals = [(float(q[y]), float(q.max()), entropy) for y in tokens]
    states = state.expand(len(tokens), -1)
    accept = predictor.predict_all(signals, [NOTHING] * len(tokens), states, tokens)
    weights = torch.ones(1) if temperature == 0 else q
    return float((weights * accept).sum())


def test_expected_acceptance_is_that_of_the_decoder(predictor: LagFreePredictor) -> None:
    torch.manual_seed(2)
    logits, states = torch.randn(3, VOCABULARY), torch.randn(3, WIDTH)
    temperatures = [1.0, 0.5, 0.0]
    estimator = TrainedAcceptanceEstimator(predictor)
    with torch.inference_mode():
        found = estimator.expected_acceptance(logits, states, torch.tensor(temperatures))
    expected = [by_hand(predictor, *row) for row in zip(logits, states, temperatures, strict=True)]
    assert found.tolist() == pytest.approx(expected, abs=1e-6)
    assert len(set(expected)) == 3


def test_each_request_has_its_own_temperature_and_padding_is_left_alone(predictor: LagFreePredictor) -> None:
    torch.manual_seed(3)
    logits, temperature = torch.randn(3, VOCABULARY), torch.tensor([0.7, 1.0, 0.0, 1.3])
    estimator = TrainedAcceptanceEstimator(predictor)
    estimator.states = torch.randn(3, WIDTH)
    probabilities = torch.full((4, 5), math.pi)
    with torch.inference_mode():
        estimator.predict(logits, torch.tensor([3, -1, 2]), torch.tensor(1), probabilities, temperature)
    expected = [
        by_hand(predictor, logits[row], estimator.states[row], float(temperature[at])) for row, at in ((0, 3), (2, 2))
    ]
    assert probabilities[[0, 2], 1].tolist() == pytest.approx(expected, abs=1e-6)
    probabilities[[0, 2], 1] = math.pi
    assert bool((probabilities == torch.tensor(math.pi)).all())


def test_no_value_is_read_by_the_host(predictor: LagFreePredictor) -> None:
    """A graph without a break has no such read, and can be captured."""
    estimator = TrainedAcceptanceEstimator(predictor)
    logits, states, temperature = torch.randn(2, VOCABULARY), torch.randn(2, WIDTH), torch.tensor([1.0, 0.0])

    def predict(logits: Tensor, states: Tensor, rows: Tensor, step: Tensor, probabilities: Tensor) -> Tensor:
        estimator.states = states
        estimator.predict(logits, rows, step, probabilities, temperature)
        return probabilities

    arguments = logits, states, torch.tensor([1, 0]), torch.tensor(0)
    compiled = torch.compile(predict, backend="eager", fullgraph=True)
    with torch.no_grad():
        found = compiled(*arguments, torch.zeros(2, 3))
        assert torch.equal(found, predict(*arguments, torch.zeros(2, 3)))
