"""Greedy decoding of many architectures is, token for token, transformers' own of each prompt alone, in every mode."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest
import torch
from specpilot.controllers.acceptance.feature_model import FeatureModel
from specpilot.controllers.length import FeaturePredictor, Fixed, RateOptimal
from specpilot.controllers.length.cost_model import CostModel
from specpilot.data_gen.draft_states import at_drafted_tokens
from specpilot.data_gen.kinds import AcceptanceRow
from specpilot.data_gen.texts import text_of
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.generation import Generation
from specpilot.infer.models import CausalLM
from torch import Tensor
from transformers import PreTrainedModel

from .architectures import ENCODER_DECODERS, FEATURES, MAKERS, PLAIN, pair, target_of

NEW = 40  # tokens after each prompt
LENGTHS = [1, 14, 60, 5, 33, 46, 2, 9, 20, 27, 40, 52, 3, 7, 11, 17, 24, 36, 47, 58]
PROMPTS = [
    torch.randint(1, 60, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    for seed, length in enumerate(LENGTHS)
]
COMMON = {  # of every kind of mask, position and cache; the others are slow tests
    "gemma3", "gpt-oss", "llama4", "mistral", "gpt-neo", "phi3-longrope", "llama", "qwen3-full", "gpt2", "mpt",
    "deepseek-v3", "t5",
}  # fmt: skip
FEWER = {*PLAIN, *ENCODER_DECODERS}  # they have no window that a text could outgrow


def each(names: Iterable[str]) -> pytest.MarkDecorator:
    """A test for each of these architectures."""
    return pytest.mark.parametrize(
        "name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in COMMON)) for n in sorted(names)]
    )


def read_context(draft: PreTrainedModel, row: AcceptanceRow) -> tuple[Tensor, Tensor]:
    """The function under test, of a bare model."""
    return at_drafted_tokens(CausalLM(draft), text_of(row))


def prompts_of(name: str) -> list[list[int]]:
    """``PARITY_PROMPTS=20`` runs with all of them."""
    return PROMPTS[: int(os.environ.get("PARITY_PROMPTS", "3" if name in FEWER else "4"))]


def transformers_greedy(model: PreTrainedModel, prompt: list[int]) -> tuple[list[int], list[float]]:
    """The text, and the margin by which each token is the most likely, in standard deviations of its logits."""
    ids = torch.tensor([prompt])
    output = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False, pad_token_id=0,
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    logits = torch.cat(output.logits)  # (NEW, V)
    first, second = logits.topk(2).values.unbind(-1)
    text = output.sequences[0, 1 if model.config.is_encoder_decoder else len(prompt) :]
    return text.tolist(), ((first - second) / logits.std(-1)).tolist()


pair_of = cache(pair)


@cache
def greedy_of(name: str) -> list[tuple[list[int], list[float]]]:
    target, _ = pair_of(name)
    return [transformers_greedy(target, prompt) for prompt in prompts_of(name)]


def references(name: str) -> list[list[int]]:
    return [text for text, _ in greedy_of(name)]


def one_by_one(decoder: SpeculativeDecoder, prompts: list[list[int]]) -> list[Generation]:
    return [decoder.generate(prompt, max_new_tokens=NEW, temperature=0) for prompt in prompts]


def together(decoder: SpeculativeDecoder, prompts: list[list[int]]) -> list[Generation]:
    return decoder.generate(prompts, max_new_tokens=NEW, temperature=0)


MODES = {"chain": (one_by_one, False), "tree": (one_by_one, True), "list": (together, False), "trees": (together, True)}


def decoder_of(name: str, *, tree: bool, grown: bool = False) -> SpeculativeDecoder:
    target, draft = pair_of(name)
    if grown:
        predictor = FeaturePredictor(FeatureModel(2.0, 1.0, -0.3, -0.3), 0.7)
        return SpeculativeDecoder(target, draft, length=RateOptimal(predictor, CostModel(0.02, 1.0, 0.01)), tree="auto")
    if tree:
        return SpeculativeDecoder(target, draft, tree=(3, 2, 1), verifier="spec-infer")
    return SpeculativeDecoder(target, draft, length=Fixed(4))


@pytest.mark.parametrize("mode", MODES)
@each([*MAKERS, *ENCODER_DECODERS])
def test_every_mode_is_transformers_greedy(name: str, mode: str) -> None:
    generate, tree = MODES[mode]
    outputs = generate(decoder_of(name, tree=tree), prompts_of(name))
    assert [output.tokens for output in outputs] == references(name)
    assert sum(output.stats.n_accepted for output in outputs) > len(outputs)
    assert sum(output.stats.n_discarded for output in outputs) > len(outputs)
    whole = {(3 if tree else 4) + 1, 2}  # a draft accepted to its end; a partly accepted one
    assert whole <= {len(r.emitted) for output in outputs for r in output.rounds}


@pytest.mark.parametrize("generate", [pytest.param(one_by_one, marks=pytest.mark.slow), together])
@each([*MAKERS, *ENCODER_DECODERS])
def test_rate_optimal_trees_are_transformers_greedy(name: str, generate: Any) -> None:
    """Trees of uneven branches, of which the draft has read a part."""
    outputs = generate(decoder_of(name, tree=True, grown=True), prompts_of(name))
    assert [output.tokens for output in outputs] == references(name)
    rounds = [r for output in outputs for r in output.rounds]
    assert any(r.parents != list(range(-1, len(r.parents) - 1)) for r in rounds)
    assert any(r.path != list(range(len(r.path))) for r in rounds)


@each(MAKERS)
def test_custom_generate_is_transformers_greedy(name: str) -> None:
    """Of each row alone: some of transformers' own models are led astray by padding."""
    prompts = prompts_of(name)
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    decoder = decoder_of(name, tree=False)
    output = pair_of(name)[0].generate(
        input_ids=ids, attention_mask=mask, custom_generate=decoder, do_sample=False, max_new_tokens=NEW
    )
    assert output[:, width:].tolist() == references(name)


