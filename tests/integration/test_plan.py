"""`resolve`: the plans of options, refused combinations, and commands that print the plan."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any, Self

import pytest
from specpilot.cli import main as cli
from specpilot.common.errors import InputError
from specpilot.compare.options import CompareOptions
from specpilot.compare.run import run
from specpilot.controllers.length import Confidence, Fixed, OnlineConfidence
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.length.cost_source import MeasuredCosts, NoCosts, PresetCosts
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.drafters.beams import Beams as BeamSearch
from specpilot.infer.model_spec import CHECKPOINT, ModelSpec
from specpilot.infer.options import DecodingOptions
from specpilot.infer.plan import (
    Autoregressive,
    Beams,
    Call,
    Chain,
    ControllerLength,
    Copies,
    GrownTree,
    JointBeams,
    Lookup,
    Mixed,
    NamedLength,
    Routed,
    RoutedArm,
    Tree,
    VerifierSpec,
    WhilePaying,
    resolve,
)
from specpilot.infer.verify import candidates
from specpilot.serve.options import ServeOptions
from specpilot.serve.server import Server

ROUTER = str(Path(__file__).parents[1] / "files" / "router")
PAIR: dict[str, Any] = {"target": "tiny", "draft": "tiny-draft"}
COPYING: dict[str, Any] = {"target": "tiny", "draft": "tiny-draft+ngram"}
DRAFT = ModelSpec(name="tiny-draft", precision="float32")
FASTEST = ModelSpec(name="tiny-draft", precision="float32", fastest=True)
PRICED = PresetCosts(CostModel.load(0.2), "a cost of 0.2 verifications per draft step")
COPIED = Lookup(4, NoCosts(), None)


def length(name: str, threshold: float | None = None, costs: Any = NoCosts()) -> NamedLength:  # noqa: B008 — frozen
    return NamedLength(name, threshold, costs)


FOUR = length("4")
LEARNING = length("online-confidence", costs=MeasuredCosts())
HELD = MeasuredCosts(adapt=False)
DEFAULT = Mixed(Lookup(4, MeasuredCosts(), None), Chain(FASTEST, LEARNING))


@pytest.mark.parametrize(
    ("options", "drafting"),
    [
        ({}, DEFAULT),
        (PAIR, DEFAULT),
        (PAIR | {"tree": "auto"}, Mixed(Lookup(4, MeasuredCosts(), None), GrownTree(FASTEST, LEARNING))),
        (PAIR | {"draft": "tiny-draft+ngram:6"}, Mixed(Lookup(6, MeasuredCosts(), None), Chain(FASTEST, LEARNING))),
        (
            PAIR | {"draft_dtype": "int8", "length": 3},
            Chain(ModelSpec(name="tiny-draft", precision="int8"), length("3")),
        ),
        (
            PAIR | {"dtype": "auto", "length": "3"},
            Chain(ModelSpec(name="tiny-draft", precision=CHECKPOINT), length("3")),
        ),
        (PAIR | {"draft_dtype": "auto", "length": 3}, Chain(FASTEST, length("3"))),
        (PAIR | {"length": "confidence:0.4"}, Chain(DRAFT, length("confidence:0.4"))),
        (PAIR | {"length": "tiny-head", "threshold": 0.5}, Chain(DRAFT, length("tiny-head", 0.5))),
        (PAIR | {"length": "tiny-lag-free", "cost": 0.2}, Chain(DRAFT, length("tiny-lag-free", costs=PRICED))),
        ({"length": "tiny-lag-free", "cost": "auto"}, Chain(DRAFT, length("tiny-lag-free", costs=MeasuredCosts()))),
        (
            PAIR | {"adapt": False},
            Mixed(Lookup(4, HELD, None), Chain(FASTEST, length("online-confidence", None, HELD))),
        ),
        (
            PAIR | {"length": "tiny-lag-free", "cost": 0.2, "tree": "auto"},
            GrownTree(DRAFT, length("tiny-lag-free", costs=PRICED)),
        ),
        (PAIR | {"length": "none"}, Autoregressive(DRAFT)),
        (PAIR | {"length": 0, "draft": "tiny-draft+ngram"}, Autoregressive(DRAFT)),
        (PAIR | {"draft": None}, Autoregressive()),
        ({"target": "other", "length": "none"}, Autoregressive()),
        ({"target": "tiny", "length": "none"}, Autoregressive(DRAFT)),
        (PAIR | {"tree": "3x2x1", "verifier": "mcss"}, Tree(DRAFT, (3, 2, 1), distinct=True)),
        (PAIR | {"tree": (2, 1), "verifier": "spec-infer"}, Tree(DRAFT, (2, 1), distinct=False)),
        ({"target": "tiny", "draft": "ngram"}, Copies(COPIED, WhilePaying())),
        ({"target": "tiny", "draft": "ngram:7", "cost": 0.2}, Copies(Lookup(7, PRICED, None), WhilePaying())),
        ({"target": "tiny", "draft": "ngram", "length": 5}, Copies(COPIED, length("5"))),
        ({"copies": "tiny-copies"}, Copies(Lookup(4, NoCosts(), "tiny-copies"), WhilePaying())),
        (COPYING | {"length": 3, "cost": 0.2}, Mixed(Lookup(4, PRICED, None), Chain(DRAFT, length("3")))),
        (PAIR | {"verifier": "typical:0.2"}, Chain(DRAFT, FOUR)),
        (PAIR | {"verifier": "mtad:0.5", "length": 3}, Beams(DRAFT, 3, BeamSearch(4))),
        (PAIR | {"draft": None, "verifier": "mtjd", "beams": 2}, JointBeams(4, BeamSearch(2))),
        (
            {"target": "tiny", "router": ROUTER, "draft": ("tiny-draft", "ngram", "autoregressive")},
            Routed(
                ROUTER,
                (
                    RoutedArm("tiny-draft", Chain(DRAFT, FOUR)),
                    RoutedArm("ngram", Copies(COPIED, WhilePaying())),
                    RoutedArm("autoregressive", Autoregressive()),
                ),
                sample=False,
            ),
        ),
    ],
    ids=str,
)
def test_what_drafts(options: dict[str, Any], drafting: Any) -> None:
    plan = resolve(DecodingOptions(**options))
    assert plan.drafting == drafting
    assert "'auto'" not in str(plan)
    with pytest.raises(FrozenInstanceError):
        plan.max_running = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("options", "call", "drafting"),
    [
        (PAIR, Call(), DEFAULT),
        (PAIR, Call(verifier="block"), DEFAULT),
        (PAIR, Call(verifier="typical"), Chain(DRAFT, FOUR)),
        (PAIR, Call(3), Chain(DRAFT, length("3"))),
        (PAIR, Call("none"), Autoregressive(DRAFT)),
        (COPYING, Call("3"), Mixed(COPIED, Chain(DRAFT, length("3")))),
        (PAIR | {"tree": "2x1", "verifier": "mcss"}, Call(3), Chain(DRAFT, length("3"))),
        (PAIR | {"tree": "2x1", "verifier": "mcss"}, Call(verifier="otm"), Tree(DRAFT, (2, 1), distinct=False)),
        # The threshold and the costs of a decoder are for its own length.
        (PAIR | {"length": "tiny-head", "threshold": 0.5}, Call("tiny-head"), Chain(DRAFT, length("tiny-head"))),
        (PAIR | {"length": "tiny-lag-free", "cost": 0.2}, Call(2), Chain(DRAFT, length("2"))),
        (
            COPYING | {"length": "tiny-lag-free", "cost": 0.2},
            Call("confidence:0.4"),
            Mixed(Lookup(4, PRICED, None), Chain(DRAFT, length("confidence:0.4"))),
        ),
    ],
    ids=str,
)
def test_what_drafts_in_a_call(options: dict[str, Any], call: Call, drafting: Any) -> None:
    assert resolve(DecodingOptions(**options), call).drafting == drafting


@pytest.mark.parametrize(
    ("options", "seeded", "unseeded"),
    [
        (PAIR, "invariant", "token-wise"),
        (PAIR | {"draft": None}, "invariant", "token-wise"),
        (PAIR | {"tree": "auto"}, "invariant", "token-wise"),
        (PAIR | {"tree": "2x1"}, "invariant", "mcss"),
        (PAIR | {"verifier": "block"}, "block", "block"),
        (PAIR | {"verifier": "invariant"}, "invariant", "invariant"),
        (PAIR | {"verifier": "mtad", "length": 3}, "mtad", "mtad"),
        ({"target": "tiny", "router": ROUTER, "draft": ("tiny-draft", "ngram")}, "invariant", "token-wise"),
    ],
    ids=str,
)
def test_the_rule_with_a_seed_and_without(options: dict[str, Any], seeded: str, unseeded: str) -> None:
    decoding = DecodingOptions(**options)
    assert resolve(decoding, seeded=True).verifier.name == seeded
    assert resolve(decoding).verifier.name == unseeded
    assert bool(resolve(decoding).verifier.reason) == ("verifier" not in options)


def test_a_rule_of_a_call_is_not_replaced_by_that_of_a_seed() -> None:
    options = DecodingOptions(**PAIR)
    assert resolve(options, Call(verifier="block"), seeded=True).verifier.name == "block"
    assert resolve(options, Call(2), seeded=True).verifier.name == "invariant"


def test_a_tree_grows_by_a_length_of_a_call_that_predicts() -> None:
    options = DecodingOptions(**PAIR, tree="auto", length="online-confidence", cost=0.2)
    grows = OnlineConfidence(cost=CostModel.load(0.2))
    assert resolve(options, Call(grows)).drafting == GrownTree(DRAFT, ControllerLength(grows))
    stops = Confidence(0.4)
    assert resolve(options, Call(stops)).drafting == Chain(DRAFT, ControllerLength(stops))


@pytest.mark.parametrize(
    ("options", "drafting"),
    [
        (PAIR, Chain(DRAFT, FOUR)),
        (COPYING, Mixed(COPIED, Chain(DRAFT, FOUR))),
        (PAIR | {"draft": None}, Autoregressive()),
    ],
    ids=str,
)
def test_drafts_that_do_not_depend_on_time(options: dict[str, Any], drafting: Any) -> None:
    assert resolve(DecodingOptions(**options), steady=True).drafting == drafting


@pytest.mark.parametrize(
    ("rule", "name", "exact"),
    [
        ("token-wise", "token-wise", True),
        ("block", "block", True),
        ("mtad:0.5", "mtad", False),
        ("bild:3", "bild", False),
    ],
)
def test_rules(rule: str, name: str, exact: bool) -> None:
    verifier = resolve(DecodingOptions(**PAIR, verifier=rule)).verifier
    assert (verifier, verifier.exact) == (VerifierSpec(rule, name), exact)


GROWN = PAIR | {"tree": "auto", "length": "tiny-lag-free", "cost": 0.2}
ROUTED: dict[str, Any] = {"target": "tiny", "router": ROUTER, "draft": ("tiny-draft", "autoregressive")}
REFUSED: list[tuple[dict[str, Any], str]] = [  # options, and what the error begins with: an option and its value
    (PAIR | {"sample_arm": True}, "sample_arm:"),
    (PAIR | {"length": (1, 2)}, "length:"),
    (PAIR | {"length": "confidence:4"}, "length='confidence:4':"),
    (PAIR | {"length": "4", "threshold": 0.5}, "threshold=0.5:"),
    (PAIR | {"threshold": 0.5}, "threshold=0.5:"),
    (PAIR | {"length": 4, "cost": 0.2}, "cost:"),
    (PAIR | {"verifier": "typical", "cost": 0.2}, "cost:"),
    (PAIR | {"length": "tiny-lag-free", "adapt": True}, "adapt:"),
    (PAIR | {"copies": "tiny-copies", "length": 3}, "copies:"),
    ({"target": "tiny", "draft": "ngram", "length": 3, "copies": "tiny-copies"}, "copies and length:"),
    ({"target": "tiny", "draft": "ngram", "length": "oracle"}, "length='oracle':"),
    ({"target": "tiny", "draft": "ngram", "length": "tiny-head"}, "length='tiny-head':"),
    ({"target": "tiny", "draft": "ngram", "draft_dtype": "int8"}, "draft_dtype='int8':"),
    (PAIR | {"draft": None, "length": "confidence:0.4"}, "length:"),
    (PAIR | {"draft": ("a", "b")}, "draft: 2 drafts"),
    (PAIR | {"tree": "2x1", "verifier": "token-wise"}, "verifier='token-wise':"),
    (PAIR | {"tree": "2x0", "verifier": "mcss"}, "tree='2x0':"),
    (PAIR | {"tree": "2x1", "verifier": "mcss", "length": 3}, "tree and length:"),
    (PAIR | {"tree": "2x1", "verifier": "mcss", "draft": None}, "tree:"),
    (COPYING | {"tree": "2x1", "verifier": "mcss"}, "ngram:"),
    (GROWN | {"verifier": "block"}, "verifier='block':"),
    (GROWN | {"length": "confidence:0.4", "cost": None}, "tree='auto':"),
    (GROWN | {"cost": None}, "tree='auto':"),
    (PAIR | {"verifier": "nonsense"}, "verifier='nonsense':"),
    (PAIR | {"verifier": "mtjd"}, "verifier='mtjd':"),
    (PAIR | {"verifier": "mtad", "draft": None}, "verifier='mtad':"),
    (PAIR | {"verifier": "mtad", "length": 0}, "length=0:"),
    (PAIR | {"verifier": "mtad", "length": "confidence:0.4"}, "length:"),
    (COPYING | {"verifier": "mtad"}, "ngram:"),
    (PAIR | {"beams": 3}, "beams:"),
    (PAIR | {"argmax": True}, "beams:"),
    (ROUTED | {"tree": "2x1"}, "tree and router:"),
    (ROUTED | {"copies": "tiny-copies"}, "copies and router:"),
    (ROUTED | {"cost": "auto"}, "adapt, cost='auto':"),
    (ROUTED | {"draft_dtype": "auto"}, "draft_dtype='auto':"),
    (ROUTED | {"draft": ("ngram", "autoregressive"), "draft_dtype": "int8"}, "draft_dtype='int8':"),
    (ROUTED | {"length": (1, 2, 3)}, "length: 3 for 2 arms"),
    (ROUTED | {"length": "oracle"}, "arm 'tiny-draft': length='oracle':"),
    (ROUTED | {"verifier": "mtad"}, "verifier='mtad':"),
    (ROUTED | {"draft": ("tiny-draft",)}, "draft=tiny-draft:"),
    (ROUTED | {"router": "tiny-head"}, "router='tiny-head':"),
    (ROUTED | {"router": "tiny-router"}, "router='tiny-router':"),
    ({"router": "tiny-head", "draft": "ngram"}, "router='tiny-head':"),
    (PAIR | {"length": "none", "verifier": "typical"}, "verifier='typical':"),
    (PAIR | {"draft": None, "verifier": "bild:2"}, "verifier='bild:2':"),
    (PAIR | {"length": "none", "verifier": "mtad"}, "length='none':"),
    (PAIR | {"length": "confidence:2"}, "length='confidence:2':"),
    (PAIR | {"length": "heuristic:0"}, "length='heuristic:0':"),
    (PAIR | {"length": "tiny-head:0.5"}, "length='tiny-head:0.5':"),
    (PAIR | {"length": "tiny-head", "cost": "nowhere.json"}, "cost='nowhere.json':"),
    (PAIR | {"draft": "tiny-draft+ngram:0"}, "draft='ngram:0':"),
    (PAIR | {"draft": "none"}, "draft='none':"),
    ({"length": "nowhere/at/all"}, "length='nowhere/at/all':"),
    ({"copies": "nowhere"}, "copies='nowhere':"),
]


@pytest.mark.parametrize(("options", "start"), REFUSED, ids=str)
def test_combinations_that_are_refused(options: dict[str, Any], start: str) -> None:
    with pytest.raises(InputError) as error:
        resolve(DecodingOptions(**options))
    assert str(error.value).startswith(start)


@pytest.mark.parametrize(
    ("call", "start"),
    [
        ((2.5, None), "length=2.5:"),
        ((True, None), "length=True:"),
        ((None, 3), "verifier=3:"),
        ((object(), None), "length:"),
    ],
)
def test_calls_that_are_refused(call: tuple[Any, Any], start: str) -> None:
    with pytest.raises(InputError) as error:
        Call(*call)
    assert str(error.value).startswith(start)


# The plan of a decoder, and where it is printed


KEYS = ["target", "draft", "drafts", "a draft ends", "verification", "costs"]


def keys(text: str) -> list[str]:
    return [line.partition(":")[0] for line in text.splitlines()]


def test_a_decoders_plan_has_what_was_loaded() -> None:
    decoder = SpeculativeDecoder.from_pretrained(
        "tiny", "tiny-draft", length="tiny-lag-free", cost=0.2, draft_dtype="int8"
    )
    plan = decoder.plan
    assert (plan.target.precision, plan.target.device) == ("float32", str(decoder.target.device))
    assert [draft.precision for draft in plan.drafts] == ["int8"]
    assert plan.target.forward == decoder.target.forward_description
    assert keys(plan.describe()) == KEYS
    assert plan.describe() in repr(decoder)
    assert "0.20 of a verification" in plan.describe()
    assert decoder.setup_for().plan is plan
    assert decoder.setup_for("3").plan.drafting == Chain(plan.drafts[0], length("3"))


@pytest.mark.parametrize("draft", ["tiny-draft", "tiny-draft+ngram"])
def test_the_rule_of_a_grown_tree_is_that_of_its_nodes(draft: str) -> None:
    """A grown tree is verified token-wise at every node, and by the rule ``invariant`` if a seed is given."""
    decoder = SpeculativeDecoder.from_pretrained("tiny", draft, length="online-confidence", tree="auto", cost=0.2)
    drawn, seeded = decoder.setup_for(), decoder.setup_for(seed=1, temperature=1.0)
    assert drawn.verify is candidates
    assert "verification: token-wise at every node, which keeps the target's distribution" in drawn.plan.describe()
    assert seeded.verify is not candidates
    assert "verification: invariant, which keeps the target's distribution" in seeded.plan.describe()
    chain = SpeculativeDecoder.from_pretrained("tiny", draft, length="online-confidence", cost=0.2).setup_for()
    assert chain.verify is not candidates
    assert "verification: token-wise, which" in chain.plan.describe()


class Observing(Fixed):
    """A user's controller that drafts a number of tokens, and records the drafts of rounds."""

    def __init__(self, k: int = 0) -> None:
        super().__init__(k)
        self.drafted: list[int] = []

    def timed(self, tokens: int, forwards: int, seconds: float) -> None:
        self.drafted.append(tokens)


