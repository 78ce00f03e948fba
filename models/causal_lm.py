"""Decoder-only models of transformers, which read tokens by one of the forwards of :mod:`.forwards`."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..common.errors import InputError
from .base import LanguageModel, input_device, output_size
from .eagle import find_state_input
from .fixed_layers import FixedLayers
from .forwards import Graphs, choose_forward
from .kv_cache import RaggedKVCache
from .linear import Quantization
from .longrope import longrope_switch
from .masks import mask_types
from .model_snapshot import ModelSnapshot, has_active_dropout, uncompile, unwrap
from .read import Read
from .sampled import DraftedTokens, Sampled
from .text_cache import TextCache
from .trimmed_head import TrimmedHead

REREADING = frozenset({"phi3", "phimoe"})  # transformers recomputes a text's keys when longrope's factors change


class CausalLM(LanguageModel):
    """A decoder-only model.

    Attributes:
        model: the model of transformers.
        switch: length in tokens of the longest text with longrope's short factors; None without longrope.
        layers: number of layers that a forward computes.
        depth: number of layers in the model's configuration.
        takes_positions: whether the model's forward has the argument ``position_ids``.
        types: the masks of the model's layers; None if a type of layer is not supported.
        state_input: the module that makes inputs of the target's states; None if the model reads no states.
        column_bytes: bytes of the keys and values of one token in all layers; 0 until a check has measured them.
        strategy: the forward by which the model reads tokens, chosen when the model is wrapped.
        packed: the model with reordered or rounded weights; the model itself if these are not used.
        snapshot: the model's state when it was wrapped; None if the forward uses the model's current weights.

    Raises:
        InputError: the model is an encoder-decoder, has a recurrent state that cannot be rolled back or an unsupported
            type of attention, or its weights cannot be quantized.
    """

    model: PreTrainedModel

    def __init__(self, model: PreTrainedModel, quantization: Quantization | None = None, graphs: Graphs = "on") -> None:
        self._check(model)
        self.model = model
        self.name = model.config.model_type
        head = model.get_output_embeddings()
        self.device: torch.device = input_device(model)
        config = self.config = model.config.get_text_config(decoder=True)
        self.layers: int = config.num_hidden_layers
        self.depth = self.layers  # for an encoder-decoder, the number of the encoder's layers
        # Absent if positions are not embedded (ALiBi): then there is no limit, except MPT's max_seq_len.
        self.context: int | None = getattr(config, "max_position_embeddings", getattr(config, "max_seq_len", None))
        self.vocab_size, self.hidden_size = output_size(head)
        if isinstance(head, TrimmedHead) and len(head.tokens) < head.size:
            self.kept_tokens = head.tokens
        self.switch = longrope_switch(config)
        if self.switch is not None and self.name not in REREADING:
            # Cached keys would keep the short factors, so that the distribution would depend on how the text was read.
            self.context = self.switch if self.context is None else min(self.context, self.switch)
            self.switch = None
        arguments = _argument_names(model)
        self._keeps_logits = "logits_to_keep" in arguments
        self.takes_positions = "position_ids" in arguments
        self.types = mask_types(config)
        self.state_input = find_state_input(model)
        self.reads_states = self.state_input is not None
        self.precision = quantization or str(model.dtype).removeprefix("torch.")
        self._inner: list[nn.Module] = []  # the modules of state_layers
        self.column_bytes = 0  # set by check_reading_in_parts
        self.packed: PreTrainedModel
        self.strategy = choose_forward(self, uncompile(model), quantization, graphs, self.switch)
        self.reads_drawn = self.strategy.takes_unread and self.device.type not in ("cpu", "mps")
        replaced = self.strategy.replaces_modules
        self.snapshot = ModelSnapshot(model, hooks=replaced) if replaced or self.packed is not model else None

    def with_layers(self, layers: tuple[int, ...]) -> CausalLM:
        """Return the same model, with the outputs of ``layers`` after its hidden states; 1 is the first layer.

        Raises:
            InputError: the model has no such layer.
        """
        model = copy(self)
        model.state_layers, model._inner = layers, layer_modules(self.packed, layers, self.layers)
        model.strategy = self.strategy.of(model)
        return model

    @staticmethod
    def _check(model: PreTrainedModel) -> None:
        """Check that the model can be decoded exactly.

        Raises:
            InputError: the model cannot be decoded exactly; the message names the reason.
        """
        kind = model.config.model_type
        if model.config.is_encoder_decoder:
            raise InputError(f"{kind}: an encoder-decoder model; a causal (decoder-only) language model is needed")
        if model._is_stateful:
            raise InputError(f"{kind}: its recurrent state cannot be rolled back after a rejection")
        if "past_key_values" not in _argument_names(model):
            raise InputError(f"{kind}: has no KV cache, which speculative decoding needs; choose another model")
        if mask_types(model.config.get_text_config(decoder=True)) is None:
            types = sorted(set(model.config.get_text_config(decoder=True).layer_types))
            raise InputError(
                f"{kind}: layers of types {', '.join(types)}; only full, sliding and chunked attention can be rolled "
                "back exactly"
            )

    def check_unchanged(self, role: str) -> None:
        if self.outer is not None:
            unwrap(self.outer, role)
        head: Any = self.model.get_output_embeddings()
        change = None if self.snapshot is None else self.snapshot.change()
        sizes = self.device, self.vocab_size, self.hidden_size, self.depth
        if change is None and (input_device(self.model), *output_size(head), self.config.num_hidden_layers) != sizes:
            change = "the model has another vocabulary, device or number of layers"
        if change is not None:
            raise InputError(f"{role}: {change} than when the decoder was made; make a new decoder of the model")
        dropping = next((name for name, module in self.model.named_modules() if has_active_dropout(module)), None)
        if dropping is not None:
            raise InputError(f"{role}: {dropping} is in training mode, so dropout is on; call .eval() on the model")

    @property
    def together(self) -> bool:
        """Return true if texts of different lengths and trees share a forward."""
        return self.strategy.together

    @property
    def forward_description(self) -> str:
        return f"{self.strategy.name}, because {self.strategy.reason}"

    def new_cache(self) -> RaggedKVCache:
        return self.strategy.new_cache(self)

    def forward(self, cache: TextCache, reads: Sequence[Read]) -> tuple[Tensor, Tensor]:
        assert isinstance(cache, RaggedKVCache)
        return self.strategy.read(self, cache, reads)

    def draft_unread(
        self, cache: TextCache, reads: Sequence[Read], counts: Sequence[int], numbers: Sequence[Sequence[float]],
        sampled: Sampled, steps: int,
    ) -> DraftedTokens | None:  # fmt: skip
        assert isinstance(cache, RaggedKVCache)
        return self.strategy.draft_unread(self, cache, reads, counts, numbers, sampled, steps)

    def run(
        self,
        cache: RaggedKVCache,
        tokens: Tensor,
        keep: int,
        kept_states: int,
        mask: Any = None,
        positions: Tensor | None = None,
        states: Tensor | None = None,
        fixed: FixedLayers | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run the model's forward on the B rows of the cache's plan.

        Args:
            cache: the cache, with a plan.
            tokens: (B, n) the tokens to read.
            keep: number of last tokens with logits.
            kept_states: number of last tokens with hidden states, at least ``keep``.
            mask: additive mask, or a dict of masks by layer type. Default: the model's own mask.
            positions: (B, n) the tokens' positions. Default: the model's own.
            states: (B, n, d) the states before each token, for models that read states. Default: zeros.
            fixed: the layers that compute the forward. Default: the model's own.

        Returns:
            Logits (B, keep, V) and hidden states (B, kept, d + L·d).
        """
        inputs: dict[str, Any] = {"past_key_values": cache, "use_cache": True, **self._inputs(tokens, states)}
        if self._keeps_logits:
            inputs["logits_to_keep"] = kept_states
        if mask is not None:
            inputs["attention_mask"] = mask
        if positions is not None:
            inputs["position_ids"] = positions
        model, inner = self.packed, self._inner
        if fixed is not None:
            model, inner = fixed.model, [fixed.layers[layer - 1] for layer in self.state_layers]
        logits, hidden = forward_with_hidden(
            model, None if keep == kept_states else partial(_last, keep), inner, **inputs
        )
        return logits[:, -keep:], hidden[:, -kept_states:]

    def _inputs(self, tokens: Tensor, states: Tensor | None) -> dict[str, Tensor]:
        """Return the keyword for the model's input: token ids, or embeddings made of tokens and states (B, n, d)."""
        tokens = tokens.to(self.device)
        if self.state_input is None:
            return {"input_ids": tokens}
        embeddings = self.model.get_input_embeddings()(tokens)
        if states is None:
            states = embeddings.new_zeros(*tokens.shape, self.hidden_size)
        return {"inputs_embeds": self.state_input(embeddings, states.to(embeddings.dtype))}


