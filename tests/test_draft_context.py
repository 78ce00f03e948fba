"""Drafts that read shorter texts than their target, which then goes on without them."""

from __future__ import annotations

import warnings
from copy import deepcopy
from typing import Any

import pytest
import torch
from specpilot.controllers.length import Fixed, Oracle
from specpilot.controllers.length.draft_sources import DraftSources
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.drafters.beams import Beams
from specpilot.infer.drafters.ngram import Ngram
from transformers import PreTrainedModel

from .drafts import FREE, options_of, state_draft
from .test_routing import InTurn, routed
from .tiny import make

pytestmark = pytest.mark.filterwarnings("ignore:.*reads texts of at most")
CONTEXT = 24  # of the drafts
PROMPTS = [[5, 9, 2, 44, 17, 3, 30], [*range(10, 33)], [*range(8, 50)], [7] * 12]  # short, at the edge, beyond, copied
WAYS: dict[str, dict[str, Any]] = {
    name: options_of(name) for name in ("3", "confidence", "mcss 2x1", "auto", "copies or 3", "auto or copies")
} | {"oracle": {"length": Oracle()}, "beams": {"verifier": "mtad", "beams": Beams(1), "length": Fixed(3)}}


def shortened(target: PreTrainedModel) -> PreTrainedModel:
    """The model with ``CONTEXT`` positions; a forward beyond them fails."""
    draft: Any = deepcopy(target)
    positions = draft.transformer.wpe
    positions.weight = torch.nn.Parameter(positions.weight[:CONTEXT], requires_grad=False)
    draft.config.n_positions = positions.num_embeddings = CONTEXT
    return draft  # type: ignore[no-any-return]


def texts(decoder: SpeculativeDecoder) -> list[list[int]]:
    """Of all prompts, one by one and then together."""
    settings: dict[str, Any] = {"max_new_tokens": 60, "temperature": 0.0}
    alone = [decoder.generate(prompt, **settings) for prompt in PROMPTS]
    together = [output.tokens for output in decoder.generate(PROMPTS, **settings)]
    assert together == [output.tokens for output in alone]
    return together


@pytest.mark.parametrize("way", WAYS)
def test_texts_are_as_long_as_the_targets(way: str) -> None:
    target = make("gpt2")
    decoder = SpeculativeDecoder(target, shortened(target), **deepcopy(WAYS[way]))
    assert texts(decoder) == texts(SpeculativeDecoder(target, None))
    first = decoder.generate(PROMPTS[0], max_new_tokens=60, temperature=0.0)
    assert first.stats.n_draft_forwards > 0


def test_several_drafts_and_arms_leave_their_contexts_one_by_one() -> None:
    target = make("gpt2")
    plain = texts(SpeculativeDecoder(target, None))
    several = SpeculativeDecoder(target, [shortened(target), make("gpt2", layers=1)], **options_of("spec-infer 2x1"))
    assert texts(several) == plain
    arms = routed(target, [shortened(target)], InTurn(2), [Fixed(3), Fixed(0)])
    assert texts(arms) == plain


@pytest.mark.parametrize("way", ["3", "spec-infer 2x2x1", "auto", "copies or 3"])
def test_drafts_that_read_states(way: str) -> None:
    target = make()
    draft = state_draft(target)
    draft.config.max_position_embeddings = CONTEXT
    decoder = SpeculativeDecoder(target, draft, **options_of(way))
    assert texts(decoder) == texts(SpeculativeDecoder(target, None))


def test_copies_go_on_beyond_the_drafts_context() -> None:
    target = make("gpt2", sharpness=0.0)  # always the same token
    options: dict[str, Any] = {"length": Fixed(2), "ngram": Ngram(2, FREE)}
    output = SpeculativeDecoder(target, shortened(target), **options).generate(
        [1] * 40, max_new_tokens=40, temperature=0
    )
    assert output.stats.n_draft_forwards == 0
    assert output.stats.n_accepted > 20
    sources = DraftSources(FREE, model=True)
    sources.idle = sources.patience  # the model would have another try
    assert sources.plan([1.0] * 5, 0) == (4, False)


@pytest.mark.parametrize(("more", "rest"), [({}, "without drafts"), ({"ngram": Ngram()}, "with n-gram drafts alone")])
def test_it_is_said_once(more: dict[str, Any], rest: str) -> None:
    target = make("gpt2")
    with pytest.warns(match=f"gpt2: the draft reads texts of at most 24 tokens; longer ones go on {rest}") as said:
        decoder = SpeculativeDecoder(target, shortened(target), **more)
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decoder.generate(PROMPTS[2], max_new_tokens=8)
        SpeculativeDecoder(target, deepcopy(target))
