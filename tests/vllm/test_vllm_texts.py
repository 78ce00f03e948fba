"""Texts of steered engines: greedy ones equal plain vLLM's, sampled ones have its distribution."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from scipy.stats import chi2_contingency

from .engines import LLM, SamplingParams, engine, generate, prompts, runner  # skips where the extra is missing

GREEDY = SamplingParams(temperature=0.0, max_tokens=40)


@pytest.fixture(scope="module")
def plain() -> LLM:
    return engine(drafted=0)


@pytest.fixture(scope="module")
def steered() -> LLM:
    return engine({"length": "cumulative-confidence:0.3"})


def test_greedy_texts_of_64_requests_are_those_of_plain_vllm(plain: LLM, steered: LLM) -> None:
    texts = prompts(64)
    assert generate(steered, texts, GREEDY) == generate(plain, texts, GREEDY)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"max_num_batched_tokens": 80}, id="prompts in chunks, some requests wait a step"),
        pytest.param({"enable_prefix_caching": True}, id="prefix cache"),
        pytest.param({"kv_cache_memory_bytes": 30 * 2**20}, id="preemptions"),
    ],
)
@pytest.mark.parametrize("length", ["cumulative-confidence:0.3", "heuristic:3", 5])
def test_greedy_texts_however_requests_are_scheduled(plain: LLM, options: dict[str, Any], length: str | int) -> None:
    texts = prompts(12) + prompts(12)[:4]
    llm = engine({"length": length}, **options)
    assert generate(llm, texts, GREEDY) == generate(plain, texts, GREEDY)
    assert generate(llm, texts, GREEDY) == generate(plain, texts, GREEDY)  # all prompts are cached


def test_greedy_and_sampled_requests_share_a_batch(plain: LLM, steered: LLM) -> None:
    texts = prompts(6)
    mixed = [GREEDY, SamplingParams(temperature=0.7, top_k=20, max_tokens=20)] * 3
    assert generate(steered, texts, mixed)[::2] == generate(plain, texts, mixed)[::2]


def test_a_seed_determines_the_text(steered: LLM) -> None:
    texts, sampling = prompts(4), [SamplingParams(temperature=1.0, top_k=50, seed=i, max_tokens=24) for i in range(4)]
    first = generate(steered, texts, sampling, seed=1)
    assert generate(steered, texts, sampling, seed=2) == first
    assert generate(steered, texts, sampling[::-1], seed=1) != first


@pytest.mark.parametrize("length", ["cumulative-confidence:0.3", "confidence:0.5", "tiny-lag-free"])
def test_sampled_texts_have_the_distribution_of_plain_vllm(plain: LLM, length: str) -> None:
    """Two samples of three-token continuations; a draft that dropped tokens for their probability would fail."""
    settings: dict[str, Any] = {"length": length} | ({"cost": 0.15} if length == "tiny-lag-free" else {})
    llm, (prompt,) = engine(settings), prompts(1)
    assert chi_square(llm, plain, prompt, SamplingParams(temperature=1.2, top_k=6, max_tokens=4)) > 1e-3
    assert chi_square(llm, plain, prompt, SamplingParams(temperature=0.8, top_p=0.9, max_tokens=4)) > 1e-3


def chi_square(one: LLM, other: LLM, prompt: list[int], sampling: SamplingParams, count: int = 500) -> float:
    """p-value of both engines having one distribution of continuations; rare ones are counted together."""
    samples = [Counter(tuple(text) for text in generate(llm, [prompt] * count, sampling)) for llm in (one, other)]
    total = samples[0] + samples[1]
    common = [text for text, number in total.items() if number >= 12]
    table = [[sample[text] for text in common] for sample in samples]
    rest = [count - sum(row) for row in table]
    if sum(rest) >= 12:
        table = [[*row, left] for row, left in zip(table, rest, strict=True)]
    assert len(table[0]) > 10
    return float(chi2_contingency(table).pvalue)


def test_drafts_of_one_step_have_different_lengths_and_requests_are_released(steered: LLM) -> None:
    drafter = runner(steered).drafter
    seen: list[set[int]] = []
    drafts = drafter.drafts

    def spy(*arguments: Any) -> list[list[int]]:
        found = drafts(*arguments)
        seen.append({len(draft) for draft in found})
        assert drafter.requests.keys() == set(runner(steered).input_batch.req_ids)
        return found

    drafter.drafts = spy
    try:
        generate(steered, prompts(8), GREEDY)
    finally:
        drafter.drafts = drafts
    assert max(map(len, seen)) >= 4  # lengths in one step
    generate(steered, prompts(1), SamplingParams(max_tokens=1))
    assert len(drafter.requests) <= 1  # the last one, until the engine's next step
    controllers = [request.length for request in drafter.requests.values()]
    assert drafter.length not in controllers
