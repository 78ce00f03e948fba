"""Options of ``specpilot-vllm bench``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from specpilot.common.options import Count, OutputFileOptions, Several
from specpilot.compare.options import RepeatOptions
from specpilot.data_gen.options import PromptOptions
from specpilot.infer.options import PairOptions, SamplingOptions


@dataclass(frozen=True, kw_only=True)
class BenchOptions(PairOptions, PromptOptions, SamplingOptions, RepeatOptions, OutputFileOptions):
    """Benchmark.

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
