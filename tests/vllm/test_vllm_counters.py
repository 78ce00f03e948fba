"""A fixed length in the plugin is vLLM's own: the same drafts, the same texts, the same counters."""

from __future__ import annotations

from .engines import PAIR, prompts  # skips where the extra is missing  # isort: skip
from specpilot.compare.engines.vllm import CHECKED, fixed_run


def test_fixed_length_is_that_of_vllm() -> None:
    texts = prompts(12)
    own, steered = fixed_run(*PAIR, texts, None), fixed_run(*PAIR, texts, {"length": CHECKED, "drafts": "vllm"})
    assert steered == own
    sampled, greedy, found = own
    assert found["num_draft_tokens"] == CHECKED * found["num_drafts"] > 400
    assert 0.2 < found["num_accepted_tokens"] / found["num_draft_tokens"] < 0.8
    assert sampled != greedy
