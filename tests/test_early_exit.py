"""Early exits against the model's own hidden states, and in the target's cache."""

from __future__ import annotations

import pytest
import torch
from specpilot.common.errors import InputError
from specpilot.infer.models import CausalLM, EarlyExit, EncoderDecoder, LanguageModel, TextReader

from .tiny import ALIBI, ARCHITECTURES, make

TOKENS = [5, 3, 8, 13, 2, 60, 7]
NORMS = {"llama": "model.norm", "qwen": "model.norm", "gpt2": "transformer.ln_f", "bloom": "transformer.ln_f"}


def read(model: LanguageModel, tokens: list[int], *chunks: int) -> torch.Tensor:
    """(N, V) logits of ``tokens``, read in ``chunks``."""
    reader, text = TextReader.begin(model, tokens)
    with torch.inference_mode():
        return torch.cat([reader.read(part.tolist())[0] for part in torch.tensor(text).split(chunks or len(text))])


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *ALIBI])
def test_an_exit_is_layer_norm_and_head(architecture: str) -> None:
    model = make(architecture, layers=3)
    target = CausalLM(model)
    found = read(EarlyExit(target, 2), TOKENS, 4, 3)
    ids = torch.tensor([TOKENS])
    if architecture in NORMS:
        with torch.inference_mode():
            hidden = model(input_ids=ids, output_hidden_states=True).hidden_states[2]
            expected = model.get_output_embeddings()(model.get_submodule(NORMS[architecture])(hidden))
        torch.testing.assert_close(found, expected[0], rtol=1e-4, atol=1e-4)
    full = model(input_ids=ids).logits[0]  # the model itself is as it was
    assert not torch.allclose(found, full)
    torch.testing.assert_close(read(target, TOKENS), full, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize("lean", [True, False])
@torch.inference_mode()
def test_one_cache_for_both(architecture: str, lean: bool) -> None:
    """Draft, verify, reject, and a round without a draft: the exit always reads the text, and the target too."""
    target = CausalLM(make(architecture, layers=3))
    if not lean:
        target.lean = None
    exit = EarlyExit(target, 1)
    whole, text = TextReader.begin(target, TOKENS[:3])
    whole.read(text)
    short = TextReader(exit, whole.cache, whole.text)

    def same(logits: torch.Tensor, model: LanguageModel, tokens: list[int]) -> None:
        torch.testing.assert_close(logits[-1], read(model, tokens)[-1], rtol=1e-4, atol=1e-4)

    for token, text in ((13, TOKENS[:4]), (9, [*TOKENS[:4], 9]), (4, [*TOKENS[:4], 9, 4])):  # drafts 9, 4
        same(short.read([token])[0], exit, text)
    whole.crop(3)
    same(whole.read([13, 9, 4])[0], target, [*TOKENS[:4], 9, 4])
    whole.keep(4, [])  # both rejected
    same(whole.read([2])[0], target, TOKENS[:5])  # a round without a draft
    same(short.read([60])[0], exit, TOKENS[:6])
    assert exit.parameters < sum(p.numel() for p in target.model.parameters())


def test_exits_that_there_are_not() -> None:
    target = CausalLM(make(layers=2))
    for layer in (0, 2, 7):
        with pytest.raises(InputError, match=rf"exit:{layer}'.*2 layers; choose one from 1 to 1"):
            EarlyExit(target, layer)
    with pytest.raises(InputError, match="encoder-decoder"):
        EarlyExit(EncoderDecoder(make("t5")), 1)
