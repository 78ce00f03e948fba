"""Model runner V2 with a trained head, on a CPU: kernels by Triton's interpreter, what asks for a GPU is left out."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from specpilot.checkpoints import shipped
from specpilot.common.errors import InputError
from specpilot.infer.loading.names import load_causal_lm
from specpilot.serve.vllm.controllers import TrainedAcceptanceEstimator, estimate, load_predictor
from specpilot.serve.vllm.engine_config import apply, prepare
from specpilot.serve.vllm.settings import Settings

from .engines import PAIR, vllm  # skips where the extra is missing

TRAINED = Settings("tiny-lag-free")
ADAPTIVE = {"method": "draft_model", "model": "tiny-draft", "enable_adaptive_verification": True}
V2_WORKER = "vllm.v1.worker.gpu_worker.Worker"


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

    draft = load_causal_lm("tiny-draft")
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
    own = estimators.OnlineAcceptanceEstimator(4, 5, torch.device("cpu"))
    head = TrainedAcceptanceEstimator(load_predictor(TRAINED, *[shipped(name) for name in PAIR], torch.device("cpu")))
    logits, temperature = torch.randn(3, head.embedding.shape[0]), torch.tensor([0.7, 1.0, 0.0, 1.3])
    head.states = torch.randn(3, head.embedding.shape[1])
    places, found = torch.tensor([3, -1, 2]), []
    with torch.inference_mode():
        for estimator in (own, head):
            found.append(torch.full((4, 5), -1.0))
            estimator.predict(logits, places, torch.tensor(2), found[-1], temperature)
            estimator.step(places.clamp(min=0), torch.tensor([2, 1, 3]), torch.tensor([1, 0, 0]))
    written = [[(0, 2), (2, 2)]] * 2
    assert [[(int(row), int(column)) for row, column in (one >= 0).nonzero()] for one in found] == written
    q = torch.stack([(logits[0] / 1.3).softmax(-1).max(), logits[2].softmax(-1).max()])
    torch.testing.assert_close(found[0][[0, 2], 2], torch.sigmoid(own.slope * q.logit() + own.intercepts[2]))


def test_budgets_follow_the_probabilities_that_the_head_gave() -> None:
    """How many drafted tokens are verified goes by those of the step before, and which ones by the last."""
    manager_of = importlib.import_module(f"{GPU}.adaptive_verification")
    manager = manager_of.AdaptiveVerificationManager.__new__(manager_of.AdaptiveVerificationManager)
    manager.num_speculative_steps, manager.num_bonus_tokens, manager._max_total_logits = 3, 1, 64
    manager.req_states = SimpleNamespace(
        req_id_to_index={"a": 0, "b": 1}, num_computed_tokens_np=np.array([9, 9]),
        prefill_len=SimpleNamespace(np=np.array([4, 4])),
    )  # fmt: skip
    stale, fresh = [[0.9, 0.8, 0.1], [0.2, 0.2, 0.2]], [[0.1, 0.1, 0.1], [0.9, 0.8, 0.1]]
    manager._stale_confidences, manager._stale_idx = [SimpleNamespace(np=np.array(stale))], 0
    costs = manager_of.build_cost_tables_from_curves([(2, 1.0)], [(1, 5.0), (9, 9.0)], 2, 16)
    manager.cost_tables = costs[0], 5.0 + 0.5 * np.arange(17)
    drafts = {"a": [1, 2, 3], "b": [1, 2, 3]}
    # Survival 0.9, 0.72, 0.2, … at half a millisecond a token, 7 without drafts: two tokens pay.
    assert manager.get_num_tokens({"a": 4, "b": 4}, drafts) == 4
    capacities = torch.tensor([3, 3], dtype=torch.int32)
    manager_of._assign_draft_token_budget(torch.tensor(fresh), torch.tensor([0, 1]), capacities, 2, 3)
    assert capacities.tolist() == [0, 2]


def config(*, v2: bool, adaptive: bool) -> SimpleNamespace:
    """What the plugin reads of a ``VllmConfig``; vLLM makes none for V2 without a GPU."""
    speculative = SimpleNamespace(
        method="draft_model", enable_adaptive_verification=adaptive, parallel_drafting=False,
        use_heterogeneous_vocab=False, rejection_sample_method="standard",
    )  # fmt: skip
    parallel = SimpleNamespace(
        worker_cls=V2_WORKER, tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1
    )
    return SimpleNamespace(speculative_config=speculative, parallel_config=parallel, use_v2_model_runner=v2)


def test_adaptive_verification_gets_a_worker_of_its_own() -> None:
    found = config(v2=True, adaptive=True)
    apply(TRAINED, found)
    assert found.parallel_config.worker_cls.endswith("gpu_worker.EstimatingGPUWorker")
    found = config(v2=False, adaptive=False)
    apply(Settings(4), found)
    assert found.parallel_config.worker_cls.endswith("gpu_worker.ControlledGPUWorker")


@pytest.mark.parametrize(
    ("v2", "adaptive", "message"),
    [(True, False, r"^model runner: V2 drafts a fixed number"), (False, True, r"^enable_adaptive_verification: needs")],
)
def test_other_combinations_are_refused(v2: bool, adaptive: bool, message: str) -> None:
    with pytest.raises(InputError, match=message):
        apply(TRAINED, config(v2=v2, adaptive=adaptive))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(4), r"^length='4': is a rule; vLLM's adaptive verification takes a trained lag-free head$"),
        (Settings("tiny-head"), r"^length='tiny-head': is of kind 'acceptance-head'; vLLM's adaptive"),
        (Settings("tiny-lag-free", cost=0.2), r"^cost=0.2: vLLM's adaptive verification goes by costs of its own"),
        (Settings("tiny-lag-free", threshold=0.3), r"^threshold=0.3: vLLM's adaptive"),
        (Settings("none-such"), r"^none-such: "),
    ],
)
def test_settings_for_adaptive_verification(settings: Settings, message: str) -> None:
    arguments = vllm.EngineArgs(model=str(shipped("tiny")), speculative_config=ADAPTIVE)
    with pytest.raises(InputError, match=message):
        prepare(settings, arguments)


def test_a_lag_free_head_needs_neither_cost_nor_threshold() -> None:
    prepare(TRAINED, vllm.EngineArgs(model=str(shipped("tiny")), speculative_config=ADAPTIVE))
