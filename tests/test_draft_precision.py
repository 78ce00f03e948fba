"""Drafts in another precision than the target's: the target's distribution, loading by name, refusals."""

from __future__ import annotations

import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from specpilot.common.errors import InputError
from specpilot.controllers.length import Fixed
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.drafters.ngram import Ngram

from .architectures import VOCAB, pair
from .test_lossless import Remembering, decoder_distribution, target_distribution
from .test_state_drafts import state_draft
from .tiny import make, save_pair

PROMPTS = [[5, 9, 2, 33, 41, 7], [11, 3], [*range(40, 60), *range(40, 52)]]
WAYS: dict[str, dict[str, Any]] = {
    "chain": {"length": Fixed(3)},
    "block": {"length": Fixed(3), "verifier": "block"},
    "tree": {"tree": (2, 1), "verifier": "spec-infer"},
    "copies": {"length": Fixed(2), "ngram": Ngram()},
}


@pytest.mark.parametrize(
    ("way", "sampling"),
    [
        ("chain", SamplingParams(0.7, None, 0.9)),
        *(pytest.param(way, SamplingParams(1.0, 2), marks=pytest.mark.slow) for way in WAYS),
    ],
    ids=str,
)
def test_the_distribution_is_the_targets(way: str, sampling: SamplingParams) -> None:
    sizes: dict[str, int] = {"vocab": 3, "layers": 1, "hidden": 8, "context": 32}
    target = Remembering(make(seed=3, sharpness=6.0, **sizes).double())
    draft = make(seed=1003, sharpness=6.0, **sizes).to(torch.bfloat16)
    decoder = SpeculativeDecoder(target, draft, **WAYS[way])
    found, expected = decoder_distribution(decoder, sampling, 5), target_distribution(target, sampling)
    assert found.keys() == expected.keys()
    # The probabilities of a draft in half precision are in float32.
    assert all(found[tokens] == pytest.approx(expected[tokens], abs=1e-6) for tokens in expected)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "gpt2"])
@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_greedy_texts_are_the_targets(name: str, options: dict[str, Any]) -> None:
    target, draft = pair(name)
    expected = SpeculativeDecoder(target, None).generate(PROMPTS, temperature=0, max_new_tokens=24)
    decoder = SpeculativeDecoder(target, draft.to(torch.bfloat16), **options)
    found = decoder.generate(PROMPTS, temperature=0, max_new_tokens=24)
    assert [text.tokens for text in found] == [text.tokens for text in expected]
    assert sum(text.stats.n_accepted for text in found) > 0


def test_a_draft_that_reads_states() -> None:
    target, _ = pair("llama")
    draft = deepcopy(state_draft(target, [*range(0, VOCAB, 2)])).to(torch.bfloat16)  # the embedding is shared
    expected = SpeculativeDecoder(target, None).generate(PROMPTS, temperature=0, max_new_tokens=24)
    found = SpeculativeDecoder(target, draft, length=Fixed(2)).generate(PROMPTS, temperature=0, max_new_tokens=24)
    assert [text.tokens for text in found] == [text.tokens for text in expected]


def test_loading_by_name(tmp_path: Path) -> None:
    target, draft = save_pair(tmp_path)
    decoder = SpeculativeDecoder.from_pretrained(
        target, [draft, draft], tree="2x1", verifier="spec-infer", draft_dtype="bfloat16"
    )
    assert decoder.target.model.dtype == torch.float32
    assert [model.model.dtype for model in decoder.drafts] == [torch.bfloat16] * 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a trained controller takes a draft of either precision
        decoder = SpeculativeDecoder.from_pretrained(
            "tiny", "tiny-draft", length="tiny-lag-free", cost=0.2, draft_dtype="bfloat16"
        )
    assert decoder.generate("What is 3 and 4?", max_new_tokens=24).stats.n_accepted > 0


@pytest.mark.parametrize("draft", [None, "ngram"])
def test_without_a_draft_model_it_is_refused(draft: str | None, tmp_path: Path) -> None:
    target, _ = save_pair(tmp_path)
    with pytest.raises(InputError, match="draft_dtype='bfloat16': there is no draft model"):
        SpeculativeDecoder.from_pretrained(target, draft, draft_dtype="bfloat16")
