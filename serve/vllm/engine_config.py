"""What the plugin needs of vLLM's configuration, checked and set before the engine starts."""

from __future__ import annotations

from typing import Any

from ...common.errors import InputError
from ...infer.integrations.vllm_build import check_interface, check_version, installed_version
from .settings import Settings

WORKERS = ("vllm.v1.worker.cpu_worker.CPUWorker", "vllm.v1.worker.gpu_worker.Worker")  # that the plugin's replaces


def prepare(settings: Settings, arguments: Any) -> None:
    """Check versions, settings and ``vllm.EngineArgs``, and let drafts be of different lengths.

    Raises:
        InputError: vLLM is of an unknown version or build, or a setting is wrong or does not go with its options.
    """
    check_version(installed_version())
    check_interface()
    adaptive = bool((arguments.speculative_config or {}).get("enable_adaptive_verification"))
    settings.check(adaptive=adaptive)
    if adaptive:
        return
    if arguments.async_scheduling:
        raise InputError("async_scheduling: drafts of different lengths need the synchronous one; leave it out")
    arguments.async_scheduling = False


def apply(settings: Settings, config: Any) -> None:
    """Check a ``VllmConfig``, and let the plugin's worker run the models.

    Raises:
        InputError: the engine drafts in another way, or in a way that the plugin does not take part in.
    """
    speculative, parallel = config.speculative_config, config.parallel_config
    if speculative is None or speculative.method != "draft_model":
        found = "none" if speculative is None else repr(speculative.method)
        raise InputError(
            f"speculative_config: method is {found}; specpilot steers draft models: give method, model and "
            "num_speculative_tokens"
        )
    adaptive = speculative.enable_adaptive_verification
    if config.use_v2_model_runner and not adaptive and not settings.plans:
        raise InputError(
            "model runner: V2 drafts the same number of tokens for all requests; set VLLM_USE_V2_MODEL_RUNNER=0, or "
            "give a length head, or a lag-free head and enable_adaptive_verification in speculative_config"
        )
    if settings.plans and not config.use_v2_model_runner:
        raise InputError(f"length={settings.spec!r}: a length head needs model runner V2, this is V1; give another")
    if adaptive and not config.use_v2_model_runner:
        raise InputError("enable_adaptive_verification: needs model runner V2, this is V1; leave it out")
    for name in ("tensor", "pipeline", "data"):
        size = vars(parallel)[f"{name}_parallel_size"]
        if size > 1:
            raise InputError(f"{name}_parallel_size={size}: specpilot runs on one device; give 1")
    if speculative.parallel_drafting or speculative.use_heterogeneous_vocab:
        raise InputError("speculative_config: parallel_drafting and use_heterogeneous_vocab are not steered; leave out")
    if settings.drafts == "request" and speculative.rejection_sample_method != "standard":
        raise InputError(f"rejection_sample_method={speculative.rejection_sample_method!r}: give 'standard'")
    if parallel.worker_cls not in WORKERS:
        raise InputError(f"worker_cls={parallel.worker_cls!r}: specpilot knows {', '.join(WORKERS)}")
    parallel.worker_cls = f"{__package__}.worker.ControlledWorker"