@pytest.mark.parametrize("draft", ["tiny-draft", "tiny-draft+ngram", "ngram", None])
@pytest.mark.parametrize("named", [False, True])
def test_a_length_of_the_user_of_0_tokens_observes_rounds_without_drafts(draft: str | None, named: bool) -> None:
    length = f"{__name__}:Observing" if named else Observing()
    decoder = SpeculativeDecoder.from_pretrained("tiny", draft, length=length)
    assert isinstance(decoder.length, Observing)
    assert "a draft ends" not in decoder.plan.describe()
    words = [5, 6, 7, 8] * 8  # which n-grams would copy
    generation = decoder.generate(words, max_new_tokens=6, temperature=0.0)
    assert generation.stats.n_drafted == 0
    assert set(decoder.length.drafted) == {0}


@pytest.mark.parametrize("draft", ["tiny-draft+ngram", None])
def test_a_length_of_0_tokens_of_a_call_observes_its_rounds(draft: str | None) -> None:
    length, decoder = Observing(), SpeculativeDecoder.from_pretrained("tiny", draft)
    assert decoder.generate([5, 6, 7, 8] * 8, max_new_tokens=6, temperature=0.0, length=length).stats.n_drafted == 0
    assert set(length.drafted) == {0}


class Separate(Observing):
    """A controller that shares nothing between texts."""

    def for_text(self) -> Self:
        return deepcopy(self)


