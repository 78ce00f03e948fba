"""The default configuration of drafts: equal from the command line and Python, with the same texts."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from specpilot.common.errors import InputError
from specpilot.compare.decoders import DEFAULT, Loader, decoders_of
from specpilot.compare.options import CompareOptions
from specpilot.compare.results import ComparisonReport
from specpilot.compare.run import run
from specpilot.controllers.length import Fixed, OnlineConfidence
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.length.running_cost import RunningCost
from specpilot.data_gen.on_policy import rounds_of
from specpilot.infer.core import Generation, Round
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.options import DecodingOptions, GenerateOptions
from specpilot.infer.plan import Mixed, with_defaults
from specpilot.models import CausalLM
from specpilot.serve.options import ServeOptions

from ..helpers.clock import time_forwards

PAIR: dict[str, Any] = {"target": "tiny", "draft": "tiny-draft"}
BASE = DecodingOptions(**PAIR)
STEPS = {"float32": 4e-4, "bfloat16": 3e-4, "int8": 2e-4, "int4": 1.9e-4}


def takes(model: CausalLM, tokens: int) -> float:
    return STEPS[model.precision] * model.layers


@pytest.fixture(autouse=True)
def times(monkeypatch: pytest.MonkeyPatch) -> None:
    time_forwards(monkeypatch, takes)


def compared(word: str | dict[str, Any]) -> SpeculativeDecoder:
    options = CompareOptions(**PAIR)
    (spec,) = decoders_of({"its": word}, options.base)
    assert spec.uses_costs
    return Loader(options.base).decoder(spec, CostModel(0.1, 1.0, 0.01))


@pytest.mark.parametrize(
    "build",
    [
        lambda: SpeculativeDecoder.from_pretrained("tiny", "tiny-draft"),
        lambda: SpeculativeDecoder.from_options(GenerateOptions(prompt="x")),
        lambda: SpeculativeDecoder.from_options(ServeOptions()),
        lambda: compared(DEFAULT),
        lambda: compared({"draft": "tiny-draft"}),
    ],
    ids=["Python", "generate", "serve", "compare", "a mapping"],
)
def test_the_same_from_every_door(build: Callable[[], SpeculativeDecoder]) -> None:
    decoder = build()
    (arm,) = decoder.setup.arms
    assert isinstance(arm.length, OnlineConfidence)
    assert arm.length.running is not None
    ngram = arm.drafter.options  # type: ignore[attr-defined]
    assert ngram.adapt
    assert ngram.cost == arm.length.cost
    assert (decoder.plan.drafts_chains, decoder.plan.verifier.name) == (True, "token-wise")
    assert [draft.precision for draft in decoder.drafts] == ["int8"]  # int4 is not much faster


@pytest.mark.parametrize(
    "settings",
    [
        {"length": 4},
        {"length": "none"},
        {"draft": None},
        {"draft": "ngram"},
        {"draft": ("tiny-draft", "tiny-draft"), "tree": "2x1", "verifier": "spec-infer"},
        {"tree": "2x1", "verifier": "mcss"},
        {"verifier": "typical:0.2"},
        {"verifier": "mtad:0.5"},
        {"router": "some"},
        {"threshold": 0.5},
    ],
)
def test_what_says_how_to_draft_is_followed(settings: dict[str, Any]) -> None:
    options = replace(BASE, **settings)
    assert with_defaults(options) is options


@pytest.mark.parametrize(
    ("settings", "changed"),
    [
        ({}, {"draft": "tiny-draft+ngram", "cost": "auto", "draft_dtype": "auto"}),
        ({"adapt": False}, {"draft": "tiny-draft+ngram", "cost": "auto", "draft_dtype": "auto", "adapt": False}),
        ({"draft": "tiny-draft+ngram:6"}, {"cost": "auto", "draft_dtype": "auto"}),
        ({"cost": 0.2, "draft_dtype": "float32"}, {"draft": "tiny-draft+ngram"}),
        ({"tree": "auto"}, {"draft": "tiny-draft+ngram", "cost": "auto", "draft_dtype": "auto"}),
        ({"verifier": "block"}, {"draft": "tiny-draft+ngram", "cost": "auto", "draft_dtype": "auto"}),
    ],
)
def test_what_is_left_open_is_filled_in(settings: dict[str, Any], changed: dict[str, Any]) -> None:
    options = replace(BASE, **settings)
    filled = with_defaults(options)
    assert filled == replace(options, length="online-confidence", **{"adapt": True} | changed)
    if settings.keys() & {"tree", "verifier"}:
        decoder = SpeculativeDecoder.from_options(options)
        assert decoder.generate([1, 2, 3], max_new_tokens=8).stats.n_drafted > 0


def test_greedy_texts_are_the_targets_and_calls_choose_for_themselves() -> None:
    decoder = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft")
    call_options: dict[str, Any] = {"chat": True, "max_new_tokens": 48, "temperature": 0}
    prompts = ["What is 12 plus 30?", "Repeat this: one two three four one two three four", "List all files."]
    texts = decoder.generate(prompts, **call_options)
    assert any(round.copied for text in texts for round in text.rounds)
    for prompt, text in zip(prompts, texts, strict=True):
        assert text.tokens == decoder.generate(prompt, length="none", **call_options).tokens
    assert isinstance(decoder.setup_for(verifier="block").plan.drafting, Mixed)
    assert decoder.setup_for(verifier="mtad:0.5").plan.drafting.length == 4
    copying = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft+ngram:6").setup_for(length="3")
    (arm,) = copying.arms
    assert (arm.drafter.options.longest, isinstance(arm.length, Fixed)) == (6, True)  # type: ignore[attr-defined]


# The precision of drafts


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"draft": "tiny-draft+ngram"},
        {"tree": "auto"},
        {"tree": "2x1", "verifier": "spec-infer"},
        {"tree": "auto", "draft": "tiny-draft+ngram"},
    ],
    ids=str,
)
def test_a_calls_length_is_of_chains_and_none_drafts_nothing(options: dict[str, Any]) -> None:
    length_options = {} if options.get("tree") != "auto" else {"length": "tiny-lag-free", "cost": 0.2}
    decoder = SpeculativeDecoder.from_pretrained("tiny", **{"draft": "tiny-draft"} | options | length_options)
    some = {"max_new_tokens": 12, "temperature": 0.0}
    text = decoder.generate("one two one two one two one", length="none", **some)
    assert text.stats.n_drafted == 0
    chain = decoder.generate("one two one two one two one", length=3, **some)
    assert chain.tokens == text.tokens
    assert chain.stats.n_drafted > 0
    assert "ngram" in str(options) or not any(round.copied for round in chain.rounds)
    assert decoder.setup_for(length=3).plan.drafts_chains


def test_the_fastest_precision_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(**options: Any) -> str:
        (draft,) = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length=2, **options).drafts
        return draft.precision

    assert chosen() == "float32"  # a fixed length asks for no time
    assert chosen(draft_dtype="auto") == "int8"
    monkeypatch.setitem(STEPS, "int8", 3e-4)
    assert chosen(draft_dtype="auto") == "int4"  # measured again
    assert chosen(draft_dtype="auto", dtype="bfloat16") == "int4"  # another target's precision
    assert chosen(draft_dtype="int8") == "int8"
    with pytest.raises(InputError, match=r"^draft_dtype='auto': supports a single draft"):
        SpeculativeDecoder.from_options(replace(BASE, draft_dtype="auto", length=None, router="some"))


def test_a_comparison_goes_on_with_the_precision_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = CompareOptions(
        **PAIR, length=DEFAULT, limit=2, max_new_tokens=8, rules=False, cost=0.2, output=tmp_path / "out"
    )
    first = run(options).report
    assert isinstance(first, ComparisonReport)
    spec = first.decoders[DEFAULT].spec
    assert spec is not None
    assert spec.draft_dtype == "int8"
    monkeypatch.setitem(STEPS, "int8", 3e-4)
    again = run(options).report
    assert isinstance(again, ComparisonReport)
    assert again.decoders[DEFAULT].spec == spec
    assert again.timed == first.timed


# What follows for others


def test_logged_rounds_hold_the_models_tokens_alone() -> None:
    rounds = [
        Round([], [], [1]),
        Round([2, 3, 4], [0, 1], [2, 3, 9], [0.5, 2.0, 0.1], copied=2),  # the model's first token is rejected
        Round([5, 6], [0], [5, 8], [3.0, 0.2], copied=2),  # only copies
        Round([7, 7], [0, 1], [7, 7, 1], [0.7, 0.8]),
    ]
    logged = rounds_of(Generation([1], [1, 2, 3, 9, 5, 8, 7, 7, 1], rounds=rounds))
    assert logged == ([3, 6], [[4], [7, 7]], [[0.1], [0.7, 0.8]])


def test_shared_rounds_have_costs_of_their_own() -> None:
    single, full = CostModel(0.1, 1.0, 0.01), CostModel(1.0, 4.0, 0.5)
    running = RunningCost(single)
    for _ in range(100):
        for tokens in (0, 2, 5):
            for rows, cost in ((1, single), (6, full)):
                running.at(rows).add(tokens, tokens, cost.round(tokens))
    assert running.at(1) is running
    assert running.at(8) is running.at(5) is not running.at(4)
    for rows, cost in ((1, single), (8, full)):
        assert running.at(rows).cost.round(3) == pytest.approx(cost.round(3), rel=0.02)
        assert running.at(rows).cost.round(0) == pytest.approx(cost.round(0), rel=0.02)
    assert running.at(64).cost == running.at(8).cost
