"""The benchmarks of a server, in a small size: every request is answered, and bad clients do no harm."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from specpilot import main as cli
from specpilot.compare.engines.served_texts import ROUNDING, first_difference, summary
from specpilot.infer.decoder import SpeculativeDecoder

from .tiny import byte_tokenizer, make


def test_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--limit", "4", "--max-new-tokens", "8", "--length", "tiny-lag-free", "--cost", "0.2"]
    out = tmp_path / "serve.json"
    load = ["--loads", "[1,3]", "--requests", "3", "--repeats", "1", "--output", str(out)]
    assert cli.main(["bench", "serve", *words, *load]) == 0
    result = json.loads(out.read_text())
    assert result["greedy_texts_equal"] == {name: [3, 3] for name in ("ours", "fixed", "none")}
    assert result["exit_codes"] == {"ours": 0, "fixed": 0, "none": 0}
    for texts in result["sampled_texts"].values():
        assert texts["of"] == 3
        assert texts["equal"] + len(texts["differences"]) == 3
        assert all(one["rounding"] for one in texts["differences"])
    for row in result["load"].values():
        assert all(one["tokens_per_second"] > one["time_to_first_token"] for one in row.values())
        assert all(one["tokens_per_processor_second"] > 0.0 for one in row.values())
    capsys.readouterr()
    assert cli.main(["bench", "serve", *words, "--dtype", "float16", "--draft", "nowhere/none"]) == 2


@pytest.mark.parametrize(("shift", "rounding"), [(0.9 * ROUNDING, True), (1.1 * ROUNDING, False)])
def test_differences_by_rounding_and_others(shift: float, rounding: bool) -> None:
    """The server's probabilities of either token, where its text begins to differ, are those of the text alone."""
    model = make(vocab=257)
    decoder = SpeculativeDecoder(model, None, byte_tokenizer())
    prompt, own, theirs = [10, 20], [65, 66, 67], [65, 90, 91]
    with torch.inference_mode():
        p = torch.softmax(model(input_ids=torch.tensor([[*prompt, 65]])).logits[0, -1], -1)
    for late, early in ((shift, 0.0), (0.0, shift)):
        top = {"c": math.log(float(p[66]) + early), "{": math.log(float(p[90]))}
        logprobs = {"token_logprobs": [0.0, math.log(float(p[90]) + late), 0.0], "top_logprobs": [{}, top, {}]}
        found = first_difference(decoder, prompt, {"token_ids": theirs, "logprobs": logprobs}, own)
        assert (found["position"], found["tokens"], found["rounding"]) == (1, [90, 66], rounding)
        assert found["alone"] == pytest.approx([float(p[90]), float(p[66])], abs=1e-6)
    longer = {"token_ids": [*own, 68], "logprobs": {}}
    assert not first_difference(decoder, prompt, longer, own)["rounding"]


def test_the_line_about_texts() -> None:
    differences = [{"rounding": True}, {"rounding": True}, {"rounding": False}]
    line = summary({"ours": {"equal": 61, "of": 64, "differences": differences}}, 1.0)
    assert line.endswith("at temperature 1: ours 61 of 64 (2 by rounding, 1 otherwise)")