@each([*MAKERS, *ENCODER_DECODERS])
def test_the_texts_are_no_easy_ones(name: str) -> None:
    """Many different tokens, and hardly one by a margin near what rounding may change (some 1e-6)."""
    texts = references(name)
    assert len({token for text in texts for token in text}) > 24
    assert sorted(len(set(text)) for text in texts)[len(texts) // 2] > 8
    margins = sorted(margin for _, of in greedy_of(name) for margin in of)
    assert margins[len(margins) // 100] > 1e-4


@each(FEATURES)
def test_the_features_matter(name: str) -> None:
    """With the window, or what else there is, out of force the texts are others."""
    for changes in FEATURES[name].values():
        without = target_of(name, **changes)
        texts = [transformers_greedy(without, prompt)[0] for prompt in prompts_of(name)[:4]]
        same = [text == reference for text, reference in zip(texts, references(name), strict=False)]
        assert sum(same) < len(same) / 2


@each(MAKERS)
def test_target_context_is_a_plain_forward(name: str) -> None:
    """Of the prefix and the drafted token; texts outgrow the windows, and the second the short frequencies."""
    _, draft = pair_of(name)
    generator = torch.Generator().manual_seed(0)
    for prompt in (PROMPTS[0], PROMPTS[4]):
        x, y = torch.randint(1, 60, (2, 30), generator=generator).tolist()
        logits, hidden = read_context(draft, AcceptanceRow("", "", prompt, x, y, [1.0] * len(x)))
        for i, token in enumerate(y):
            before, _ = plain_forward(draft, [*prompt, *x[:i]])
            _, after = plain_forward(draft, [*prompt, *x[:i], token])
            torch.testing.assert_close(logits[i], before, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(hidden[i], after, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def plain_forward(model: PreTrainedModel, text: list[int]) -> tuple[Tensor, Tensor]:
    """Logits (V,) after ``text`` and the hidden state (d,) they come from, without a cache."""
    states: list[Tensor] = []
    handle = model.get_output_embeddings().register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
    logits = model(input_ids=torch.tensor([text]), use_cache=False).logits
    handle.remove()
    return logits[0, -1], states[0][0, -1]
