"""Greedy texts of many architectures, in every mode, equal those of transformers for each prompt alone."""

from typing import Any

import pytest
import torch
from specpilot.data_gen.draft_states import at_drafted_tokens
from specpilot.data_gen.kinds import AcceptanceRow, text_of
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.models import CausalLM

from ..helpers.architectures import ENCODER_DECODERS, MAKERS
from ..helpers.greedy import (
    COMMON,
    PROMPTS,
    WAYS,
    each,
    one_by_one,
    pair_of,
    plain_forward,
    prompts_of,
    references,
    together,
)

# The grown tree is tried with all common models: its branches are uneven, and partly read before. The rest are slow.
EVERY_WAY = ("llama", "gemma3", "gpt2", "deepseek-v3", "t5")


@pytest.mark.parametrize("generate", [pytest.param(one_by_one, marks=pytest.mark.slow), together])
@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param(name, way, marks=[pytest.mark.slow] * (name not in (COMMON if way == "grown tree" else EVERY_WAY)))
        for name in sorted([*MAKERS, *ENCODER_DECODERS])
        for way in WAYS
    ],
)
def test_every_way_is_transformers_greedy(name: str, way: str, generate: Any) -> None:
    target, draft = pair_of(name)
    outputs = generate(SpeculativeDecoder(target, draft, **WAYS[way]), prompts_of(name))
    assert [output.tokens for output in outputs] == references(name)
    rounds = [r for output in outputs for r in output.rounds]
    lengths = {len(r.emitted) for r in rounds}
    if way == "grown tree":  # of uneven branches, of which the draft has read a part
        assert any(r.parents != list(range(-1, len(r.parents) - 1)) for r in rounds)
        assert any(r.path != list(range(len(r.path))) for r in rounds)
    else:  # a draft accepted to its end; a partly accepted one
        assert {5 if way == "chain" else 4, 2} <= lengths


@each(MAKERS)
def test_target_context_is_a_plain_forward(name: str) -> None:
    """The states are those of a forward over the prefix and the drafted token.

    Texts exceed the attention windows, and the second text exceeds the short rotary frequencies.
    """
    _, draft = pair_of(name)
    generator = torch.Generator().manual_seed(0)
    for prompt in (PROMPTS[0], PROMPTS[4]):
        x, y = torch.randint(1, 60, (2, 30), generator=generator).tolist()
        text = text_of(AcceptanceRow("", "", prompt, x, y, [1.0] * len(x)))
        logits, _, hidden = at_drafted_tokens(CausalLM(draft), text)
        for i, token in enumerate(y):
            before, _ = plain_forward(draft, [*prompt, *x[:i]])
            _, after = plain_forward(draft, [*prompt, *x[:i], token])
            torch.testing.assert_close(logits[i], before, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(hidden[i], after, rtol=1e-4, atol=1e-4)
