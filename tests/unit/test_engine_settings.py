"""Settings of other engines on synthetic acceptance and costs, with values computed by hand."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from specpilot.compare.assisted import COSTED, round_costs
from specpilot.compare.chains import (
    ChainCounts,
    ChainSetting,
    LoggedChains,
    ReplayedChains,
    replay_chain,
    replay_lookup,
)
from specpilot.compare.engine_settings import (
    COPIES,
    EAGLE_ONLY,
    GRAPHS,
    MODEL,
    NO_DRAFTS,
    TRANSFORMERS_COSTS,
    TRIMMED,
    Drafting,
    EngineCosts,
    changes_of,
    choose,
    option_lines,
    remarks_of,
    schedule,
    settings_of,
)
from specpilot.compare.interval import Interval
from specpilot.compare.results import DraftChoice, EngineSetting, EngineSettings
from specpilot.compare.verdict import Answer
from specpilot.controllers.acceptance.ngram_index import NO_MATCH
from specpilot.controllers.length import MAX_DRAFT, Fixed
from specpilot.controllers.length.cost_model import BatchCosts, CostModel
from specpilot.simulate.replay import replay
from specpilot.simulate.trace import END, Trace

from experiments.studies.settings_sweep import PROBABILISTIC, WITHOUT, Setting, costs_of, nearest, share_of_the_best

from ..helpers.traces import traced_text

CHEAP = CostModel(0.1, 1.0, 0.0)  # a draft step takes 0.1 of a verification
EXPENSIVE = CostModel(0.9, 1.0, 0.0)


def logged(*acceptance: float, prompts: int = 10) -> LoggedChains:
    """Return rounds in which every prompt has the same acceptance rate at each token."""
    verified = np.full((prompts, len(acceptance)), 1000.0)
    return LoggedChains(verified, verified * np.array(acceptance))


def drafting(chains: LoggedChains, sampled: LoggedChains | None = None, copies: Any = None) -> Drafting:
    return Drafting(greedy=chains, sampled=sampled or chains, copies=copies, acceptance="Acceptance is synthetic.")


def settings(chains: LoggedChains, costs: EngineCosts, draft: str | None = "small", **more: Any) -> EngineSettings:
    result = settings_of(drafting(chains, **more), costs, draft)
    assert result is not None
    return result


def at(cost: CostModel, batch: BatchCosts | None = None) -> EngineCosts:
    return EngineCosts(cost, "synthetic costs", batch)


def trace_of(text: list[int], kept: list[bool], confidences: list[float], prompt: list[int] | None = None) -> Trace:
    """Return a trace whose drafts end at a rejected token."""
    after = [i + 1 if keep and i + 1 < len(text) else END for i, keep in enumerate(kept)]
    signals = [(confidence, confidence, 0.0) for confidence in confidences]
    no_matches = [NO_MATCH] * len(text)
    return Trace(
        text=text, budget=len(text), kept=kept, after=after, tokens=text, q=confidences, signals=signals,
        ngram_matches=no_matches, accept=[float(keep) for keep in kept], states=None, prompt=prompt or [],  # type: ignore[arg-type]
    )  # fmt: skip


# speeds by hand: (1 + Σ Π a) / (1 + K · t_draft)
SPEEDS = [
    ((0.8,), CHEAP, 1, 1.8 / 1.1),
    ((0.8, 0.5), CHEAP, 2, 2.2 / 1.2),
    ((0.8, 0.5, 0.1), CHEAP, 2, 2.2 / 1.2),  # a third token: 2.24 / 1.3
    ((0.5, 0.5), EXPENSIVE, 0, 1.5 / 1.9),
    ((0.8, 0.8), CostModel(0.1, 0.5, 0.5), 1, 1.8 / 1.6),  # two tokens: 2.44 / 2.2
    ((0.8, 0.8), CostModel(0.1, 1.0, 0.0, 0.5), 2, 2.44 / 1.7),  # a round that drafts starts slowly
]


@pytest.mark.parametrize(("acceptance", "cost", "length", "speed"), SPEEDS)
def test_the_fastest_length_and_its_speed(
    acceptance: tuple[float, ...], cost: CostModel, length: int, speed: float
) -> None:
    choice = choose(logged(*acceptance), cost)
    assert choice is not None
    assert choice.length == length
    assert choice.speed.value == pytest.approx(speed)
    assert choice.speed.low == pytest.approx(speed)  # all prompts are alike
    assert choice.answer == (Answer.PAYS if length else Answer.DOES_NOT_PAY)


def test_neighbours_are_the_lengths_beside_the_best_one() -> None:
    choice = choose(logged(0.8, 0.5, 0.1), CHEAP)
    assert choice is not None
    assert choice.neighbours == pytest.approx({"1": 1.8 / 1.1, "3": 2.24 / 1.3})


def test_the_interval_is_over_prompts() -> None:
    accepted = np.array([[900.0], [100.0]] * 5)
    choice = choose(LoggedChains(np.full((10, 1), 1000.0), accepted), CHEAP)
    assert choice is not None
    assert choice.speed.value == pytest.approx(1.5 / 1.1)
    assert choice.speed.low < 1.25
    assert choice.speed.high > 1.45


def test_lengths_with_few_rounds_are_left_out() -> None:
    chains = LoggedChains(np.array([[100.0, 100.0, 5.0]]), np.array([[90.0, 90.0, 5.0]]))
    assert [setting.length for setting in chains.settings] == [1, 2]
    assert settings_of(drafting(LoggedChains(np.zeros((1, 3)), np.zeros((1, 3)))), at(CHEAP)) is None


def test_options_of_every_engine() -> None:
    lines = option_lines(settings(logged(0.8, 0.5, 0.1), at(CHEAP)))
    assert lines["vLLM"] == (
        """--speculative-config '{"method": "draft_model", "model": "small", "num_speculative_tokens": 2}'"""
    )
    assert lines["SGLang"] == (
        "--speculative-algorithm STANDALONE --speculative-draft-model-path small --speculative-num-steps 2 "
        "--speculative-eagle-topk 1 --speculative-num-draft-tokens 3"
    )
    assert lines["TensorRT-LLM"] == (
        "speculative_config: {decoding_type: DraftTarget, speculative_model: small, max_draft_len: 2}"
    )
    assert lines["llama.cpp"] == (
        "--spec-type draft-simple --spec-draft-model small --spec-draft-n-max 2 --spec-draft-n-min 0 "
        "--spec-draft-p-min 0"
    )
    assert lines["transformers"] == (
        'assistant.generation_config.update(num_assistant_tokens=2, num_assistant_tokens_schedule="constant", '
        "assistant_confidence_threshold=0.0)"
    )


def test_the_longest_recorded_draft_is_named() -> None:
    words = "No draft longer than 2 tokens was recorded."
    assert words in " ".join(remarks_of(settings(logged(0.8, 0.5), at(CHEAP))))
    assert words not in " ".join(remarks_of(settings(logged(0.8, 0.5, 0.1), at(CHEAP))))


def test_options_of_an_eagle3_draft() -> None:
    eagle = replace(drafting(logged(0.8, 0.5, 0.1)), is_eagle3=True)
    result = settings_of(eagle, at(CHEAP, BATCH), "small")
    assert result is not None
    lines = option_lines(replace(result, engines=[replace(each, schedule_options="") for each in result.engines]))
    assert lines.keys() == {"vLLM", "SGLang", "TensorRT-LLM"}
    assert '{"method": "eagle3", "model": "small", "num_speculative_tokens": 2' in lines["vLLM"]
    assert lines["SGLang"].startswith("--speculative-algorithm EAGLE3 --speculative-draft-model-path small ")
    assert "decoding_type: Eagle3, speculative_model: small" in lines["TensorRT-LLM"]
    assert result["SGLang"].schedule_options
    assert EAGLE_ONLY not in result["SGLang"].notes


def test_chains_of_logged_rounds() -> None:
    chains = LoggedChains.of([[[1.0, 0.5], [0.25]], [[0.75, 1.0, 0.5]], []])
    assert chains.verified[:, :4].tolist() == [[2, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]]
    assert chains.accepted[:, :4].tolist() == [[1.25, 0.5, 0, 0], [0.75, 1.0, 0.5, 0], [0, 0, 0, 0]]


def test_options_without_the_name_of_a_draft() -> None:
    lines = option_lines(settings(logged(0.8, 0.5, 0.1), at(CHEAP), draft=None))
    assert lines["vLLM"] == """--speculative-config '{"num_speculative_tokens": 2}'"""
    assert lines["SGLang"].startswith("--speculative-num-steps 2 ")


BATCH = BatchCosts((1, 2, 4), (CHEAP, CostModel(0.1, 0.6, 0.4), EXPENSIVE))
# At 3 requests drafting is off as well, because drafts never pay at 4 with a higher cost: see BatchCosts.at.


def test_a_length_for_each_batch_size() -> None:
    chains = logged(0.8, 0.5)
    table = schedule(chains, BATCH)
    assert [chains.value(ChainSetting(length), BATCH.at(2)) for length in (1, 2)] == pytest.approx([1.2, 2.2 / 2.0])
    assert table[0] == (1, 1, 2)
    assert table[1][2] == 1
    assert table[-1][1:] == (4, 0)
    result = settings(chains, at(CHEAP, BATCH))
    assert result.off_from == table[-1][0]
    assert f"Drafting is off from {result.off_from} requests" in " ".join(remarks_of(result))
    vllm = json.loads(result["vLLM"].options.split("'")[1])
    assert vllm["num_speculative_tokens_per_batch_size"] == [list(row) for row in table]
    assert vllm["num_speculative_tokens"] == 2
    assert GRAPHS in result["vLLM"].notes
    ends = {str(size): {"candidate_steps": [length]} for low, high, length in table for size in (low, high)}
    assert json.loads(result["SGLang"].schedule_options) == ends
    pairs = ", ".join(f"{high}: {length}" for _, high, length in table[:-1])
    assert f"max_draft_len: 2, draft_len_schedule: {{{pairs}}}" in result["TensorRT-LLM"].options


def test_one_length_for_all_batch_sizes_needs_no_table() -> None:
    result = settings(logged(0.8, 0.5), at(CHEAP, BatchCosts((1, 2), (CHEAP, CHEAP))))
    assert "per_batch_size" not in result["vLLM"].options
    assert result.off_from is None
    assert result["SGLang"].schedule_options == ""


def test_llama_cpp_gets_a_minimum_confidence_where_that_is_faster() -> None:
    """The draft has a high confidence only for the first tokens of a text, which are accepted."""
    confidences = [0.9] * 12 + [0.3] * 8
    traced = trace_of([*range(20)], [each > 0.5 for each in confidences], confidences)
    counts = {
        ChainSetting(1, p_min): np.array([replay_chain(traced, ChainSetting(1, p_min)).row] * 10, dtype=float)
        for p_min in (0.0, 0.6)
    }
    costs = CostModel(0.01, 0.7, 0.3)  # 12 tokens are verified in 13 rounds, or with a minimum confidence 6
    result = settings_of(drafting(ReplayedChains(counts)), at(costs), "small")
    assert result is not None
    assert result["llama.cpp"].choice.p_min == 0.6
    assert "--spec-draft-n-max 1 --spec-draft-n-min 0 --spec-draft-p-min 0.6" in result["llama.cpp"].options
    assert result["llama.cpp"].choice.speed.value == pytest.approx(19 / (13 + 6 * 0.3 + 12 * 0.01))
    assert result["SGLang"].choice.speed.value == pytest.approx(19 / (13 + 12 * 0.3 + 12 * 0.01))


def test_groups_of_few_prompts_are_left_out() -> None:
    chains = LoggedChains(np.full((12, 1), 1000.0), np.array([[800.0]] * 6 + [[50.0]] * 6))
    first, second = np.arange(12) < 6, np.arange(12) >= 6
    groups = {"domain": {"a": first, "b": second, "c": np.arange(12) < 2}, "temperature": {"1": first | second}}
    result = settings_of(drafting(chains), at(CHEAP), groups=groups)
    assert result is not None
    assert {name: choice.length for name, choice in result.groups["domain"].items()} == {"a": 1, "b": 0}
    assert "temperature" not in result.groups  # one group is all prompts


def test_nothing_pays() -> None:
    result = settings(logged(0.3, 0.3), at(EXPENSIVE))
    assert {each.drafts for each in result.engines} == {"none"}
    assert {each.choice.length for each in result.engines} == {0}
    assert "start without --speculative-config" in result["vLLM"].options
    assert "Leave drafting off." in " ".join(remarks_of(result))


def test_few_prompts_cannot_decide() -> None:
    result = settings(logged(0.8, 0.5, prompts=3), at(CHEAP))
    assert result["vLLM"].choice.answer == Answer.UNDECIDED
    assert "These prompts cannot decide whether drafting pays in vLLM" in " ".join(remarks_of(result))


def test_copies_are_recommended_where_they_are_faster() -> None:
    result = settings(logged(0.8, 0.5), at(CHEAP), copies=logged(0.95, 0.95, 0.95))
    assert {each.engine for each in result.engines if each.drafts == "copies"} == {"vLLM", "transformers"}
    assert '"method": "ngram"' in result["vLLM"].options
    assert "prompt_lookup_num_tokens=3" in result["transformers"].options
    slower = settings(logged(0.8, 0.5), at(CHEAP), copies=logged(0.1))
    assert {each.drafts for each in slower.engines} == {"draft model"}


def test_vllm_samples_drafts_where_that_is_faster() -> None:
    result = settings(logged(0.5), at(CHEAP), sampled=logged(0.8))
    assert '"draft_sample_method": "probabilistic"' in result["vLLM"].options
    assert result["vLLM"].choice.speed.value == pytest.approx(1.8 / 1.1)
    assert result["SGLang"].choice.speed.value == pytest.approx(1.5 / 1.1)
    assert "probabilistic" not in settings(logged(0.8), at(CHEAP), sampled=logged(0.5))["vLLM"].options


def test_transformers_has_costs_of_its_own_rounds() -> None:
    """A start of 0.7 verifications makes every draft of transformers slow, but not that of other engines."""
    rounds = CostModel(0.1, 1.0, 0.0, 0.7)
    result = settings_of(drafting(logged(0.8, 0.5)), at(CHEAP), "small", transformers=rounds)
    assert result is not None
    assert {each.engine: each.choice.length for each in result.engines} == {
        "vLLM": 2, "SGLang": 2, "TensorRT-LLM": 2, "llama.cpp": 2, "transformers": 2
    }  # fmt: skip
    assert result["transformers"].choice.speed.value == pytest.approx(2.2 / 1.9)
    assert result["vLLM"].choice.speed.value == pytest.approx(2.2 / 1.2)
    assert TRANSFORMERS_COSTS in remarks_of(result)
    slow = settings_of(drafting(logged(0.5)), at(CHEAP), "small", transformers=rounds)
    assert slow is not None
    assert {each.engine for each in slow.engines if each.drafts == NO_DRAFTS} == {"transformers"}
    assert TRANSFORMERS_COSTS not in remarks_of(settings(logged(0.8), at(CHEAP)))


def test_settings_for_a_draft_with_a_part_of_the_vocabulary_name_the_export() -> None:
    trimmed = replace(drafting(logged(0.8, 0.5)), is_trimmed=True)
    result = settings_of(trimmed, at(CHEAP), "small")
    assert result is not None
    assert all(TRIMMED in each.notes for each in result.engines)
    copied = settings_of(replace(trimmed, copies=logged(0.95, 0.95, 0.95)), at(CHEAP), "small")
    assert copied is not None
    assert [each.engine for each in copied.engines if TRIMMED in each.notes] == ["SGLang", "TensorRT-LLM", "llama.cpp"]


def test_costs_of_rounds_are_fitted_to_the_mean_round_of_each_length() -> None:
    costs = CostModel(0.2, 0.9, 0.1, 0.3)
    decodings = [(n, costs.round(n) * forwards, forwards) for n in COSTED for forwards in (10.0, 20.0)]
    fitted = round_costs(decodings)
    expected = [costs.round(n) for n in COSTED]
    assert [fitted.round(n) for n in COSTED] == pytest.approx(expected, rel=1e-2)  # the fit also has points of a prior


CHANGES = [
    ((0.8, 0.5), (0.8, 0.5), "need not change from a to b: 2 tokens is best in both"),
    ((0.8, 0.1), (0.9, 0.9), "should change from 1 token to 2 tokens: that gives"),
    ((0.8, 0.5), (0.8, 0.12), "should change from 2 tokens to 1 token"),
    ((0.05, 0.1), (0.8, 0.1), "should change from no drafts to 1 token: that gives 1.64 × the speed in b"),
    ((0.8, 0.1), (0.05, 0.1), "should change from 1 token to no drafts: that gives 1.05 ×"),
]


@pytest.mark.parametrize(("first", "second", "words"), CHANGES)
def test_changes_from_one_dataset_to_another(first: tuple[float, ...], second: tuple[float, ...], words: str) -> None:
    chains = logged(*second)
    pair = [settings(each, at(CHEAP)) for each in (logged(*first), chains)]
    (sentence,) = changes_of(pair[0], pair[1], chains, CHEAP, ("a", "b"))
    assert words in sentence


def test_a_change_within_the_noise_is_not_recommended() -> None:
    rates = np.array([[900.0, 900.0], [900.0, 0.0]] * 5)
    chains = LoggedChains(np.full((10, 2), 1000.0), rates)  # the second token: 0.9 or 0
    costs = CostModel(0.26, 1.0, 0.0)
    pair = [settings(each, at(costs)) for each in (logged(0.9, 0.1), chains)]
    assert [each["vLLM"].choice.length for each in pair] == [1, 2]
    (sentence,) = changes_of(pair[0], pair[1], chains, costs, ("a", "b"))
    assert "need not change: a change from 1 token to 2 tokens gives 1.0" in sentence


def rounds(*numbers: int) -> list[int]:
    """Return numbers of rounds by number of drafted tokens."""
    return [*numbers, *[0] * (MAX_DRAFT + 1 - len(numbers))]


def test_replayed_chains_end_below_the_minimum_confidence() -> None:
    kept = [True, True, True, False, True, True]
    traced = trace_of([5, 6, 7, 8, 9, 3], kept, [1.0, 0.9, 0.5, 0.3, 0.9, 0.9])
    # rounds after the prefill's token: [6 7], 8 | [9], 3; the last round may not exceed the budget
    assert replay_chain(traced, ChainSetting(2)) == ChainCounts(5, 3, 2, rounds(0, 1, 1))
    # the token 7 is drafted and not verified: [6], 7 | nothing (8), 8 | [9], 3
    assert replay_chain(traced, ChainSetting(2, 0.6)) == ChainCounts(5, 4, 3, rounds(1, 2))


def test_replayed_copies_follow_the_first_occurrence() -> None:
    traced = trace_of([1, 2, 3, 9, 1, 2], [False] * 6, [0.5] * 6, prompt=[1, 2, 3, 4, 7])
    # text 1: copies 2 3 of the prompt, then the target's 9 | 9 is new: the target's 1 | 1: one token remains, no copy
    assert replay_lookup(traced, ChainSetting(2)) == ChainCounts(5, 0, 1, rounds(2, 0, 1))


def test_speeds_of_replayed_counters() -> None:
    cost = CostModel(0.1, 0.8, 0.2, 0.3)
    counts = {ChainSetting(2): np.array([ChainCounts(20, 20, 9, rounds(1, 0, 9)).row])}
    seconds = 0.1 * 20 + 0.2 * 18 + 1.0 * 10 + 0.3 * 9
    assert ReplayedChains(counts).value(ChainSetting(2), cost) == pytest.approx(20 / seconds)
    stepped = replace(cost, verify_shape=((1, 1.0), (2, 1.0), (3, 6.0)))  # three tokens take a second more than one
    seconds = 0.1 * 20 + 1.0 * 10 + 1.0 * 9 + 0.3 * 9
    assert ReplayedChains(counts).value(ChainSetting(2), stepped) == pytest.approx(20 / seconds)


def test_settings_are_stored_as_json() -> None:
    result = settings(logged(0.8, 0.5), at(CHEAP, BATCH))
    assert EngineSettings.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    with pytest.raises(KeyError, match="unknown"):
        result["unknown"]


def sweep(speeds: Mapping[Setting, float], costs: CostModel = CHEAP) -> dict[Setting, Any]:
    """Tokens, seconds and forwards of six prompts: one forward each, with the time of ``costs``."""
    rounds = {setting: costs.round(setting.length) for setting in speeds}
    return {
        setting: np.array([[speed * rounds[setting], rounds[setting], 1.0]] * 6) for setting, speed in speeds.items()
    }


SWEPT = {
    WITHOUT: 10.0, Setting(MODEL, 1): 15.0, Setting(MODEL, 3): 20.0, Setting(COPIES, 4): 18.0,
    Setting(PROBABILISTIC, 2): 12.0,
}  # fmt: skip


def test_the_share_of_the_best_speed_of_a_sweep() -> None:
    best, share = share_of_the_best(sweep(SWEPT), Setting(COPIES, 4))
    assert best == Setting(MODEL, 3)
    assert share.to_dict() == pytest.approx({"value": 0.9, "low": 0.9, "high": 0.9})


def test_costs_of_the_rounds_of_a_sweep() -> None:
    costs = CostModel(0.2, 0.9, 0.1, 0.3)
    fitted = costs_of(sweep({WITHOUT: 1.0} | {Setting(MODEL, n): 1.0 for n in (1, 2, 4, 8)}, costs))
    assert [fitted.round(n) for n in (0, 1, 8)] == pytest.approx(
        [costs.round(n) for n in (0, 1, 8)],
        rel=1e-3,  # the fit also has points of a prior
    )


@pytest.mark.parametrize(
    ("drafts", "length", "options", "timed"),
    [
        (MODEL, 3, "", Setting(MODEL, 3)),
        (MODEL, 2, "", Setting(MODEL, 1)),
        (MODEL, 3, '"draft_sample_method": "probabilistic"', Setting(PROBABILISTIC, 2)),
        (COPIES, 2, "", Setting(COPIES, 4)),
        (WITHOUT.drafts, 0, "", WITHOUT),
    ],
)
def test_recommendations_are_those_of_the_nearest_timed_setting(
    drafts: str, length: int, options: str, timed: Setting
) -> None:
    choice = DraftChoice(
        length=length, p_min=0.0, speed=Interval(1.0, 1.0, 1.0), neighbours={}, prompts=6, answer="pays"
    )
    assert nearest(SWEPT, EngineSetting(engine="x", drafts=drafts, choice=choice, options=options)) == timed


@pytest.mark.parametrize("length", [1, 2, 5, 12])
def test_chains_without_a_minimum_confidence_are_those_of_the_replay(length: int) -> None:
    """Engines that verify every drafted token decode as specpilot does with a fixed length."""
    *_, drafts = traced_text(budget=40)
    stats = replay(drafts, Fixed(length), frozenset())
    assert stats.n_accepted > 0
    assert replay_chain(drafts, ChainSetting(length)) == ChainCounts(
        stats.n_generated - 1, stats.n_draft_forwards, sum(stats.rounds[1:]), stats.rounds
    )
