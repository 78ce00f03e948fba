"""Drafts that read the target's hidden states: exactness, their states, their folders."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from specpilot.common.errors import InputError
from specpilot.controllers.checkpoints.fingerprint import model_fingerprint
from specpilot.controllers.length import Fixed
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.acceptance import AcceptanceDatasetBuilder
from specpilot.data_gen.options import AcceptanceDataOptions, RouterDataOptions
from specpilot.data_gen.router import RouterDatasetBuilder
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.draft import Draft
from specpilot.infer.drafters.mixed import CopyingDrafter
from specpilot.infer.drafters.ngram import Ngram
from specpilot.infer.loading.draft_folder import SharedWith, save_draft
from specpilot.infer.loading.names import load_model
from specpilot.infer.models import CausalLM, Read, ancestors_of
from specpilot.infer.models.eagle import StateInput, state_input_of
from specpilot.infer.random_source import RandomSource
from specpilot.infer.request import Request
from specpilot.train.draft_model import new_draft
from torch import Tensor

from .architectures import target_of
from .drafts import PROMPTS, STATE_WAYS, TEXT, options_of, state_draft
from .tiny import byte_tokenizer, make

NAMES = ["llama", "gemma3", *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen2", "gpt2"))]


# The forward


def test_the_lean_forward_is_that_of_transformers() -> None:
    target = target_of("llama")
    lean, plain = CausalLM(state_draft(target)), CausalLM(state_draft(target))
    assert lean.lean is not None
    plain.lean = None
    results = []
    for model in (lean, plain):
        cache = model.new_cache()
        for i in range(len(PROMPTS)):
            cache.add(i, 20)
        states = [torch.randn(len(t), model.hidden_size, generator=torch.Generator().manual_seed(9)) for t in PROMPTS]
        results.append(model.forward(cache, [Read(i, t, 2, None, 2, states[i]) for i, t in enumerate(PROMPTS)]))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


# Decoding


def watch(decoder: SpeculativeDecoder) -> list[tuple[list[int], Draft]]:
    """The texts and drafts of the rounds from now on."""
    (arm,) = decoder.drafting.arms(decoder.config)
    seen: list[tuple[list[int], Draft]] = []
    propose = arm.drafter.propose

    def watched(requests: Sequence[Request]) -> list[Draft]:
        texts = [list(request.text) for request in requests]
        drafts = propose(requests)
        seen.extend(zip(texts, drafts, strict=True))
        return drafts

    arm.drafter.propose = watched  # type: ignore[method-assign]
    return seen


def first_children(draft: Draft) -> Iterator[tuple[list[int], Tensor]]:
    """The tokens down to each first child, and the q that it was drawn from."""
    if draft.copied:
        return
    for node, parent in enumerate(draft.parents):
        if draft.parents.index(parent) == node:
            yield [draft.tokens[n] for n in (*ancestors_of(draft.parents, node), node)], draft.q[node]


@pytest.mark.parametrize("way", STATE_WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_q_is_a_function_of_the_text(name: str, way: str) -> None:
    """After any rejections and copies, in any batch, q is what the draft computes from the text in one go."""
    target = target_of(name)
    decoder = SpeculativeDecoder(target, state_draft(target), **options_of(way))
    seen = watch(decoder)
    outputs = decoder.generate(PROMPTS, max_new_tokens=20, temperature=1.0, top_k=None, seed=[3, 4, 5, 6])
    stats = [one.stats for one in outputs]
    assert 0 < sum(one.n_accepted for one in stats) < sum(one.n_drafted for one in stats)
    draft, reader = decoder.drafts[0], decoder.target
    deepest = 0
    with torch.inference_mode():
        for text, drafted in seen:
            read = reader.new_cache()
            read.add(0, len(text))
            _, states = reader.forward(read, [Read(0, text, 1, None, len(text))])
            before = torch.cat([torch.zeros_like(states[:1]), states[:-1]])
            for path, q in first_children(drafted):
                cache = draft.new_cache()
                cache.add(0, len(text) + 32)
                logits, own = draft.forward(cache, [Read(0, text, states=before)])
                for token in path[:-1]:
                    logits, own = draft.forward(cache, [Read(0, [token], states=own)])
                torch.testing.assert_close(logits[0].softmax(-1), q, rtol=1e-3, atol=1e-5)
                deepest = max(deepest, len(path))
    assert deepest > 1


def test_copies_are_not_continued() -> None:
    """The states of copied tokens are not known before they are verified."""
    target = target_of("llama")
    for draft, joined in ((state_draft(target), False), (new_draft(target, [0], None), True)):
        (arm,) = (decoder := SpeculativeDecoder(target, draft, ngram=Ngram())).drafting.arms(decoder.config)
        assert isinstance(arm.drafter, CopyingDrafter)
        assert arm.drafter.joined is joined


def test_between_rounds_the_cache_holds_the_text_without_drafts() -> None:
    target = target_of("llama")
    decoder = SpeculativeDecoder(target, state_draft(target), length=Fixed(3))
    request = decoder.new_request(TEXT, SamplingParams(1.0, None), 20, RandomSource(1))
    cache = decoder.drafting.arms(decoder.config)[0].drafter.cache  # type: ignore[attr-defined]
    previous = len(TEXT) + 1
    for tokens in decoder.scheduler.tokens(request):
        if len(request.text) > len(TEXT) + 1 and not request.finished:
            assert cache.length(request) == previous
        previous = len(request.text)
        assert tokens


# Refusals


def test_what_reads_no_states_refuses_such_a_draft(pair: tuple[Path, Path]) -> None:
    target, draft = map(str, pair)
    prompts = pair[0].parent / "p.txt"
    prompts.write_text("one\ntwo\n")
    with pytest.raises(InputError, match="data acceptance: the draft reads the target's states, which only decoding"):
        AcceptanceDatasetBuilder(AcceptanceDataOptions(target=target, draft=draft, prompts=str(prompts), device="cpu"))
    arms = (draft, "autoregressive")
    with pytest.raises(InputError, match="data router: the draft reads the target's states"):
        RouterDatasetBuilder(RouterDataOptions(target=target, arms=arms, prompts=str(prompts), device="cpu"))


# Folders


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """The folders of a target and a draft that reads its states."""
    target = make(vocab=257, hidden=32)
    target.save_pretrained(tmp_path / "target")
    byte_tokenizer().save_pretrained(tmp_path / "target")
    shared = SharedWith("target", model_fingerprint(target), ["input", "output"])
    draft = state_draft(target, [*range(0, 257, 2)])
    save_draft(draft, tmp_path / "draft", byte_tokenizer(), target=shared, dtype=torch.float32)
    return tmp_path / "target", tmp_path / "draft"


def test_a_folder_holds_the_state_input(pair: tuple[Path, Path]) -> None:
    target = load_model(pair[0], device="cpu")
    draft = state_draft(target, [*range(0, 257, 2)])
    assert json.loads((pair[1] / "draft.json").read_text())["reads_states"]
    loaded = load_model(pair[1], device="cpu", target=target)
    assert isinstance(state_input_of(loaded), StateInput)
    for name, value in draft.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    decoder = SpeculativeDecoder.from_pretrained(*pair, device="cpu")
    plain = SpeculativeDecoder.from_pretrained(pair[0], device="cpu")
    settings = {"max_new_tokens": 20, "temperature": 0.0}
    assert decoder.generate("hello", **settings).tokens == plain.generate("hello", **settings).tokens
