"""A plugin for vLLM that runs specpilot's length controllers in its draft step.

vLLM finds the plugin by the entry point ``vllm.general_plugins``. Without settings the plugin does nothing::

    vllm serve TARGET --speculative-config '{"method": "draft_model", "model": DRAFT, "num_speculative_tokens": 8}' \
        --additional-config '{"specpilot": {"length": "cumulative-confidence:0.4"}}'

or with the settings in the environment variable ``SPECPILOT_VLLM``. :mod:`.settings` has the keys.
"""

from __future__ import annotations

import os
import sys
from functools import wraps
from typing import Any

__all__ = ["register"]

_registered: list[type] = []


def register() -> None:
    """The entry point. vLLM calls it in every process; what it changes is how a configuration of the engine is made.

    The engine's processes need nothing: the configuration names the worker of :mod:`.worker`.
    """
    arguments = sys.modules.get("vllm.engine.arg_utils")
    if arguments is None or arguments.EngineArgs in _registered:  # a process of the engine; or called before
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
