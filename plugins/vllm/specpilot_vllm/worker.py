"""vLLM's worker with the plugin: the plugin's drafter in model runner V1, trained heads in V2."""

from __future__ import annotations

import os
from typing import Any

from vllm.platforms import current_platform

from .build import mend
from .controllers import use_trained_head
from .proposer import close, control
from .settings import settings_of

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
else:
    from vllm.v1.worker.gpu_worker import Worker


class ControlledWorker(Worker):  # type: ignore[misc]
    """A worker of vLLM with the plugin's drafter or trained head."""

    def init_device(self) -> None:
        """Initialise the device, and replace the drafter of model runner V1."""
        super().init_device()
        if not self.vllm_config.use_v2_model_runner:
            works = not current_platform.is_cpu() or mend()
            if not works:
                print(
                    "specpilot: warning: this build of vLLM verifies sampled drafts wrongly, so only greedy requests "
                    "draft"
                )
            control(self.model_runner, sampling_works=works)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load the models, and the trained head of model runner V2."""
        super().load_model(*args, **kwargs)
        if self.vllm_config.use_v2_model_runner:
            settings = settings_of(self.vllm_config.additional_config, os.environ)
            assert settings is not None, "the worker is only named where there are settings"
            use_trained_head(self.model_runner, settings, self.vllm_config, self.device)

    def shutdown(self) -> None:
        """Close the drafter, then shut down."""
        close(self)
        super().shutdown()
