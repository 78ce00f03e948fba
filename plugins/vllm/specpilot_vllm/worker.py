"""vLLM's worker with the plugin's drafter, for model runner V1."""

from __future__ import annotations

from vllm.platforms import current_platform

from .build import repair_sampling
from .proposer import close, control

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
else:
    from vllm.v1.worker.gpu_worker import Worker


class ControlledWorker(Worker):  # type: ignore[misc]
    """A worker of vLLM with the plugin's drafter."""

    def init_device(self) -> None:
        """Initialise the device, and replace the drafter."""
        super().init_device()
        works = not current_platform.is_cpu() or repair_sampling()
        if not works:
            print(
                "specpilot: warning: this build of vLLM verifies sampled drafts wrongly, so only greedy requests draft"
            )
        control(self.model_runner, sampling_works=works)

    def shutdown(self) -> None:
        """Close the drafter, then shut down."""
        close(self)
        super().shutdown()
