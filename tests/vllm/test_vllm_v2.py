"""Model runner V2 with a trained head, on a CPU: kernels by Triton's interpreter, what asks for a GPU is left out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from scipy.stats import chisquare
from specpilot.checkpoints import shipped
from specpilot.infer.loading.names import load_model
from specpilot.serve.vllm.controllers import estimate, load_predictor
from specpilot.serve.vllm.settings import Settings, prepare

from ..test_vllm_parts import length_head
from .engines import PAIR, prompts, vllm  # skips where the extra is missing

from vllm.platforms import current_platform  # isort: skip

TRAINED = Settings("tiny-lag-free")
ADAPTIVE = {"method": "draft_model", "model": "tiny-draft", "enable_adaptive_verification": True}


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


def test_a_lag_free_head_needs_neither_cost_nor_threshold() -> None:
    prepare(TRAINED, vllm.EngineArgs(model=str(shipped("tiny")), speculative_config=ADAPTIVE))


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