def test_a_length_controller_decides_what_texts_share() -> None:
    decoder = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft")
    shared, separate = Observing(2), Separate(2)
    for length in (shared, separate):
        decoder.generate([[5, 6], [7, 8]], max_new_tokens=6, temperature=0.0, length=length)
    assert len(shared.drafted) > 0
    assert separate.drafted == []


def test_a_lossy_rule_of_a_decoder_does_not_refuse_calls_without_drafts() -> None:
    options = DecodingOptions(**PAIR, length=3, verifier="typical")
    assert resolve(options, Call("none")).drafting == Autoregressive(DRAFT)
    with pytest.raises(InputError, match=r"^verifier='bild'"):
        resolve(options, Call("none", "bild"))


def test_the_length_of_a_decoder_is_replaced() -> None:
    decoder = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length=2)
    decoder.use_length(Fixed(5))
    for setup in (decoder.setup, decoder.setup_for(verifier="block")):
        assert isinstance(setup.arms[0].length, Fixed)
        assert setup.arms[0].length.k == 5
    assert decoder.generate("hello", max_new_tokens=8, length=1, temperature=0).stats.n_draft_forwards > 0


def test_a_length_of_0_takes_the_place_of_copies_too() -> None:
    decoder = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft+ngram", length=2)
    decoder.use_length(Fixed(0))
    output = decoder.generate([5, 6, 5, 6, 5, 6, 5], max_new_tokens=20, temperature=0)
    assert not any(round.drafted for round in output.rounds)


