"""A fixed length in the plugin is vLLM's own: the same drafts, the same texts, the same counters."""

from __future__ import annotations

from typing import Any

from .engines import SamplingParams, counters, engine, generate, prompts  # skips where the extra is missing


def test_fixed_length_is_that_of_vllm() -> None:
    own, steered = run(None), run({"length": 4, "drafts": "vllm"})
    assert steered == own
    sampled, greedy, found = own
    assert found["num_draft_tokens"] == 4 * found["num_drafts"] > 400
    assert 0.2 < found["num_accepted_tokens"] / found["num_draft_tokens"] < 0.8
    assert sampled != greedy


def run(settings: dict[str, Any] | None) -> tuple[list[list[int]], list[list[int]], dict[str, Any]]:
    """Sampled texts one by one, greedy texts of one batch, and the counters of both."""
    from specpilot.infer.integrations.vllm.cpu_build import mend

    llm = engine(settings, drafted=4)  # its counters begin at 0, and those of earlier engines end
    assert mend()  # vLLM's own sampling as well
    texts = prompts(12)
    sampled = [generate(llm, [text], SamplingParams(temperature=1.0, max_tokens=48))[0] for text in texts]
    greedy = generate(llm, texts, SamplingParams(temperature=0.0, max_tokens=48))
    return sampled, greedy, counters(llm)
