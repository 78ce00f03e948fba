"""Model runner V2 with a trained head, on a CPU: kernels by Triton's interpreter, what asks for a GPU is left out."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from engines import PAIR  # skips where the extra is missing
from specpilot.checkpoints import shipped
from specpilot.models.loading.names import load_model
from specpilot_vllm.controllers import TrainedAcceptanceEstimator, estimate, load_predictor
from specpilot_vllm.settings import Settings

TRAINED = Settings("tiny-lag-free")
GPU = "vllm.v1.worker.gpu.spec_decode"


@pytest.fixture
def estimators(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """V2's estimator of acceptance, whose kernels Triton's interpreter runs."""
    if os.environ.get("TRITON_INTERPRET") != "1":  # Triton reads it when it is imported
        pytest.skip("needs TRITON_INTERPRET=1: run make test-vllm or make test-vllm33")
    from vllm import triton_utils

    monkeypatch.setattr(triton_utils, "triton", importlib.import_module("triton"))
    monkeypatch.setattr(triton_utils, "tl", importlib.import_module("triton.language"))
    names = [f"{GPU}.rejection_sampler_utils", f"{GPU}.acceptance_estimator"]
    for name in names:  # imported for this test alone
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        del sys.modules[name]
    return [importlib.import_module(name) for name in names][1]


def test_the_drafter_hands_states_and_logits_to_the_head() -> None:
    from vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator import StandaloneARSpeculator

    draft = load_model("tiny-draft")
    predictor = load_predictor(TRAINED, *[shipped(name) for name in PAIR], torch.device("cpu"))
    drafter = StandaloneARSpeculator.__new__(StandaloneARSpeculator)  # its constructor needs a GPU
    drafter.model = SimpleNamespace(compute_logits=draft.lm_head)
    drafter.use_local_argmax_reduction = False
    drafter.temperature = torch.tensor([0.0, 1.0, 1.0])
    drafter.draft_token_confidence_probs = torch.zeros(3, 4)
    with torch.inference_mode():
        states = draft.model(torch.tensor([[5, 6, 7]])).last_hidden_state[0, 1:]
        estimate(drafter, predictor)
        places = torch.tensor([2, 0])
        tokens = drafter.sample_draft(states, None, places, drafter.temperature, None, torch.tensor(1), None)
        expected = drafter.acceptance_estimator.expected_acceptance(
            draft.lm_head(states), states, drafter.temperature[places]
        )
    assert tokens.tolist() == draft.lm_head(states).argmax(-1).tolist()
    assert drafter.draft_token_confidence_probs[:2, 1].tolist() == pytest.approx(expected.tolist())
    assert expected.min() > 0
    assert drafter.draft_token_confidence_probs[2].sum() == 0


def test_the_head_writes_where_the_estimator_of_vllm_writes(estimators: ModuleType) -> None:
    """Rows by place in the batch, temperatures by place of the request, nothing for rows that pad the batch."""
    torch.manual_seed(4)
    vllm_estimator = estimators.OnlineAcceptanceEstimator(4, 5, torch.device("cpu"))
    head = TrainedAcceptanceEstimator(load_predictor(TRAINED, *[shipped(name) for name in PAIR], torch.device("cpu")))
    logits, temperature = torch.randn(3, head.embedding.shape[0]), torch.tensor([0.7, 1.0, 0.0, 1.3])
    head.states = torch.randn(3, head.embedding.shape[1])
    places, estimates = torch.tensor([3, -1, 2]), []
    with torch.inference_mode():
        for estimator in (vllm_estimator, head):
            estimates.append(torch.full((4, 5), -1.0))
            estimator.predict(logits, places, torch.tensor(2), estimates[-1], temperature)
            estimator.step(places.clamp(min=0), torch.tensor([2, 1, 3]), torch.tensor([1, 0, 0]))
    written = [[(0, 2), (2, 2)]] * 2
    assert [[(int(row), int(column)) for row, column in (one >= 0).nonzero()] for one in estimates] == written
    q = torch.stack([(logits[0] / 1.3).softmax(-1).max(), logits[2].softmax(-1).max()])
    torch.testing.assert_close(
        estimates[0][[0, 2], 2], torch.sigmoid(vllm_estimator.slope * q.logit() + vllm_estimator.intercepts[2])
    )
