"""The study that compares recommended settings with a sweep of vLLM's settings, with small sweeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specpilot.compare.decoders import Loader
from specpilot.compare.engine_settings import COPIES, MODEL, VLLM

from engines import PAIR, prompts  # skips without vLLM  # isort: skip
from experiments.studies.settings_sweep import (
    PROBABILISTIC,
    WITHOUT,
    Setting,
    SettingsSweepOptions,
    loops_of,
    main,
)


def options_of(folder: Path, **more: Any) -> SettingsSweepOptions:
    small = {"lengths": (2,), "copies": (2, 3), "learned": 2, "limit": 2, "max_new_tokens": 24, "repeats": 1}
    return SettingsSweepOptions(
        engine=VLLM, target=PAIR[0], draft=PAIR[1], folder=folder / "runs", **small | more
    )  # fmt: skip


def test_greedy_texts_of_all_settings_are_those_without_drafts(tmp_path: Path) -> None:
    options = options_of(tmp_path, temperature=0.0)
    loops = loops_of(options, Loader(options.base), VLLM)
    assert [*loops] == [WITHOUT, Setting(MODEL, 2), Setting(COPIES, 2), Setting(COPIES, 3)]
    for prompt in prompts(2):
        texts, forwards = {}, {}
        for setting, loop in loops.items():
            before = loop.forwards()
            texts[setting] = loop.generate(prompt, 0).tokens
            forwards[setting] = loop.forwards() - before
        assert len({tuple(text) for text in texts.values()}) == 1
        assert forwards[WITHOUT] >= len(texts[WITHOUT])
        assert forwards[Setting(MODEL, 2)] < forwards[WITHOUT]


def test_a_sweep_at_temperature_1_has_sampled_drafts_too(tmp_path: Path) -> None:
    output = tmp_path / "sweep.json"
    main(options_of(tmp_path, temperature=1.0, output=output))
    result = json.loads(output.read_text())
    assert result["engine"] == VLLM
    assert {*result["speedup"]} == {
        *map(str, (WITHOUT, Setting(MODEL, 2), Setting(COPIES, 2), Setting(COPIES, 3), Setting(PROBABILISTIC, 2)))
    }
    assert {*result["advice"]} == {"compare", "the sweep"}
    assert all(0 < advice["share"]["value"] <= 1 for advice in result["advice"].values())
