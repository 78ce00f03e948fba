"""Pairs of random models of any size with a chosen acceptance: real costs without downloads.

The draft is the target's first layers with the same head. The residual branches of the later layers are scaled down
until both agree as much as wanted at temperature 1, and the logits are scaled to a chosen entropy; both by bisection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from specpilot.cli.commands.measuring import begin
from specpilot.common.errors import InputError
from specpilot.common.options import Count, DeviceOptions, DType, Options, Range
from specpilot.models.early_exit import cut
from specpilot.models.loading.devices import DTYPES, pick_device
from specpilot.models.loading.names import load_tokenizer
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from . import FolderOptions

STEPS = 12  # of each bisection
TEXTS, TOKENS = 8, 16  # on which acceptance and entropy are measured


@dataclass(frozen=True, kw_only=True)
class Shape(Options):
    """Shape.

    Attributes:
        layers: Layers of the target.
        draft_layers: Layers of the draft, the target's first ones.
        hidden: Size of the hidden states.
        intermediate: Size of the layers between them.
        heads: Attention heads.
        kv_heads: Heads of keys and values.
        vocabulary: Number of tokens.
        acceptance: Expected acceptance of a drafted token at temperature 1.
        entropy: Entropy of the target's distributions, in nats.
    """

    layers: Count = 32
    draft_layers: Count = 4
    hidden: Count = 4096
    intermediate: Count = 14336
    heads: Count = 32
    kv_heads: Count = 8
    vocabulary: Count = 128256
    acceptance: Annotated[float, Range(0, 1, "()")] = 0.7
    entropy: Annotated[float, Range(0, 12, "()")] = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.draft_layers >= self.layers:
            raise InputError(f"draft_layers={self.draft_layers}: must be fewer than the target's {self.layers}")


@dataclass(frozen=True, kw_only=True)
class SyntheticPairOptions(Shape, FolderOptions, DeviceOptions):
    """Models.

    Options of ``python -m experiments synthetic-pair``.

    Attributes:
        dtype: Precision of the weights.
    """

    dtype: DType = "bfloat16"


class Strength(NamedTuple):
    """The parameters that the bisections choose.

    Attributes:
        scale: Factor of the residual branches of the target's later layers.
        sharpness: Factor of the logits.
    """

    scale: float
    sharpness: float


class Pair(NamedTuple):
    """A target, a draft that shares its first layers, and the parameters with which both were made."""

    target: PreTrainedModel
    draft: PreTrainedModel
    strength: Strength


@torch.no_grad()
def synthetic_pair(shape: Shape, device: torch.device, dtype: torch.dtype, strength: Strength | None = None) -> Pair:
    """Return a pair in memory on ``device``.

    Args:
        shape: the sizes, the acceptance and the entropy of the pair.
        device: device of the models.
        dtype: precision of the weights.
        strength: parameters of an earlier pair of this shape, which save the bisections. Default: bisections find the
            parameters.

    Raises:
        InputError: random models of this shape agree more than ``shape`` asks for.
    """
    config = LlamaConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        max_position_embeddings=8192, bos_token_id=None, eos_token_id=None, pad_token_id=None, dtype=dtype,
    )  # fmt: skip
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            target = LlamaForCausalLM(config).eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(before)
    draft = cut(target, shape.draft_layers, shape.layers)
    draft.config = copy(target.config)
    draft.config.num_hidden_layers = shape.draft_layers
    if strength is None:
        strength = _bisected(target, draft, shape)
    else:
        _scale_layers(target, shape, strength.scale)
        target.model.norm.weight.fill_(strength.sharpness)  # shared with the draft
    return Pair(target, draft, strength)


def _scale_layers(target: LlamaForCausalLM, shape: Shape, factor: float) -> None:
    """Multiply the residual branches of the layers that the draft does not have."""
    for layer in target.model.layers[shape.draft_layers :]:
        for weight in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
            weight.mul_(factor)


def _bisected(target: LlamaForCausalLM, draft: PreTrainedModel, shape: Shape) -> Strength:
    """Give the pair the acceptance and the entropy of ``shape``."""
    texts = torch.randint(shape.vocabulary, (TEXTS, TOKENS), generator=torch.Generator().manual_seed(0))
    texts = texts.to(target.device)
    scaled = sharpness = 1.0  # by now

    def agreement(scale: float) -> float:
        nonlocal scaled, sharpness
        _scale_layers(target, shape, scale / scaled)
        scaled = scale
        target.model.norm.weight.fill_(1.0)  # shared with the draft
        p, q = (torch.cat(list(_logits(model, texts))) for model in (target, draft))
        sharpness = _bisect(lambda factor: -float(_entropy(p * factor)), 1e-3, 1e3, -shape.entropy)
        target.model.norm.weight.fill_(sharpness)
        return float(torch.minimum((p * sharpness).softmax(-1), (q * sharpness).softmax(-1)).sum(-1).mean())

    if agreement(1.0) > shape.acceptance:
        raise InputError(f"acceptance={shape.acceptance}: these layers agree more; take fewer draft layers, or more")
    scale = _bisect(lambda scale: -agreement(scale), 1e-3, 1.0, -shape.acceptance)
    agreement(scale)
    return Strength(scale, sharpness)


def _logits(model: PreTrainedModel, texts: Tensor) -> Iterator[Tensor]:
    """Yield the logits (TOKENS, V) of each text, in float32."""
    for text in texts:
        yield model(input_ids=text.unsqueeze(0), use_cache=False).logits[0].float()


def _entropy(logits: Tensor) -> Tensor:
    return -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()


def _bisect(rising: Callable[[float], float], low: float, high: float, goal: float) -> float:
    """Return the positive argument at which an increasing function has the value ``goal``."""
    for _ in range(STEPS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if rising(middle) < goal else (low, middle)
    return math.sqrt(low * high)


def measured(target: PreTrainedModel, draft: PreTrainedModel) -> dict[str, float]:
    """Return the mean acceptance and entropy at temperature 1 on other texts than those of the bisection."""
    size = target.config.vocab_size
    texts = torch.randint(size, (TEXTS, TOKENS), generator=torch.Generator().manual_seed(1)).to(target.device)
    with torch.no_grad():
        p, q = (torch.cat(list(_logits(model, texts))) for model in (target, draft))
    accepted = torch.minimum(p.softmax(-1), q.softmax(-1)).sum(-1).mean()
    return {"acceptance": float(accepted), "entropy": float(_entropy(p))}


def main(options: SyntheticPairOptions) -> None:
    """Write a pair of random models of any size with a chosen acceptance, to time decoding."""
    console = begin()
    dtype = DTYPES[options.dtype]
    assert isinstance(dtype, torch.dtype)
    target, draft, _ = synthetic_pair(options, pick_device(options.device), dtype)
    for name, model in (("target", target), ("draft", draft)):
        model.save_pretrained(options.output / name)
        load_tokenizer("tiny").save_pretrained(options.output / name)
    acceptance = measured(target, draft)
    console.print(f"acceptance {acceptance['acceptance']:.2f}, entropy {acceptance['entropy']:.2f}: {options.output}")
