"""Early exits against the model's own hidden states, and on the target's cache."""

from __future__ import annotations

import pytest
import torch
from specpilot.controllers.errors import InputError
from specpilot.infer.cached_model import CachedModel
from specpilot.infer.early_exit import EarlyExit, FirstLayers
from specpilot.infer.encoder_decoder import EncoderDecoder

from .tiny import ALIBI, ARCHITECTURES, make

TOKENS = torch.tensor([[5, 3, 8, 13, 2, 60, 7]])
NORMS = {"llama": "model.norm", "qwen": "model.norm", "gpt2": "transformer.ln_f", "bloom": "transformer.ln_f"}


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *ALIBI])
def test_an_exit_is_layer_norm_and_head(architecture: str) -> None:
    model = make(architecture, layers=3)
    short = FirstLayers(CachedModel(model), 2)
    short.start(10)
    logits, _ = short.forward(TOKENS[:, :4])
    more, _ = short.forward(TOKENS[:, 4:])
    found = torch.cat([logits, more], 1)
    if architecture in NORMS:
        with torch.inference_mode():
            hidden = model(input_ids=TOKENS, output_hidden_states=True).hidden_states[2]
            expected = model.get_output_embeddings()(model.get_submodule(NORMS[architecture])(hidden))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    full = model(input_ids=TOKENS).logits  # the model itself is as it was
    assert not torch.allclose(found, full)
    short.whole.start(10)
    whole, _ = short.whole.forward(TOKENS)
    torch.testing.assert_close(whole, full, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize("lean", [True, False])
def test_one_cache_for_both(architecture: str, lean: bool) -> None:
    """Draft, verify, reject, and a round without a draft: the exit always reads the text, and the target too."""
    target = CachedModel(make(architecture, layers=3))
    if not lean:
        target.lean = None
    alone = FirstLayers(target, 1)
    text = TOKENS[0].tolist()

    def expected(model: CachedModel, tokens: list[int]) -> torch.Tensor:
        other = FirstLayers(target, 1) if model is exit else CachedModel(target.model)
        other.start(len(tokens))
        return other.forward(torch.tensor([tokens]), keep=1)[0][0, -1]

    target.start(20)
    target.forward(TOKENS[:, :3])
    exit = EarlyExit(target, 1)
    exit.start(20)
    assert exit.length == target.length == 3
    assert exit.cache.own[0].keys is target.cache.own[0].keys
    for token, said in ((13, text[:4]), (9, [*text[:4], 9]), (4, [*text[:4], 9, 4])):  # drafts 9, 4
        logits, _ = exit.forward(torch.tensor([[token]]))
        torch.testing.assert_close(logits[0, -1], expected(exit, said), rtol=1e-4, atol=1e-4)
    assert (exit.length, target.length) == (6, 3)
    logits, _ = target.forward(torch.tensor([[13, 9, 4]]))
    torch.testing.assert_close(logits[0, -1], expected(target, [*text[:4], 9, 4]), rtol=1e-4, atol=1e-4)
    target.keep(4, [])  # both rejected
    exit.keep(4, [])
    assert (exit.length, target.length) == (4, 4)
    target.forward(torch.tensor([[2]]))  # a round without a draft
    assert exit.length == 5
    logits, _ = exit.forward(torch.tensor([[60]]))
    torch.testing.assert_close(logits[0, -1], expected(exit, text[:6]), rtol=1e-4, atol=1e-4)
    assert alone.parameters < sum(p.numel() for p in target.model.parameters())


def test_exits_that_there_are_not() -> None:
    target = CachedModel(make(layers=2))
    for layer in (0, 2, 7):
        with pytest.raises(InputError, match=rf"exit:{layer}'.*2 layers; choose one from 1 to 1"):
            FirstLayers(target, layer)
    with pytest.raises(InputError, match="encoder-decoder"):
        FirstLayers(EncoderDecoder(make("t5")), 1)
