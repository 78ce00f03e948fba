"""Perplexity and ROUGE-L by hand."""

import math

import pytest
import torch
from specpilot.infer.models import language_model

from experiments.papers.quality import Likelihood, likelihood, perplexity, perplexity_change, rouge_l

from ..tiny import make


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


def test_rouge_l() -> None:
    assert rouge_l("the cat sat", "the cat sat") == 1
    assert rouge_l("", "the cat") == 0
    assert rouge_l("the cat on mat", "the cat sat on the mat") == pytest.approx(2 * 4 / (4 + 6))
