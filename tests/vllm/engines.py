"""vLLM engines of the shipped pair, several in one process, for tests that need the extra ``vllm``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch

# Read by vLLM when it is imported: the engine runs in this process, and says little.
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1")
pytest.importorskip("vllm")

from specpilot.checkpoints import shipped
from specpilot.data_gen.prompts import load_prompts
from specpilot.infer.loading import load_tokenizer
from specpilot.infer.prompting import encode_prompt
from vllm import LLM, EngineArgs, SamplingParams

TARGET, DRAFT = str(shipped("tiny")), str(shipped("tiny-draft"))
CELLS = 160 * 2**20  # bytes of keys and values
COUNTERS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos")


def options(length: dict[str, Any] | None = None, drafted: int = 8, **more: Any) -> dict[str, Any]:
    """Arguments of an engine that drafts up to ``drafted`` tokens; ``length`` are the plugin's settings, if any."""
    speculative = {"method": "draft_model", "model": DRAFT, "num_speculative_tokens": drafted}
    return {
        "model": TARGET,
        "dtype": "float32",
        "max_model_len": 512,
        "max_num_seqs": 64,
        "enforce_eager": True,
        "disable_log_stats": False,
        "enable_prefix_caching": False,
        "kv_cache_memory_bytes": CELLS,
        "speculative_config": {**speculative, "draft_sample_method": "probabilistic"} if drafted else None,
        "additional_config": {} if length is None else {"specpilot": length},
        **more,
    }


_made: list[LLM] = []  # an engine that goes ends what the others of its process share


def engine(length: dict[str, Any] | None = None, drafted: int = 8, **more: Any) -> LLM:
    _made.append(LLM(**options(length, drafted, **more)))
    return _made[-1]


def configure(length: Any, drafted: int = 8, **more: Any) -> Any:
    """The configuration of an engine, which is not started."""
    return EngineArgs(**options(length, drafted, **more)).create_engine_config()


def runner(llm: LLM) -> Any:
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


def prompts(count: int) -> list[list[int]]:
    tokenizer = load_tokenizer("tiny")
    return [
        encode_prompt(tokenizer, row.prompt, chat=True, system=None)
        for row in load_prompts("builtin", split="test", limit=count)
    ]


def generate(
    llm: LLM, texts: Sequence[list[int]], sampling: SamplingParams | Sequence[SamplingParams], seed: int = 0
) -> list[list[int]]:
    """New tokens after each of ``texts``, which share rounds."""
    torch.manual_seed(seed)
    outputs = llm.generate([{"prompt_token_ids": text} for text in texts], sampling, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def counters(llm: LLM) -> dict[str, Any]:
    """vLLM's counters of speculation; those of all engines of the process together."""
    found = {metric.name.removeprefix("vllm:spec_decode_"): metric for metric in llm.get_metrics()}
    return {name: vars(found[name]).get("value", vars(found[name]).get("values")) for name in COUNTERS if name in found}
