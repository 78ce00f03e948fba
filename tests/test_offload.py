"""Targets spread by a device map, some layers on disk: the same texts as in one piece."""

from __future__ import annotations

from pathlib import Path

import pytest
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.devices import is_dispatched

from .tiny import byte_tokenizer, make

PLACES = {
    "llama": {
        "model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "disk",
        "model.layers.0": "cpu", "model.layers.1": "disk", "model.layers.2": "cpu",
    },
    "gpt2": {
        "transformer.wte": "cpu", "transformer.wpe": "disk", "transformer.ln_f": "cpu", "lm_head": "cpu",
        "transformer.h.0": "disk", "transformer.h.1": "cpu", "transformer.h.2": "disk",
    },
}  # fmt: skip


@pytest.mark.parametrize("architecture", PLACES)
def test_chains_trees_and_lists(architecture: str, tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    for name, layers in (("target", 3), ("draft", 1)):
        make(architecture, vocab=257, layers=layers).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    names = tmp_path / "target", tmp_path / "draft"
    places = {"device_map": PLACES[architecture], "offload_folder": tmp_path / "offloaded"}
    whole, spread = (
        SpeculativeDecoder.from_pretrained(*names, length=3, device=device, **options)
        for device, options in (("cpu", {}), ("auto", places))
    )
    assert is_dispatched(spread.target.model)
    trees = [
        SpeculativeDecoder(d.target, d.drafts, tokenizer, tree=(2, 2), verifier="spec-infer") for d in (whole, spread)
    ]
    prompts = ["hello you", "a", "some more"]
    for one, other in ((whole, spread), trees):
        expected = [row.tokens for row in one.generate(prompts, max_new_tokens=12, seed=1)]
        assert [row.tokens for row in other.generate(prompts, max_new_tokens=12, seed=1)] == expected
        assert other.generate(prompts[0], max_new_tokens=12, seed=1).tokens == expected[0]
