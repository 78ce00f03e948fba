"""vLLM's worker on a CPU, with the plugin's drafter."""

from __future__ import annotations

from vllm.v1.worker.cpu_worker import CPUWorker

from .control import control


class ControlledCPUWorker(CPUWorker):  # type: ignore[misc]
    def init_device(self) -> None:
        super().init_device()
        control(self.model_runner)
