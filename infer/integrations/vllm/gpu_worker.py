"""vLLM's worker on a GPU, with the plugin's drafter."""

from __future__ import annotations

from vllm.v1.worker.gpu_worker import Worker

from .control import control


class ControlledGPUWorker(Worker):  # type: ignore[misc]
    def init_device(self) -> None:
        super().init_device()
        control(self.model_runner)
