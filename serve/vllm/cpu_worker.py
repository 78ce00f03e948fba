"""vLLM's worker on a CPU, with the plugin's drafter."""

from __future__ import annotations

from vllm.v1.worker.cpu_worker import CPUWorker

from ...infer.integrations.vllm_build import mend
from .proposer import close, control


class ControlledCPUWorker(CPUWorker):  # type: ignore[misc]
    def init_device(self) -> None:
        super().init_device()
        works = mend()
        if not works:
            print("specpilot: warning: this build of vLLM verifies sampled drafts wrongly; only greedy requests draft")
        control(self.model_runner, sampling_works=works)

    def shutdown(self) -> None:
        close(self)
        super().shutdown()
