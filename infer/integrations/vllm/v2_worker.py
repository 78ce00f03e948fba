"""vLLM's worker on a GPU with model runner V2, whose drafts are cut by a trained head's predictions."""

from __future__ import annotations

import os
from typing import Any

from vllm.v1.worker.gpu_worker import Worker

from .acceptance_estimator import estimate
from .lengths import load_predictor
from .settings import settings_of


class EstimatingGPUWorker(Worker):  # type: ignore[misc]
    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        config = self.vllm_config
        settings = settings_of(config.additional_config, os.environ)
        assert settings is not None, "the worker is only named where there are settings"
        draft = config.speculative_config.draft_model_config.model
        predictor = load_predictor(settings, config.model_config.model, draft, self.device)
        estimate(self.model_runner.speculator, predictor)