def layer_modules(model: PreTrainedModel, layers: Sequence[int], count: int) -> list[nn.Module]:
    """Return the modules of ``layers`` of a target with ``count`` layers; 1 is the first layer.

    Raises:
        InputError: the model has no such layers.
    """
    name = model.config.model_type
    all_layers = model.get_decoder()._modules.get("layers")
    if not isinstance(all_layers, nn.ModuleList) or len(all_layers) != count:
        raise InputError(f"draft: reads the outputs of layers, which are not found in {name}; choose another draft")
    outside = [layer for layer in layers if not 0 < layer <= count]
    if outside or list(layers) != sorted({*layers}):
        raise InputError(
            f"draft: reads the target's layers {', '.join(map(str, layers))}; they must ascend, from 1 to {count} in "
            f"{name}; take the target it was made for"
        )
    return [all_layers[layer - 1] for layer in layers]


def _argument_names(model: PreTrainedModel) -> set[str]:
    """Return the names of the arguments of the model's forward.

    If a forward with ``**kwargs`` replaces that of the class, the result includes the names of the class's forward.
    """
    parameters = inspect.signature(model.forward).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return {*parameters, *inspect.signature(type(model).forward).parameters}
    return {*parameters}


def _last(count: int, states: Tensor) -> Tensor:
    """Return the last ``count`` of ``states`` (B, n, d)."""
    return states[:, -count:]


