"""Options of ``specpilot-vllm bench`` and ``specpilot-vllm times``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from specpilot.common.options import Count, Options, OutputFileOptions, Several
from specpilot.compare.options import RepeatOptions
from specpilot.data_gen.options import PromptOptions
from specpilot.infer.options import PairOptions, SamplingOptions


@dataclass(frozen=True, kw_only=True)
class BenchOptions(PairOptions, PromptOptions, SamplingOptions, RepeatOptions, OutputFileOptions):
    """Benchmark.

    Options of ``specpilot-vllm bench``.

    Attributes:
        length: Length controller of the plugin. Trained controllers and online-confidence use the measured costs.
        longest: Maximum number of tokens of a draft.
        fixed: Draft lengths of vLLM's drafter; an engine is started for each.
        batches: Number of batches of 64 requests in a repetition.
        cost: File for the measured costs, which the plugin's setting cost can name.
    """

    split: str = "test"
    limit: Count = 20
    length: str = "tiny-lag-free"
    longest: Count = 10
    fixed: Annotated[tuple[Count, ...], Several()] = (1, 2, 3, 4, 5, 6)
    batches: Count = 2
    cost: Path = Path("runs/vllm-cost.json")


@dataclass(frozen=True, kw_only=True)
class TimesOptions(Options):
    """Measurement.

    Options of ``specpilot-vllm times``.

    Attributes:
        target: Model that vLLM serves.
        speculative_config: vLLM's speculative_config as JSON, with any drafting method. The command sets
            num_speculative_tokens and num_speculative_tokens_per_batch_size.
        longest: Maximum number of tokens of a draft.
        requests: Numbers of requests in a step. The largest is vLLM's max_num_seqs.
        engine: Other arguments of vllm.LLM as JSON.
        output: File for the times.
    """

    target: str = "tiny"
    speculative_config: str = '{"method": "draft_model", "model": "tiny-draft"}'
    longest: Count = 8
    requests: Annotated[tuple[Count, ...], Several()] = (1, 2, 4, 8, 16, 32, 64)
    engine: str = "{}"
    output: Path = Path("runs/vllm-times.json")
