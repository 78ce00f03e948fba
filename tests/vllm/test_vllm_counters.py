"""A fixed length in the plugin is vLLM's own: the same drafts, the same texts, the same counters."""

from __future__ import annotations

from typing import Any

from specpilot.controllers.sampling import SamplingParams

from .engines import engine, generate, greedy, prompts, vllm_sampling  # skips where the extra is missing

LENGTH, TOKENS = 4, 64
COUNTERS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos")


def fixed_run(settings: dict[str, Any] | None) -> tuple[Any, Any, dict[str, Any]]:
    """Texts sampled one by one, greedy ones of one batch, and vLLM's counters of both; without settings vLLM's own."""
    texts, llm = prompts(12), engine(settings, LENGTH)  # the counters begin at 0
    sampling = vllm_sampling(SamplingParams(1.0, None), TOKENS)
    sampled = [generate(llm, [prompt], sampling, seed)[0] for seed, prompt in enumerate(texts)]
    one_batch = generate(llm, texts, greedy(TOKENS))
    found = {metric.name.removeprefix("vllm:spec_decode_"): vars(metric) for metric in llm.get_metrics()}
    return sampled, one_batch, {name: found[name].get("value", found[name].get("values")) for name in COUNTERS}


def test_fixed_length_is_that_of_vllm() -> None:
    own, steered = fixed_run(None), fixed_run({"length": LENGTH, "drafts": "vllm"})
    assert steered == own
    sampled, one_batch, found = own
    assert found["num_draft_tokens"] == LENGTH * found["num_drafts"] > 400
    assert 0.2 < found["num_accepted_tokens"] / found["num_draft_tokens"] < 0.8
    assert sampled != one_batch