def forward_with_hidden(
    model: PreTrainedModel,
    select: Callable[[Tensor], Tensor] | None = None,
    layers: Sequence[nn.Module] = (),
    **inputs: Any,
) -> tuple[Tensor, Tensor]:
    """Return logits (B, n, V) and last hidden states (B, n, d) of one call ``model(**inputs)``.

    The hidden state is the input of the output embedding, after the final norm and any output projection, at the
    positions of ``logits_to_keep``. (``output_hidden_states=True`` would collect every layer at every position.)

    Args:
        model: the model.
        select: returns the states that go through the output embedding, so that there are fewer logits than states.
            Default: all.
        layers: modules whose outputs follow the last hidden states, which are then (B, n, d + L·d).
        inputs: keywords of the model's forward.
    """
    captured: list[Tensor] = []
    thread = threading.get_ident()

    def capture(module: nn.Module, arguments: tuple[Tensor, ...]) -> Tensor | None:
        if threading.get_ident() != thread:
            return None  # another thread's forward
        captured.append(arguments[0])
        return None if select is None else select(arguments[0])

    outputs: dict[nn.Module, Tensor] = {}

    def capture_output(module: nn.Module, arguments: tuple[Tensor, ...], output: Any) -> None:
        if threading.get_ident() == thread:
            outputs[module] = output[0] if isinstance(output, tuple) else output

    handles = [model.get_output_embeddings().register_forward_pre_hook(capture)]
    handles += [layer.register_forward_hook(capture_output) for layer in layers]
    try:
        logits = model(**inputs).logits
    finally:
        for handle in handles:
            handle.remove()
    last = captured[-1]
    if layers:
        inner = [outputs[layer][:, -last.shape[1] :].to(last.device) for layer in layers]
        return logits, torch.cat([last, *inner], -1)
    return logits, last
