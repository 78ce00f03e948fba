"""Rules without learning, and those of users: each against its formula, and what they remember from round to round."""

import math
import sys
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.common.errors import InputError
from specpilot.controllers.length import (
    MAX_DRAFT,
    Confidence,
    CumulativeConfidence,
    Entropy,
    Fallback,
    Heuristic,
    load_rule,
    names_rule,
    parse_rule,
    takes_cost,
)
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.loading.controllers import length_digest
from specpilot.main import main

from .refusals import refused
from .steps import step

probabilities = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6)


@settings(max_examples=100)
@given(weights=probabilities, threshold=st.floats(0, 1))
def test_confidence_and_entropy(weights: list[float], threshold: float) -> None:
    share = [w / sum(weights) for w in weights]
    entropy = -sum(s * math.log(s) for s in share)
    assert Confidence(threshold).observe(step(weights)) == (share[0] >= threshold) or share[0] == pytest.approx(
        threshold
    )
    bound = 1 - math.sqrt(0.2 * entropy)
    assert Entropy(threshold).observe(step(weights)) == (bound >= threshold) or bound == pytest.approx(threshold)


def test_greedy_rules_read_the_distribution_at_temperature_1() -> None:
    """The one at temperature 0 is a point mass."""
    greedy = step([3.0, 1.0], sampling=SamplingParams(0.0, None))
    assert greedy.probability == 1
    assert greedy.confidence() == pytest.approx(0.75)
    assert greedy.entropy() == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
    assert step([1.0, 0.0]).entropy() == 0


def test_fallback_reads_the_most_probable_token() -> None:
    flat, peaked = [1.0, 1.0, 1.0], [1.0, 8.0, 1.0]
    assert [Fallback(0.6).observe(step(w)) for w in (flat, peaked)] == [False, True]
    assert [Fallback(0.6).observe(step(w, token=1, sampling=SamplingParams(0.0))) for w in (flat, peaked)] == [
        False,
        True,
    ]
    assert not Fallback(0.0).observe(step(peaked, index=10))


def test_cumulative_confidence_multiplies_and_forgets() -> None:
    rule = CumulativeConfidence(0.2)
    for _ in range(2):
        assert rule.start_round()
        assert [rule.observe(step([1.0, 1.0], index=i)) for i in (1, 2, 3)] == [True, True, False]


def test_heuristic_follows_what_was_accepted() -> None:
    rule = Heuristic(3)
    drafted = []
    for accepted_whole in [True, True, False, False, False, False, False, False, False] + [True] * 12:
        drafted.append(rule.k)
        assert [rule.observe(step([1.0, 1.0], index=i)) for i in range(1, rule.k + 1)] == [True] * (rule.k - 1) + [
            False
        ]
        rule.end_round(rule.k, rule.k if accepted_whole else rule.k - 1)
    assert drafted[:10] == [3, 5, 7, 6, 5, 4, 3, 2, 1, 1]
    assert drafted[-1] == MAX_DRAFT
    rule.start_text()
    assert rule.k == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Confidence(1.5), r"confidence:1\.5: the threshold must be in \[0, 1\]"),
        (lambda: Entropy(math.nan), "entropy:nan: the threshold must be a finite number up to 1"),
        (lambda: Entropy(0.5, -1), r"gamma=-1: must be a finite number ≥ 0"),
        (lambda: Heuristic(0), "heuristic:0: the first draft length must be a whole number from 1 to 20"),
        (lambda: Heuristic(math.inf), "heuristic:inf: the first draft length must be a whole number"),
        *(
            (partial(parse_rule, spec), message)
            for spec, message in (
                ("online-confidence", "length='online-confidence': give either a cost model"),
                ("online-confidence:2", "online-confidence:2.0: the threshold must be in"),
                ("adaptive-length:2.5", "adaptive-length:2.5: the first draft length must be a whole number"),
                ("adaptive-length:x", "give the rule's number, as in 'adaptive-length:4'"),
            )
        ),
    ],
)
def test_refusals(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]


# Rules of the user: a class by ``package.module:Class`` or by an entry point, everywhere a length is named


