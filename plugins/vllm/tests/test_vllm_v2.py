"""Model runner V2 with a trained head, on a CPU: kernels by Triton's interpreter, what asks for a GPU is left out."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections import Counter
from copy import deepcopy
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from engines import PAIR, prompts  # skips where the extra is missing
from heads import length_head
from scipy.stats import chisquare
from specpilot.checkpoints import shipped
from specpilot.models.loading.names import load_model
from specpilot_vllm.controllers import TrainedAcceptanceEstimator, estimate, load_predictor, plan
from specpilot_vllm.settings import Settings
from torch import Tensor

from vllm.platforms import current_platform  # isort: skip

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


def test_a_drafter_runs_as_often_as_planned_and_the_scheduler_hears_of_it() -> None:
    """Its own ``propose`` and loop, without attention, and what a synchronous scheduler is handed, for every length."""
    speculator, handed = (importlib.import_module(f"{GPU}.{name}") for name in ("standalone_ar.speculator", "utils"))
    drafter = speculator.StandaloneARSpeculator.__new__(speculator.StandaloneARSpeculator)  # it needs a GPU
    handler = handed.DraftTokensHandler.__new__(handed.DraftTokensHandler)
    shared = SimpleNamespace(
        positions=torch.arange(9), input_ids=torch.arange(9), seq_lens=torch.tensor([4, 5]), num_reqs=2, num_tokens=9,
        query_start_loc=torch.tensor([0, 4, 9]), idx_mapping=torch.tensor([1, 0]), has_structured_output_reqs=False,
        req_ids=["a", "b"],
    )  # fmt: skip
    vars(drafter).update(
        num_speculative_steps=4, draft_tokens=torch.full((2, 4), 9), last_token_indices=torch.zeros(2).long(),
        arange_gpu=torch.arange(3), current_draft_step=torch.tensor(0), draft_logits=None, acceptance_estimator=None,
        use_local_argmax_reduction=False, idx_mapping=torch.zeros(2).long(), temperature=torch.zeros(2),
        seeds=torch.zeros(2), vllm_config=SimpleNamespace(model_config=SimpleNamespace(max_model_len=64)),
        model=SimpleNamespace(compute_logits=lambda states: states), input_buffers=deepcopy(shared),
    )  # fmt: skip
    if "max_model_len" not in dir(drafter):  # vLLM 0.32
        drafter.max_model_len = 64
    forwards: list[int] = []

    def run(ids: Tensor, *_: object) -> Tensor:
        forwards[-1] += 1
        return torch.nn.functional.one_hot(ids.long() % 8, 8).float()

    def without_attention(plain: Any) -> Any:
        return lambda *args: plain(*(True if i == len(args) - 2 else one for i, one in enumerate(args)))

    drafter._run_model = run
    drafter._prefill, drafter._multi_step_decode = map(
        without_attention, (drafter._prefill, drafter._multi_step_decode)
    )
    planner = SimpleNamespace(length=4)
    planner.plan = lambda batch, states, sampled, rejected, most: min(planner.length, most)
    plan(SimpleNamespace(speculator=drafter, draft_tokens_handler=handler), planner)
    counts = torch.ones(2, dtype=torch.int32)
    for length in (4, 0, 1, 3):
        planner.length, drafter.draft_tokens[:] = length, 9
        forwards.append(0)
        drafts = drafter.propose(
            shared, {}, {}, torch.zeros(9, 3), None, counts, counts, counts, counts, torch.zeros(2), torch.zeros(2)
        )
        handler.set_draft_tokens(shared, drafts)
        assert drafts.shape == (2, 4)
        assert (drafts != 9).sum(1).tolist() == [max(length, 1)] * 2
        assert handler.get_draft_tokens().draft_token_ids == [[-1] * length] * 2
    assert (forwards, drafter.num_speculative_steps) == ([4, 1, 1, 3], 4)


def test_whole_engines_draft_and_verify_as_many_tokens_as_planned(tmp_path: Path) -> None:
    """V2 of vLLM's build for CPUs: the same greedy texts, and sampled ones of the target's distribution."""
    if not current_platform.is_cpu():
        pytest.skip("a build for CPUs runs in make test-vllm")
    script = Path(__file__).parent / "interpreted.py"
    command = [sys.executable, str(script), length_head(tmp_path / "head"), "0.2"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    plain, planned = found["plain"], found["planned"]
    assert plain["drafter"] == planned["drafter"] == "StandaloneARSpeculator"
    assert planned["texts"] == plain["texts"]
    assert {*plain["forwards"]} == {4}
    assert {length for drafted in plain["drafted"] for length in drafted} == {4}
    chosen = [length for drafted in planned["drafted"] for length in drafted]
    assert len({*chosen}) > 1
    longest = max(planned["drafted"], key=len)  # the request that took part in most steps
    assert planned["forwards"][: len(longest)] == longest  # none was of length 0

    model, (_, prompt) = load_model("tiny"), prompts(2)
    counts = Counter(tuple(text) for text in found["sampled"])
    with torch.inference_mode():
        first = (model(torch.tensor([prompt])).logits[0, -1] / 0.7).softmax(-1)
        expected = {
            (token, other): float(first[token] * second)
            for token in first.topk(8).indices.tolist()
            for other, second in enumerate((model(torch.tensor([[*prompt, token]])).logits[0, -1] / 0.7).softmax(-1))
            if first[token] * second * len(found["sampled"]) > 4
        }
    assert len(expected) > 2
    observed = [counts[pair] for pair in expected]
    rest = len(found["sampled"]) - sum(observed)
    probabilities = [*expected.values(), 1 - sum(expected.values())]
    assert chisquare([*observed, rest], [p * len(found["sampled"]) for p in probabilities]).pvalue > 1e-3
