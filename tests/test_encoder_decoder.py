"""Pairs of the T5 family: one encoding a text, drafts for the decoder, and the target's own output distribution."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from specpilot.common.errors import InputError
from specpilot.controllers.length import Fixed
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.models import CausalLM

from .tiny import make

PROMPT = [5, 9, 2, 44, 17, 3, 30]


@pytest.mark.parametrize("options", [{"length": Fixed(3)}, {"tree": (2, 2), "verifier": "spec-infer"}])
def test_a_prompt_is_encoded_once(options: dict[str, Any]) -> None:
    """So are its keys and values for the decoder's cross-attention, whatever the rounds do."""
    decoder = SpeculativeDecoder(make("t5"), make("t5", layers=1), **options)
    calls: Counter[tuple[str, str]] = Counter()
    for name, model in (("target", decoder.target.model), ("draft", decoder.drafts[0].model)):
        for part in (model.encoder, *(block.layer[1].EncDecAttention.k for block in model.decoder.block)):
            part.register_forward_hook(lambda module, *unused, name=name: calls.update([(name, type(module).__name__)]))
    for texts in (1, 2):
        output = decoder.generate(PROMPT, max_new_tokens=20, seed=texts)
        assert output.stats.n_target_forwards > 3
        assert calls == {
            ("target", "T5Stack"): texts, ("target", "Linear"): 2 * texts,
            ("draft", "T5Stack"): texts, ("draft", "Linear"): texts,
        }  # fmt: skip


def test_refusals() -> None:
    t5 = make("t5")
    with pytest.raises(InputError, match="t5: an encoder-decoder model; a causal"):
        CausalLM(t5)
    with pytest.raises(InputError, match="prompt: the id 64 at position 1 is outside the model's vocabulary of 64"):
        SpeculativeDecoder(t5, None).generate([3, 64])
    t5.generation_config.decoder_start_token_id = None
    with pytest.raises(InputError, match="decoder_start_token_id is not set"):
        SpeculativeDecoder(t5, None)
