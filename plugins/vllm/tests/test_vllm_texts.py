"""Texts of controlled engines: greedy ones equal plain vLLM's, sampled ones have its distribution."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chi2_contingency
from specpilot.checkpoints import shipped
from specpilot.common.errors import InputError
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.acceptance import make_answers
from specpilot.data_gen.options import AnswersDataOptions
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.train.draft import train_draft
from specpilot.train.export import export
from specpilot.train.options import DraftTrainingOptions
from specpilot_vllm import build
from specpilot_vllm.settings import VARIABLE

from engines import configure, engine, generate, greedy, prompts, vllm_sampling  # skips without vLLM  # isort: skip
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.ops import topk_topp_sampler

GREEDY = greedy()
SAMPLES, TOKENS = 500, 4  # texts of the chi-square test, and their length
COMMON = 20  # texts that came up less often are counted together


@pytest.fixture(scope="module")
def plain() -> Any:
    return engine(drafted=0)


@pytest.fixture(scope="module")
def controlled() -> Any:
    return engine({"length": "cumulative-confidence:0.3"})


def test_greedy_texts_of_64_requests_are_those_of_plain_vllm(plain: Any, controlled: Any) -> None:
    texts = prompts(64)
    assert generate(controlled, texts, GREEDY) == generate(plain, texts, GREEDY)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"max_num_batched_tokens": 80}, id="prompts in chunks, some requests wait a step"),
        pytest.param({"enable_prefix_caching": True}, id="prefix cache"),
        pytest.param({"kv_cache_memory_bytes": 30 * 2**20}, id="preemptions"),
    ],
)
@pytest.mark.parametrize("length", ["cumulative-confidence:0.3", "heuristic:3", 5])
def test_greedy_texts_however_requests_are_scheduled(plain: Any, options: dict[str, Any], length: str | int) -> None:
    texts = prompts(12) + prompts(12)[:4]
    llm = engine({"length": length}, **options)
    assert generate(llm, texts, GREEDY) == generate(plain, texts, GREEDY)
    assert generate(llm, texts, GREEDY) == generate(plain, texts, GREEDY)  # all prompts are cached


def test_greedy_and_sampled_requests_share_a_batch(plain: Any, controlled: Any) -> None:
    texts = prompts(6)
    mixed = [GREEDY, vllm_sampling(SamplingParams(0.7, 20), 20)] * 3
    assert generate(controlled, texts, mixed)[::2] == generate(plain, texts, mixed)[::2]


def test_a_seed_determines_the_text(controlled: Any) -> None:
    texts, sampling = prompts(4), [vllm_sampling(SamplingParams(), 24, seed=i) for i in range(4)]
    first = generate(controlled, texts, sampling, seed=1)
    assert generate(controlled, texts, sampling, seed=2) == first
    assert generate(controlled, texts, sampling[::-1], seed=1) != first


def chi_square(first_engine: Any, second_engine: Any, prompt: list[int], sampling: SamplingParams) -> float:
    """Return the p-value of a test that two engines have the same distribution of continuations of a prompt."""
    params = vllm_sampling(sampling, TOKENS)
    drawn = [
        Counter(tuple(text) for text in generate(llm, [prompt] * SAMPLES, params))
        for llm in (first_engine, second_engine)
    ]
    common = [text for text, number in (drawn[0] + drawn[1]).items() if number >= COMMON]
    table = [[counts[text] for text in common] for counts in drawn]
    uncommon = [SAMPLES - sum(row) for row in table]
    if sum(uncommon) >= COMMON:
        table = [[*row, count] for row, count in zip(table, uncommon, strict=True)]
    return float(chi2_contingency(table).pvalue)


@pytest.mark.parametrize("length", ["cumulative-confidence:0.3", "confidence:0.5", "tiny-lag-free"])
def test_sampled_texts_have_the_distribution_of_plain_vllm(plain: Any, length: str) -> None:
    """Two samples of short continuations are compared. A draft that left out improbable tokens would fail."""
    settings: dict[str, Any] = {"length": length} | ({"cost": 0.15} if length == "tiny-lag-free" else {})
    llm, (prompt,) = engine(settings), prompts(1)
    assert chi_square(llm, plain, prompt, SamplingParams(1.2, 6)) > 1e-3
    assert chi_square(llm, plain, prompt, SamplingParams(0.8, None, 0.9)) > 1e-3


# A fixed length in the plugin is vLLM's own: the same drafts, the same texts, the same counters


COUNTERS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos")


def fixed_run(settings: dict[str, Any] | None) -> tuple[Any, Any, dict[str, Any]]:
    """Return texts sampled one by one, greedy texts of one batch, and vLLM's counters of both.

    Without settings, the texts are those of plain vLLM.
    """
    texts, llm = prompts(12), engine(settings, 4)  # the counters begin at 0
    sampling = vllm_sampling(SamplingParams(1.0, None), 64)
    sampled = [generate(llm, [prompt], sampling, seed)[0] for seed, prompt in enumerate(texts)]
    one_batch = generate(llm, texts, greedy(64))
    metrics = {metric.name.removeprefix("vllm:spec_decode_"): vars(metric) for metric in llm.get_metrics()}
    return sampled, one_batch, {name: metrics[name].get("value", metrics[name].get("values")) for name in COUNTERS}


def test_fixed_length_is_that_of_vllm() -> None:
    vllm_run, controlled = fixed_run(None), fixed_run({"length": 4, "drafts": "vllm"})
    assert controlled == vllm_run
    sampled, one_batch, vllm_metrics = vllm_run
    assert vllm_metrics["num_draft_tokens"] == 4 * vllm_metrics["num_drafts"] > 400
    assert 0.2 < vllm_metrics["num_accepted_tokens"] / vllm_metrics["num_draft_tokens"] < 0.8
    assert sampled != one_batch


# A draft made of the target's layers


def test_a_draft_of_two_layers_with_the_whole_vocabulary(plain: Any, tmp_path: Path) -> None:
    """vLLM loads the exported folder. Its greedy texts with this draft are those of vLLM and specpilot without."""
    answers = AnswersDataOptions(target="tiny", prompts="builtin", limit=40, max_new_tokens=48, device="cpu")
    make_answers(answers, tmp_path / "answers")
    training = DraftTrainingOptions(
        target="tiny", data=str(tmp_path / "answers"), layers=2, vocabulary=None, epochs=2, device="cpu"
    )
    train_draft(training, output=tmp_path / "run")
    draft = export(tmp_path / "run", tmp_path / "draft")
    texts = prompts(12)
    with_draft = engine(drafted=3, draft=str(draft))
    vllm_texts = generate(with_draft, texts, GREEDY)
    assert vllm_texts == generate(plain, texts, GREEDY)
    decoder = SpeculativeDecoder.from_pretrained("tiny", None, device="cpu")
    ours = decoder.generate(texts, max_new_tokens=GREEDY.max_tokens, temperature=0)
    assert vllm_texts == [output.tokens for output in ours]
    counters = {metric.name: vars(metric).get("value") for metric in with_draft.get_metrics()}
    assert counters["vllm:spec_decode_num_accepted_tokens"] > 0


# Before an engine starts: where settings come from, engines that are not controlled, and the build for CPUs is mended


def test_settings_come_from_the_configuration_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    worker_class = configure(None).parallel_config.worker_cls
    assert worker_class == "vllm.v1.worker.cpu_worker.CPUWorker"
    assert configure({"length": 4}).parallel_config.worker_cls != worker_class
    monkeypatch.setenv(VARIABLE, json.dumps({"length": "confidence:0.4"}))
    assert configure(None).parallel_config.worker_cls != worker_class
    monkeypatch.setenv(VARIABLE, '{"length": ')
    with pytest.raises(InputError, match=rf"^{VARIABLE}: not JSON .*; give an object such as"):
        configure(None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drafted": 0}, r"^speculative_config: method is none, but specpilot needs a draft model"),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}},
            r"^speculative_config: method is 'ngram', but specpilot needs a draft model",
        ),
        ({"async_scheduling": True}, r"^async_scheduling: "),
        ({"worker_cls": "mine.Worker"}, r"^worker_cls='mine.Worker': is not supported"),
    ],
)
def test_engines_that_the_plugin_does_not_steer(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        configure({"length": 4}, **options)


def test_a_controller_of_another_pair() -> None:
    other = str(shipped("tiny-draft-math"))
    speculative = {"method": "draft_model", "model": other, "num_speculative_tokens": 4}
    with pytest.raises(InputError, match="trained for target tiny and draft tiny-draft, but another draft is given"):
        engine({"length": "tiny-lag-free", "cost": 0.2}, speculative_config=speculative)


def test_the_two_faults_of_the_build_for_cpus_are_found_and_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(logits: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return logits.topk(int(k.max())).values

    def uninitialised(x: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        return x.new_full((5,), 7.0)

    configure(None)  # registers the build's kernels
    monkeypatch.setattr(topk_topp_sampler, "apply_top_k_only", fails)
    monkeypatch.setattr(rejection_sampler, "expand_batch_to_tokens", uninitialised)
    assert not build.top_k_works()
    assert not build.expansion_works()
    assert build.repair_sampling()
    assert build.top_k_works()
    assert build.expansion_works()
