"""Whether steered vLLM engines do what plain ones do: counters of a fixed length, greedy texts, sampled texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...controllers.sampling import SamplingParams
from .vllm_engines import counters, engine, generate, vllm_sampling

if TYPE_CHECKING:
    from vllm import LLM

FIXED = 4  # tokens a draft
MAX_TOKENS = 64
SAMPLES, TOKENS = 1500, 4  # texts of the chi-square test, and their length
COMMON = 20  # texts that came up less often are counted together


def fixed_run(
    target: str, draft: str, prompts: Sequence[list[int]], settings: dict[str, Any] | None
) -> tuple[list[list[int]], list[list[int]], dict[str, Any]]:
    """Texts sampled one by one, greedy ones of one batch, and vLLM's counters of both, at a fixed length.

    Args:
        settings: the plugin's; None for vLLM's own drafter.
    """
    llm = engine(target, draft, settings, drafted=FIXED, dtype="float32")  # the counters begin at 0
    sampling = vllm_sampling(SamplingParams(1.0, None), MAX_TOKENS)
    sampled = [generate(llm, [prompt], sampling, seed)[0] for seed, prompt in enumerate(prompts)]
    greedy = generate(llm, prompts, vllm_sampling(SamplingParams(0.0), MAX_TOKENS))
    return sampled, greedy, counters(llm)


def chi_square(one: LLM, other: LLM, prompt: list[int], sampling: SamplingParams, samples: int = SAMPLES) -> float:
    """p-value of two engines having the same distribution of short continuations of a prompt."""
    from scipy.stats import chi2_contingency

    params = vllm_sampling(sampling, TOKENS)
    drawn = [Counter(tuple(text) for text in generate(llm, [prompt] * samples, params)) for llm in (one, other)]
    total = drawn[0] + drawn[1]
    common = [text for text, number in total.items() if number >= COMMON]
    table = [[found[text] for text in common] for found in drawn]
    rest = [samples - sum(row) for row in table]
    if sum(rest) >= COMMON:
        table = [[*row, left] for row, left in zip(table, rest, strict=True)]
    return float(chi2_contingency(table).pvalue)
