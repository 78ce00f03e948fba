"""Length rules of the user: a class by ``package.module:Class`` or by an entry point, everywhere a length is named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from specpilot.controllers.length import load_rule, names_rule, parse_rule, takes_cost
from specpilot.controllers.length.cost_model import CostModel
from specpilot.infer.loading.controllers import length_digest
from specpilot.main import main

from .refusals import refused

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
    (about / "entry_points.txt").write_text("[specpilot.controllers]\nown-two = own_rules:Two\nbandit = own_cut:X\n")
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
def test_refusals(mine: Path, spec: str, message: str) -> None:
    with refused(message, f"length={spec!r}: "):
        load_rule(spec)


def test_names(mine: Path) -> None:
    """Of the form of a class, or installed; what is built in comes first, and a name alone imports nothing."""
    names = ("own_rules:Two:3", "own-two", "bandit", "runs/own:Two", "own-three", "own-three:0.4")
    assert [names_rule(name) for name in names] == [True, True, True, False, False, False]
    assert parse_rule("own_rules:Two") is None
    assert "own_rules" not in sys.modules
    assert [vars(load_rule(name))["most"] for name in ("own_rules:Two", "own-two:3")] == [2, 3]
    assert type(load_rule("bandit")).__name__ == "Bandit"


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
    """It decides how much is drafted; bad input is one line, and a threshold or costs have no use."""
    words = ["generate", "What is 12 plus 30?", "--max-new-tokens", "8", "--stats", "--length"]
    assert main([*words, "own_rules:Two:1"]) == main([*words, "1"]) == 0
    own, plain = [line for line in capfd.readouterr().err.splitlines() if "draft and" in line]
    assert own.partition("), ")[2] == plain.partition("), ")[2]
    data = ["data", "on-policy", "--limit", "1", "--output", "out", "--length"]
    for command in (words, data, ["serve", "--port", "0", "--length"], ["compare", "--output", "out", "--length"]):
        assert main([*command, "own_rules:Three"]) == 2, command
        assert "'Three' in 'own_rules'" in capfd.readouterr().err
    assert main([*words, "own-two", "--cost", "0.2"]) == 2
    assert "the rule 'own-two' does not use costs" in capfd.readouterr().err
