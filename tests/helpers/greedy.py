"""Greedy texts of many architectures by the decoder and by transformers, and the compared options of drafting."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest
import torch
from specpilot.controllers.acceptance.feature_model import FeatureModel
from specpilot.controllers.length import FeaturePredictor, Fixed, RateOptimal
from specpilot.controllers.length.cost_model import CostModel
from specpilot.infer.core import Generation
from specpilot.infer.decoder import SpeculativeDecoder
from torch import Tensor
from transformers import PreTrainedModel

from .architectures import ENCODER_DECODERS, PLAIN, pair

NEW = 40  # tokens after each prompt
LENGTHS = [1, 14, 60, 5, 33]
PROMPTS = [
    torch.randint(1, 60, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    for seed, length in enumerate(LENGTHS)
]
COMMON = {  # of every kind of mask, position and cache; the others are slow tests
    "gemma3", "gpt-oss", "llama4", "mistral", "gpt-neo", "phi3-longrope", "llama", "qwen3-full", "gpt2", "bloom", "mpt",
    "deepseek-v3", "t5",
}  # fmt: skip
FEWER = {*PLAIN, *ENCODER_DECODERS}  # they have no window that a text could outgrow


def each(names: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrise a test by architectures."""
    return pytest.mark.parametrize(
        "name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in COMMON)) for n in sorted(names)]
    )


def prompts_of(name: str) -> list[list[int]]:
    return PROMPTS[: 3 if name in FEWER else 4]


def transformers_greedy(model: PreTrainedModel, prompt: list[int], new: int = NEW) -> list[int]:
    ids = torch.tensor([prompt])
    output = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False, pad_token_id=0
    )
    return output[0, 1 if model.config.is_encoder_decoder else len(prompt) :].tolist()


pair_of = cache(pair)


@cache
def references(name: str) -> list[list[int]]:
    target, _ = pair_of(name)
    # The cache of transformers 5.17 keeps keys with the short frequencies in a text that has come to the long ones.
    greedy = forwards_greedy if name == "phi3-longrope" else transformers_greedy
    return [greedy(target, prompt) for prompt in prompts_of(name)]


def forwards_greedy(model: PreTrainedModel, prompt: list[int]) -> list[int]:
    text = list(prompt)
    while len(text) < len(prompt) + NEW:
        text.append(int(plain_forward(model, text)[0].argmax()))
    return text[len(prompt) :]


def one_by_one(decoder: SpeculativeDecoder, prompts: list[list[int]]) -> list[Generation]:
    return [decoder.generate(prompt, max_new_tokens=NEW, temperature=0) for prompt in prompts]


def together(decoder: SpeculativeDecoder, prompts: list[list[int]]) -> list[Generation]:
    return decoder.generate(prompts, max_new_tokens=NEW, temperature=0)


PREDICTOR = FeaturePredictor(FeatureModel(2.0, 1.0, -0.3, -0.3), 0.7)
WAYS: dict[str, dict[str, Any]] = {
    "chain": {"length": Fixed(4)},
    "tree": {"tree": (3, 2, 1), "verifier": "spec-infer"},
    "grown tree": {"length": RateOptimal(PREDICTOR, CostModel(0.02, 1.0, 0.01)), "tree": "auto"},
}


@torch.inference_mode()
def plain_forward(model: PreTrainedModel, text: list[int]) -> tuple[Tensor, Tensor]:
    """Logits (V,) after ``text`` and the hidden state (d,) they come from, without a cache."""
    states: list[Tensor] = []
    handle = model.get_output_embeddings().register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
    logits = model(input_ids=torch.tensor([text]), use_cache=False).logits
    handle.remove()
    return logits[0, -1], states[0][0, -1]
