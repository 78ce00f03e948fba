"""A plugin for vLLM that runs specpilot's length controllers in vLLM's draft step.

vLLM finds the plugin by the entry point ``vllm.general_plugins``. Without settings the plugin does nothing::

    vllm serve TARGET --speculative-config '{"method": "draft_model", "model": DRAFT, "num_speculative_tokens": 8}' \
        --additional-config '{"specpilot": {"length": "cumulative-confidence:0.4"}}'

The settings may also be in the environment variable ``SPECPILOT_VLLM``. :mod:`.settings` describes the keys.
"""

from __future__ import annotations

import os
import sys
from functools import wraps
from typing import Any

__all__ = ["register"]

_registered: list[type] = []


def register() -> None:
    """Change the creation of vLLM's engine configuration. This is the entry point, which vLLM calls in every process.

    The processes of the engine need no change, because the configuration names the worker of :mod:`.worker`.
    """
    arguments = sys.modules.get("vllm.engine.arg_utils")
    if arguments is None or arguments.EngineArgs in _registered:  # a process of the engine, or a second call
        return
    engine_args = arguments.EngineArgs
    _registered.append(engine_args)
    plain = engine_args.create_engine_config

    @wraps(plain)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        from .settings import apply, prepare, settings_of

        settings = settings_of(self.additional_config, os.environ)
        if settings is None:
            return plain(self, *args, **kwargs)
        prepare(settings, self)
        config = plain(self, *args, **kwargs)
        apply(settings, config)
        return config

    engine_args.create_engine_config = create_engine_config
