"""vLLM's worker on a CPU, with the plugin's drafter.

Two faults of vLLM's build for CPUs break sampling beside drafts; they were found by trying and are mended:

* ``apply_top_k_only`` fails on an empty tensor.
* ``expand_batch_to_tokens`` returns uninitialised memory where temperatures, top-k and top-p of drafted tokens are
  expected: the kernel writes into a copy.
"""

from __future__ import annotations

import torch
from torch import Tensor
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.ops import topk_topp_sampler
from vllm.v1.worker.cpu_worker import CPUWorker

from .proposer import control


class ControlledCPUWorker(CPUWorker):  # type: ignore[misc]
    def init_device(self) -> None:
        super().init_device()
        works = mend()
        if not works:
            print("specpilot: warning: this build of vLLM verifies sampled drafts wrongly; only greedy requests draft")
        control(self.model_runner, sampling_works=works)


def mend() -> bool:
    """Replace what is broken; returns whether sampling works now."""
    if not top_k_works():
        plain = topk_topp_sampler.apply_top_k_only
        topk_topp_sampler.apply_top_k_only = lambda logits, k: plain(logits, k) if len(logits) else logits
    if not expansion_works():
        rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
    return top_k_works() and expansion_works()


def expand_batch_to_tokens(
    x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: float = 0, replace_to: float = 0
) -> Tensor:
    """(N,) the values of ``x`` (B,), each repeated for the request's drafted tokens.

    Args:
        cu_num_tokens: (B,) running totals of drafted tokens.
        num_tokens: N.
        replace_from: value that is replaced by ``replace_to``.
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    values = torch.where(x == replace_from, replace_to, x).to(x.dtype)
    return values.repeat_interleave(counts, output_size=num_tokens)


def top_k_works() -> bool:
    """Whether top-k of no rows is no rows."""
    try:
        found: Tensor = topk_topp_sampler.apply_top_k_only(torch.empty(0, 4), torch.empty(0, dtype=torch.int32))
    except (RuntimeError, IndexError):
        return False
    return found.shape == (0, 4)


def expansion_works() -> bool:
    """Whether values are repeated. Both results are kept until they are compared, so none is in the other's memory."""
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    found = [
        rejection_sampler.expand_batch_to_tokens(torch.tensor(values), ends, 5, replace_from=0, replace_to=1)
        for values in ([0.37, 0.5, 0.0], [0.73, 0.5, 0.21])
    ]
    expected = [[0.37, 0.37, 1.0, 1.0, 1.0], [0.73, 0.73, 0.21, 0.21, 0.21]]
    return all(torch.equal(one, torch.tensor(values)) for one, values in zip(found, expected, strict=True))
