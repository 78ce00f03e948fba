"""vLLM's workers on a GPU: with the plugin's drafter, or for model runner V2 with its estimates of acceptance."""

from __future__ import annotations

import os
from typing import Any

from vllm.v1.worker.gpu_worker import Worker

from .controllers import estimate, load_predictor
from .proposer import close, control
from .settings import settings_of


class ControlledGPUWorker(Worker):  # type: ignore[misc]
    """Model runner V1 with the plugin's drafter."""

    def init_device(self) -> None:
        super().init_device()
        control(self.model_runner)

    def shutdown(self) -> None:
        close(self)
        super().shutdown()


class EstimatingGPUWorker(Worker):  # type: ignore[misc]
    """Model runner V2, whose drafts are cut by a trained head's predictions."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        config = self.vllm_config
        settings = settings_of(config.additional_config, os.environ)
        assert settings is not None, "the worker is only named where there are settings"
        draft = config.speculative_config.draft_model_config.model
        predictor = load_predictor(settings, config.model_config.model, draft, self.device)
        estimate(self.model_runner.speculator, predictor)
