"""The study of rate-optimal trees: its arithmetic, a run at toy size, and the same again from what is on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from specpilot import main as cli
from specpilot.controllers.length.cost_model import CostModel
from specpilot.infer.generation import Generation, Round, Stats

from experiments.studies.trees import counts_of

COST = CostModel(0.1, 0.9, 0.1, 0.3)


def test_what_rounds_cost() -> None:
    """The first token is the prefill's. A tree pays for levels and nodes, a chain's copies for no forward."""
    first = Round([], [], [1])
    tree = Round([4, 5, 6], [0, 2], [4, 6, 7], parents=[-1, -1, 0])
    stats = Stats(n_generated=4, n_draft_forwards=2)
    tokens, seconds, rounds, nodes, levels = counts_of(Generation([1], rounds=[first, tree], stats=stats), COST)
    assert (tokens, rounds, nodes, levels) == (3, 1, 3, 2)
    assert seconds == pytest.approx(0.3 + 2 * 0.1 + 0.9 + 4 * 0.1)
    copied = Round([4, 5, 6], [0], [4, 7], parents=[-1, 0, 1])
    stats = Stats(n_generated=3, n_draft_forwards=1)
    seconds = counts_of(Generation([1], rounds=[first, copied], stats=stats), COST)[1]
    assert seconds == pytest.approx(0.3 + 0.1 + 0.9 + 0.4)
    plain = Generation([1], rounds=[first, Round([], [], [4], parents=[])], stats=Stats(n_generated=2))
    assert counts_of(plain, COST)[1] == pytest.approx(0.9 + 0.1)


@pytest.mark.filterwarnings("ignore:the controller was trained under")
def test_it_runs_and_runs_again_from_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "trees", "--controllers", "[0=tiny-lag-free,1=tiny-lag-free]", "--prompts", "builtin"]
    words += ["--per-domain", "1", "--max-new-tokens", "12", "--slopes", "[0.02,0.5]", "--domains", "[math,shell]"]
    words += ["--in-domain", "[math]", "--folder", str(tmp_path / "cache")]
    printed = []
    for name in ("a.json", "b.json"):
        assert cli.main([*words, "--output", str(tmp_path / name)]) == 0
        printed.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
        assert printed[-1] == json.loads((tmp_path / name).read_text())
    assert printed[0] == printed[1]
    for temperature in ("0", "1"):
        for machine in ("0.02", "0.5"):
            for group in ("in_domain", "left_out", "math", "shell"):
                row = printed[0]["temperature"][temperature][machine][group]
                assert row["chain"] >= row["trained_chain"] > 0
                assert row["tree"] / row["chain"] == pytest.approx(row["tree_over_chain"]["ratio"])
    assert printed[0]["machines"]["0.02"] == CostModel(0.05, 0.98, 0.02).as_dict()


def test_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    for controllers, message in (
        ("[tiny-lag-free]", "give it as TEMPERATURE=PATH"),
        ("[warm=tiny-lag-free]", "give it as TEMPERATURE=PATH"),
        ("[1=tiny-lag-free,1.0=tiny-lag-free]", "a temperature is given twice"),
        ("[-1=tiny-lag-free]", "temperature=-1.0"),
        ("[1=tiny-head]", "give a lag-free or feature predictor or 'online-confidence'"),
    ):
        words = ["bench", "trees", "--controllers", controllers, "--prompts", "builtin", "--per-domain", "1"]
        assert cli.main([*words, "--max-new-tokens", "4"]) == 2
        assert message in capsys.readouterr().err
