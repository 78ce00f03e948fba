"""The two faults of vLLM's build for CPUs are found and mended."""

from __future__ import annotations

import pytest
import torch

from .engines import configure  # skips where vLLM is missing  # isort: skip
from specpilot.infer.integrations import vllm_build
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.ops import topk_topp_sampler


def test_mend_repairs_what_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_values_are_repeated_for_drafted_tokens() -> None:
    ends = torch.tensor([3, 3, 4], dtype=torch.int32)
    top_k = vllm_build.expand_batch_to_tokens(torch.tensor([5, 6, 7], dtype=torch.int32), ends, 4)
    assert top_k.tolist() == [5, 5, 5, 7]
    assert top_k.dtype == torch.int32
    assert vllm_build.expand_batch_to_tokens(torch.tensor([0.0, 0.5, 0.3]), ends, 4, 0, 1).tolist() == pytest.approx(
        [1.0, 1.0, 1.0, 0.3]
    )
