"""Prompts that invite copying, and the benchmark of n-gram drafts on them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from experiments.prompts import builtin
from experiments.prompts.copying import TAGS, copying
from specpilot import main as cli
from specpilot.compare.runner import Timed
from specpilot.data_gen.builtin import builtin_prompts
from specpilot.data_gen.prompts import load_prompts
from specpilot.infer.generation import Generation, Stats

from experiments.workloads.ngram import summary


def test_the_frozen_prompts_are_what_the_recipe_makes() -> None:
    made = [prompt for split in TAGS for prompt in copying(builtin(), split)]
    assert list(builtin_prompts("builtin-copy")) == made
    assert len({prompt.id for prompt in made}) == len(made)


@pytest.mark.parametrize("split", ["test", "train"])
def test_two_hundred_prompts_of_three_kinds(split: str) -> None:
    prompts = load_prompts("builtin-copy", split=split)
    assert len(prompts) == 200
    assert Counter(prompt.domain for prompt in prompts) == {"editing": 80, "summarising": 60, "questions": 60}
    sources = [source.prompt.strip() for source in builtin() if source.split == split]
    for prompt in prompts:
        text = next(text for text in sources if prompt.prompt.startswith(text))
        begun = prompt.prompt[len(text) :]
        assert begun.strip().split()[-1] in text or prompt.domain == "editing"
    edited = next(prompt.prompt for prompt in prompts if prompt.domain == "editing")
    text, _, rest = edited.partition("\n\nThe same text with ")
    new, _, old = rest.partition(":")[0].partition(" in place of ")
    assert rest.partition(":\n\n")[2] in text.replace(old, new)


def test_the_best_mix_is_compared_with_the_best_part() -> None:
    def runs(rate: float) -> list[list[Timed[Generation]]]:
        stats = Stats(n_generated=12, n_target_forwards=6, n_draft_forwards=9)
        generation = Generation([1], [0] * 12, stats=stats)
        return [[Timed(generation, 12 / rate, processor_seconds=rate)] for _ in range(3)]

    names = {"autoregressive": 50.0, "ngram": 4.0, "model, 2": 2.0, "mix, 2": 5.0, "model, 4": 3.0, "mix, 4": 1.0}
    found = summary({name: runs(rate) for name, rate in names.items()})
    assert found["mix"] == pytest.approx(5.0)
    assert found["best_part"] == pytest.approx(4.0)
    assert found["names"] == {"mix": "mix, 2", "best_part": "ngram"}
    assert found["mix_over_best_part"]["ratio"] == pytest.approx(1.25)
    processor = found["by_processor_time"]
    assert processor["names"] == {"mix": "mix, 4", "best_part": "model, 2"}
    assert processor["mix_over_best_part"]["ratio"] == pytest.approx(2.0)
    assert found["block_efficiency"]["mix, 2"] == 2.0
    assert found["draft_forwards_per_token"]["mix, 2"] == 0.75


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "ngram", "--limit", "2", "--repeats", "1", "--max-new-tokens", "6", "--cost", "0.2"]
    assert cli.main([*words, "--lengths", "[2,online-confidence]", "--output", str(tmp_path / "a.json")]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result == json.loads((tmp_path / "a.json").read_text())
    for group in ("copying", "other"):
        assert {"mix", "best_part", "mix_over_best_part"} <= result[group].keys()
        assert len(result[group]["tokens_per_second"]) == 6
        assert result[group]["draft_forwards_per_token"]["ngram"] == 0
    for flags, message in (
        (["--draft", "ngram"], "draft='ngram': name a draft model alone"),
        (["--lengths", "[nothing]"], "nothing"),
    ):
        assert cli.main([*words, *flags]) == 2
        assert message in capsys.readouterr().err
