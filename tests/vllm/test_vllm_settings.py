"""Before an engine starts: where settings come from, engines that are not steered, and the build for CPUs is mended."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from specpilot.checkpoints import shipped
from specpilot.common.errors import InputError
from specpilot.infer.integrations import vllm_build
from specpilot.serve.vllm.settings import VARIABLE

from .engines import configure, engine  # skips where the extra is missing  # isort: skip
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.ops import topk_topp_sampler


def test_settings_come_from_the_configuration_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    own = configure(None).parallel_config.worker_cls
    assert own == "vllm.v1.worker.cpu_worker.CPUWorker"
    assert configure({"length": 4}).parallel_config.worker_cls != own
    monkeypatch.setenv(VARIABLE, json.dumps({"length": "confidence:0.4"}))
    assert configure(None).parallel_config.worker_cls != own
    monkeypatch.setenv(VARIABLE, '{"length": ')
    with pytest.raises(InputError, match=rf"^{VARIABLE}: not JSON .*; give an object such as"):
        configure(None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drafted": 0}, r"^speculative_config: method is none; specpilot steers draft models"),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}},
            r"^speculative_config: method is 'ngram'; specpilot steers draft models",
        ),
        ({"async_scheduling": True}, r"^async_scheduling: "),
        ({"worker_cls": "mine.Worker"}, r"^worker_cls='mine.Worker': specpilot knows "),
    ],
)
def test_engines_that_the_plugin_does_not_steer(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        configure({"length": 4}, **options)


def test_a_controller_of_another_pair() -> None:
    other = str(shipped("tiny-draft-math"))
    speculative = {"method": "draft_model", "model": other, "num_speculative_tokens": 4}
    with pytest.raises(InputError, match="trained for target tiny and draft tiny-draft, but another draft is given"):
        engine({"length": "tiny-lag-free", "cost": 0.2}, speculative_config=speculative)


def test_the_two_faults_of_the_build_for_cpus_are_found_and_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(logits: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return logits.topk(int(k.max())).values

    def uninitialised(x: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        return x.new_full((5,), 7.0)

    configure(None)  # registers the build's kernels
    monkeypatch.setattr(topk_topp_sampler, "apply_top_k_only", fails)
    monkeypatch.setattr(rejection_sampler, "expand_batch_to_tokens", uninitialised)
    assert not vllm_build.top_k_works()
    assert not vllm_build.expansion_works()
    assert vllm_build.mend()
    assert vllm_build.top_k_works()
    assert vllm_build.expansion_works()
