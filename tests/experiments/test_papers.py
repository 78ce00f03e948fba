"""The papers' tables, by the command."""

import json
import math
from pathlib import Path

import pytest
import torch
from specpilot.infer.models import language_model

from experiments.__main__ import main
from experiments.papers.quality import Likelihood, likelihood, perplexity, perplexity_change

from ..tiny import make, save_pair


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, draft = save_pair(tmp_path)
    output = tmp_path / "out"
    (tmp_path / "p.txt").write_text("one\ntwo\nthree\n")
    words = f"--target {target} --draft {draft} --limit 2 --validation-limit 1 --max-new-tokens 3 --no-chat"
    words += f" --output {output} --prompts {tmp_path / 'p.txt'}"
    assert main(["papers", "spectr", *words.split()]) == 0
    assert main(["papers", "mtad", *words.split()]) == 0
    result = json.loads((output / "papers.json").read_text())
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == result
    assert set(result) == {"spectr", "mtjd", "mtad", "made_by"}
    assert {"perplexity_change", "tokens_per_target_forward_ratio", "speed_ratio"} <= set(result["mtad"])
    assert set(result["spectr"]["block_efficiency"]["k-seq"]["8"]) == {"1", "2", "4", "8"}
    assert result["made_by"]["mtad"]["settings"]["limit"] == 2
    for name in ("spectr", "mtad"):
        assert (output / f"papers-{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (output / "papers-mtad.md").read_text().count("What differs:") == 5


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "t5"])
def test_likelihood_is_the_models_own(architecture: str) -> None:
    model = make(architecture, vocab=32)
    prompt, tokens = [1, 2, 3], [4, 5, 6, 7]
    with torch.inference_mode():
        if model.config.is_encoder_decoder:
            decoded = torch.tensor([[0, *tokens[:-1]]])
            logits = model(input_ids=torch.tensor([prompt]), decoder_input_ids=decoded).logits[0]
        else:
            logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    expected = sum(float(row.log_softmax(-1)[token]) for row, token in zip(logits, tokens, strict=True))
    found = likelihood(language_model(model), prompt, tokens)
    assert found.tokens == 4
    assert found.log_p == pytest.approx(expected, abs=1e-3)


def test_perplexity_of_several_outputs() -> None:
    half, eighth = Likelihood(3 * math.log(1 / 2), 3), Likelihood(math.log(1 / 8), 1)
    found = perplexity([half, eighth])
    assert found["value"] == pytest.approx(64 ** (1 / 4))
    assert (found["low"], found["high"]) == (pytest.approx(2), pytest.approx(8))
    assert perplexity_change([half, half], [eighth, eighth])["value"] == pytest.approx(2 / 8 - 1)
