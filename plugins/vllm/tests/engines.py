"""vLLM engines of the shipped pair in float32, several in one process, for tests that need vLLM."""

from __future__ import annotations

from typing import Any

import pytest
from specpilot.common.errors import InputError
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.prompts import load_prompts
from specpilot.infer.prompting import encode_prompt
from specpilot.models.loading.names import load_tokenizer
from specpilot_vllm import bench as engines
from specpilot_vllm.bench import generate, model_runner, vllm_sampling

try:
    vllm = engines.import_vllm()
except InputError:
    pytest.skip("vllm is not installed: run make test-vllm", allow_module_level=True)

__all__ = ["configure", "engine", "generate", "greedy", "model_runner", "prompts", "vllm_sampling"]

PAIR = "tiny", "tiny-draft"
SMALL = {"max_model_len": 512, "kv_cache_memory_bytes": 160 * 2**20, "dtype": "float32"}


def engine(settings: dict[str, Any] | None = None, drafted: int = 8, draft: str = PAIR[1], **more: Any) -> Any:
    """An engine that drafts up to ``drafted`` tokens with ``draft``; ``settings`` are the plugin's, if any."""
    return engines.engine(PAIR[0], draft, settings, drafted=drafted, **SMALL | more)


def configure(settings: Any, drafted: int = 8, **more: Any) -> Any:
    """The configuration of an engine, which is not started."""
    arguments = engines.arguments(*PAIR, settings, drafted=drafted, **SMALL | more)
    return vllm.EngineArgs(**arguments).create_engine_config()


def greedy(max_tokens: int = 40) -> Any:
    return vllm_sampling(SamplingParams(0.0), max_tokens)


def prompts(count: int) -> list[list[int]]:
    tokenizer = load_tokenizer("tiny")
    return [
        encode_prompt(tokenizer, row.prompt, chat=True, system=None)
        for row in load_prompts("builtin", split="test", limit=count)
    ]
