"""Model runner V2, as far as it can be run without a GPU: its drafter's sampling step, and the plugin's checks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from specpilot.checkpoints import shipped
from specpilot.common.errors import InputError
from specpilot.infer.loading.names import load_causal_lm
from specpilot.serve.vllm.controllers import estimate, load_predictor
from specpilot.serve.vllm.engine_config import apply, prepare
from specpilot.serve.vllm.settings import Settings

from .engines import PAIR, vllm  # skips where the extra is missing

TRAINED = Settings("tiny-lag-free")
ADAPTIVE = {"method": "draft_model", "model": "tiny-draft", "enable_adaptive_verification": True}
V2_WORKER = "vllm.v1.worker.gpu_worker.Worker"


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