MODULE = """
from specpilot.controllers.length import LengthController
from specpilot.controllers.length.priced import PricedController

class Two(LengthController):
    def __init__(self, most=2, word=""):
        self.most, self.word = most, word
        if word:
            raise ValueError("two\\nlines")
    def observe(self, step):
        return step.index < self.most

class Priced(PricedController):
    cost = None
    def repriced(self, cost=None, **unused):
        self.cost = cost
        return self
    def observe(self, step):
        return False

class Half(LengthController):
    pass

number = 3
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with modules, one of them installed with an entry point."""
    for name, text in {
        "rules": MODULE,
        "exits": "raise SystemExit(0)",
        "needs": "import missing",
        "cut": "def",
    }.items():
        (tmp_path / f"own_{name}.py").write_text(text)
    about = tmp_path / "site" / "mine-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Name: mine\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[specpilot.controllers]\nown-two = own_rules:Two\noracle = own_cut:X\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(about.parent)])
    monkeypatch.chdir(tmp_path)
    for name in ("rules", "exits", "needs", "cut"):
        sys.modules.pop(f"own_{name}", None)
    return tmp_path


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("own_nothing.at.all:Two", "there is no module 'own_nothing'; install it"),
        ("own_rules.more:Two", r"there is no module 'own_rules\.more'"),
        ("own_exits:Two", "importing 'own_exits' fails with SystemExit: 0"),
        ("own_needs:Two", "importing 'own_needs' fails with ModuleNotFoundError: No module named 'missing'"),
        ("own_cut:Two", "importing 'own_cut' fails with SyntaxError"),
        ("own_rules:Three", r"'Three' in 'own_rules' \(.*own_rules.py\) is missing; name a subclass of specpilot"),
        ("own_rules:number", "'number' .* is of another kind"),
        ("pathlib:Path", "'Path' in 'pathlib' .* is of another kind"),
        ("own_rules:Half", "Half() fails with TypeError: .*abstract".replace("()", r"\(\)")),
        ("own_rules:Two:1:2:3", r"Two\(1, 2, 3\) fails with TypeError"),
        ("own-two:1:x", r"Two\(1, x\) fails with ValueError: two lines; mend that"),
    ],
)
def test_rules_of_users_that_are_refused(mine: Path, spec: str, message: str) -> None:
    with refused(message, f"length={spec!r}: "):
        load_rule(spec)


def test_names(mine: Path) -> None:
    """Of the form of a class, or installed; what is built in comes first, and a name alone imports nothing."""
    names = ("own_rules:Two:3", "own-two", "oracle", "runs/own:Two", "own-three", "own-three:0.4")
    assert [names_rule(name) for name in names] == [True, True, True, False, False, False]
    assert parse_rule("own_rules:Two") is None
    assert "own_rules" not in sys.modules
    assert [vars(load_rule(name))["most"] for name in ("own_rules:Two", "own-two:3")] == [2, 3]
    assert type(load_rule("oracle")).__name__ == "Oracle"


def test_costs_and_digest(mine: Path) -> None:
    """One that goes by costs is given them; what a class decides may change with its file."""
    assert [takes_cost(f"own_rules:{name}") for name in ("Two", "Priced")] == [False, True]
    cost = CostModel(0.2, 1.0, 0.0)
    assert vars(load_rule("own_rules:Priced", cost))["cost"] == cost
    before = length_digest("own-two")
    assert before == length_digest("own_rules:Two:3") != length_digest("4")
    with (mine / "own_rules.py").open("a") as file:
        file.write("# another\n")
    assert length_digest("own-two") != before


def test_commands(mine: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It decides how much is drafted; bad input is one line."""
    words = ["generate", "What is 12 plus 30?", "--max-new-tokens", "8", "--stats", "--length"]
    assert main([*words, "own_rules:Two:1"]) == main([*words, "1"]) == 0
    own, plain = [line for line in capfd.readouterr().err.splitlines() if "draft and" in line]
    assert own.partition("), ")[2] == plain.partition("), ")[2]
    assert main([*words, "own-two", "--cost", "0.2"]) == 2
    assert "the rule 'own-two' does not use costs" in capfd.readouterr().err