def test_generate_prints_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", "hello", "--max-new-tokens", "2", "--length", "3", "--stats"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert keys("\n".join(lines[-5:])) == KEYS[:-1]
    assert "after 3 tokens" in lines[-2]


def test_the_server_prints_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    options = ServeOptions(length=3)
    server = Server(SpeculativeDecoder.from_options(options), options)
    server.print_plan()
    assert keys(capsys.readouterr().err.replace("specpilot: ", "")) == KEYS[:-1]


def test_a_comparison_prints_the_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cost.json"
    machine = {"processor": "some processor", "devices": ["some GPU"]}
    file.write_text(json.dumps({"cost": CostModel(0.2, 1.0, 0.0).to_dict(), "machine": machine}))
    run(
        CompareOptions(
            **PAIR, length="3,ngram", limit=2, max_new_tokens=4, rules=False, clock=False, cost=str(file),
            output=tmp_path / "out",
        )
    )  # fmt: skip
    printed = capsys.readouterr().err
    assert any(line.startswith("target: tiny, float32") for line in printed.splitlines())
    plans = dict(re.findall(r"^decoder (.*):\n((?:  .*\n)*)", printed, re.M))
    assert "  a draft ends: after 3 tokens" in plans["3"]
    copies = plans["ngram"]
    assert "0.20 of a verification" in copies
    assert f"the costs of {file}, measured on some GPU" in copies
