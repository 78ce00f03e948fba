"""Decoder-only models of transformers.

There are three kinds of forwards with the same result. *One text* without a tree uses the model's own masks and
positions. *Ragged* forwards of several texts or of a tree are one padded batch with our positions and masks
(:mod:`.masks`). *Row by row* is for models that count positions by cache columns or do not accept such masks: one
forward per text, and a tree as a batch of its paths, which needs no mask. They share the cache and the self-check that
chooses between them, so they are in one file, which is longer than others.
"""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..common.errors import InputError
from .base import LanguageModel, input_device, is_dispatched, output_size
from .eagle import state_input_of
from .fixed_layers import FixedLayers
from .fused_layers import FusedLayers
from .given import Given, drops, uncompiled, unwrapped
from .kv_cache import RaggedKVCache
from .lean_forward import LeanForward
from .linear import Quantization, pack
from .longrope import TokenKVCache, longrope_switch, read_by_factors
from .masks import as_scores, layer_masks, mask_types, placed
from .read import Read, TreeMask, ends, joined, put_drawn, put_states, read_in_groups
from .sampled import DraftedTokens, Sampled
from .static_draft import draft_static
from .static_forward import LONGEST, fits_static, read_static
from .text_cache import TextCache
from .trimmed_head import TrimmedHead

Graphs = Literal["on", "off", "compiled"]
MASKED_ATTENTION = ("eager", "sdpa")  # implementations that accept an additive mask
# These count positions by cache columns, because of ALiBi from the padding mask, Llama 4's temperature tuning, or
# GPT-Neo's local layers.
COLUMN_COUNTING = frozenset({"bloom", "mpt", "llama4", "llama4_text", "gpt_neo"})
REREADING = frozenset({"phi3", "phimoe"})  # transformers recomputes a text's keys when longrope's factors change
SHORT = 32  # reads of at most this many tokens are padded to each other
PADDED = 1.3  # maximum ratio of padded size to tokens for longer reads
LARGEST = 4096  # maximum padded tokens of a forward of several texts
# Tolerance of logits relative to their spread: far above rounding, far below an ignored mask.
AGREE, AGREE_HALF = 0.02, 0.15


class CausalLM(LanguageModel):
    """A decoder-only model.

    Attributes:
        model: the model of transformers.
        switch: longest text for longrope's short factors; None without longrope.
        layers: number of layers.
        lean: a faster forward of the same weights on the CPU, if available.
        static: whether short reads have fixed shapes (:mod:`.static_forward`), which CUDA graphs replay.
        fused: the layers of these in few kernels, for some families.
        fixed: otherwise their layers; None for the model's own.
        packed: otherwise the model with reordered or rounded weights; the model itself where that gains nothing.

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
        self.depth = self.layers  # by its config, which for an encoder-decoder counts the encoder's
        # Absent if positions are not embedded (ALiBi): then there is no limit, except MPT's max_seq_len.
        self.context: int | None = getattr(config, "max_position_embeddings", getattr(config, "max_seq_len", None))
        self.vocab_size, self.hidden_size = output_size(head)
        if isinstance(head, TrimmedHead) and len(head.tokens) < head.size:
            self.kept_tokens = head.tokens
        self.switch = longrope_switch(config)
        if self.switch is not None and self.name not in REREADING:
            # Otherwise old keys keep the old factors, and the distribution would depend on how the text was read.
            self.context = self.switch if self.context is None else min(self.context, self.switch)
            self.switch = None
        accepted = _accepted(model)
        self._keeps_logits = "logits_to_keep" in accepted
        self._takes_positions = "position_ids" in accepted
        self.types = mask_types(config)
        self.state_input = state_input_of(model)
        self.reads_states = self.state_input is not None
        plain = uncompiled(model)
        self.lean = LeanForward(plain, quantization) if LeanForward.fits(plain) else None
        self.packed = pack(plain, quantization) if self.lean is None else plain
        self.static = (
            graphs != "off" and self.device.type == "cuda" and self.device.index == torch.cuda.current_device()
            and self.switch is None and not is_dispatched(model) and not reads_host(model)
            and not any("forward" in vars(module) for module in plain.modules() if module._modules)
        )  # fmt: skip
        self.reads_drawn = self.lean is None and self.switch is None and self.device.type not in ("cpu", "mps")
        self.precision = quantization or str(model.dtype).removeprefix("torch.")
        self.fixed: FixedLayers | None = None
        self.fused = (
            FusedLayers(plain, compiled=graphs == "compiled") if self.static and FusedLayers.fits(plain) else None
        )
        self.replaces_layers = self.static and self.fused is None
        if graphs == "compiled" and self.replaces_layers:
            warnings.warn(
                f"{self.name}: --graphs compiled is for Llama, Mistral, Qwen2 and Qwen3; this model runs as with "
                "--graphs on",
                stacklevel=2,
            )
        self.graphs = graphs
        instead = self.lean is not None or self.static  # of the modules' own calls
        self.given = Given(model, hooks=instead) if instead or self.packed is not model else None
        self._inner: list[nn.Module] = []  # the modules of state_layers

    def with_layers(self, layers: tuple[int, ...]) -> CausalLM:
        """The same model, whose hidden states are followed by the outputs of ``layers``; 1 is the first.

        Raises:
            InputError: the model has no such layer.
        """
        found = self.packed.get_decoder()._modules.get("layers")
        if not isinstance(found, nn.ModuleList) or len(found) != self.layers:
            raise InputError(f"draft: reads the outputs of layers, which are not found in {self.name}; take another")
        outside = [layer for layer in layers if not 0 < layer <= len(found)]
        if outside or list(layers) != sorted({*layers}):
            raise InputError(
                f"draft: reads the target's layers {', '.join(map(str, layers))}; they must ascend, from 1 to "
                f"{len(found)} in {self.name}; take the target it was made for"
            )
        other = copy(self)
        other.state_layers, other._inner = layers, [found[layer - 1] for layer in layers]
        if other.lean is not None:
            other.lean = other.lean.with_layers(layers)
        if other.fused is not None:
            other.fused = other.fused.with_layers(layers)
        return other

    @staticmethod
    def _check(model: PreTrainedModel) -> None:
        kind = model.config.model_type
        if model.config.is_encoder_decoder:
            raise InputError(f"{kind}: an encoder-decoder model; a causal (decoder-only) language model is needed")
        if model._is_stateful:
            raise InputError(f"{kind}: its recurrent state cannot be rolled back after a rejection")
        if "past_key_values" not in _accepted(model):
            raise InputError(f"{kind}: has no KV cache, which speculative decoding needs; choose another model")
        if mask_types(model.config.get_text_config(decoder=True)) is None:
            types = sorted(set(model.config.get_text_config(decoder=True).layer_types))
            raise InputError(
                f"{kind}: layers of types {', '.join(types)}; only full, sliding and chunked attention can be rolled "
                "back exactly"
            )

    def check_unchanged(self, role: str) -> None:
        if self.outer is not None:
            unwrapped(self.outer, role)
        head: Any = self.model.get_output_embeddings()
        change = None if self.given is None else self.given.change()
        made = self.device, self.vocab_size, self.hidden_size, self.depth
        if change is None and (input_device(self.model), *output_size(head), self.config.num_hidden_layers) != made:
            change = "the model has another vocabulary, device or number of layers"
        if change is not None:
            raise InputError(f"{role}: {change} than when the decoder was made; make a new decoder of the model")
        dropping = next((name for name, module in self.model.named_modules() if drops(module)), None)
        if dropping is not None:
            raise InputError(f"{role}: {dropping} is in training mode, so dropout is on; call .eval() on the model")

    def new_cache(self) -> RaggedKVCache:
        return RaggedKVCache(self.layers, self.static) if self.switch is None else TokenKVCache(self.layers)

    @cached_property
    def ragged(self) -> bool:
        """Whether texts of different lengths and trees can share a forward; tested by comparing small forwards."""
        if self.lean is not None:
            return True
        counts_columns = self.name in COLUMN_COUNTING or (self.name == "falcon" and self.model.config.alibi)
        if not self._takes_positions or counts_columns:
            return False
        return self.model.config._attn_implementation in MASKED_ATTENTION and self._follows_masks()

    @torch.inference_mode()
    def _follows_masks(self) -> bool:
        """Whether a tree with our masks gives the logits of its path alone, and every type of layer uses its mask."""
        prompt, path = [t % self.vocab_size for t in (3, 1, 4)], [t % self.vocab_size for t in (1, 5)]
        cache = self.new_cache()
        for text in ("plain", "tree", "blind"):
            cache.add(text, 8)
        plain, _ = self._read_one(cache, Read("plain", [*prompt, *path]))
        _ = self._read_one(cache, Read("tree", prompt))
        tree = TreeMask.of_parents(3, [-1, -1, 1])  # a node beside the path's two
        try:
            seen, _ = self._read_ragged(cache, [Read("tree", [path[1], *path], tree=tree)])
            if not _agree(seen, plain):
                return False
            assert self.types is not None
            cache.crop_text("tree", 3)
            for name in self.types.sizes:
                blind, _ = self._read_ragged(cache, [Read("tree", [path[1], *path], tree=tree)], blind=name)
                cache.crop_text("tree", 3)
                if len(self.types.sizes) > 1 and _agree(blind, seen):
                    return False
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError):
            return False  # the model does not accept such masks
        return True

    def forward(self, cache: TextCache, reads: Sequence[Read]) -> tuple[Tensor, Tensor]:
        assert isinstance(cache, RaggedKVCache)
        if self.lean is not None:
            return self.lean.forward(cache, reads)
        if self.switch is not None:
            assert isinstance(cache, TokenKVCache)
            return read_by_factors(self._forward, cache, reads, self.switch)
        if self._runs_static(cache):
            self._replace_layers()
            return self._read_static(cache, reads)
        return self._forward(cache, reads)

    def _read_static(self, cache: RaggedKVCache, reads: Sequence[Read]) -> tuple[Tensor, Tensor]:
        """The forward of fixed shapes for reads that fit it; prompts among them are read on their own."""
        short = [i for i, read in enumerate(reads) if len(read.tokens) <= LONGEST]
        others = [i for i, read in enumerate(reads) if len(read.tokens) > LONGEST]

        def forward(group: Sequence[Read]) -> tuple[Tensor, Tensor]:
            return read_static(self, cache, group) if fits_static(cache, group) else self._forward(cache, group)

        return read_in_groups(reads, [short, others], forward) if short and others else forward(reads)

    def draft_unread(
        self, cache: TextCache, reads: Sequence[Read], counts: Sequence[int], uniforms: Sequence[Sequence[float]],
        sampled: Sampled, steps: int,
    ) -> DraftedTokens | None:  # fmt: skip
        assert isinstance(cache, RaggedKVCache)
        if not self._runs_static(cache):
            return None
        self._replace_layers()
        return draft_static(self, cache, reads, counts, uniforms, sampled, steps)

    def _runs_static(self, cache: RaggedKVCache) -> bool:
        """Whether short reads have fixed shapes now."""
        return self.static and cache.static and self.ragged and not torch.is_autocast_enabled(self.device.type)

    def _replace_layers(self) -> None:
        """Make layers for forwards of fixed shapes before the first one."""
        if self.replaces_layers:
            self.replaces_layers = False
            self.fixed = self._fixed_layers()

    @torch.inference_mode()
    def _fixed_layers(self) -> FixedLayers | None:
        """Layers for forwards of fixed shapes that give the logits of the model's own; None if that fails."""
        other, prompt, next_tokens = copy(self), [t % self.vocab_size for t in (3, 1, 4)], [1 % self.vocab_size] * 2
        try:
            other.fixed = FixedLayers(self.packed, self.layers)
            logits = []
            for model in (self, other):
                cache = self.new_cache()
                cache.add(0, 8)
                _ = self._read_one(cache, Read(0, prompt))
                logits.append(read_static(model, cache, [Read(0, next_tokens)])[0])
            if not _agree(logits[1], logits[0]):
                raise ValueError("its logits would be others")
        except (ValueError, AttributeError, IndexError, KeyError, TypeError, RuntimeError):
            return None
        return other.fixed

    def _forward(self, cache: RaggedKVCache, reads: Sequence[Read]) -> tuple[Tensor, Tensor]:
        """The forward of transformers, grouped by reads that can share a batch."""
        if len(reads) == 1 and reads[0].tree is None:
            return self._read_one(cache, reads[0])
        if not self.ragged:
            return joined(
                [
                    self._read_one(cache, read) if read.tree is None else self._read_paths(cache, read, read.tree)
                    for read in reads
                ]
            )
        groups = padding_groups(reads)
        if len(groups) == 1:
            return self._read_ragged(cache, reads)
        return read_in_groups(reads, groups, partial(self._forward, cache))

    def _read_one(self, cache: RaggedKVCache, read: Read) -> tuple[Tensor, Tensor]:
        """Read one text without a tree, with the model's own masks."""
        cache.start_forward([read.text], [len(read.tokens)])
        states = None if read.states is None else read.states.unsqueeze(0)
        tokens = torch.tensor([read.tokens], dtype=torch.long).to(self.device, non_blocking=True)
        put_drawn([read], [0], tokens)
        logits, hidden = self.run(cache, tokens, read.keep, read.kept_states, states=states)
        cache.end_forward()
        return logits[0], hidden[0]

    def _read_ragged(
        self, cache: RaggedKVCache, reads: Sequence[Read], blind: str | None = None
    ) -> tuple[Tensor, Tensor]:
        """Read a padded batch, aligned at the right; tokens of the layer type ``blind`` attend only to themselves."""
        assert self.types is not None
        plan = cache.start_forward([read.text for read in reads], [len(read.tokens) for read in reads])
        keep = max(read.keep for read in reads)
        kept = max(read.kept_states for read in reads)
        rows = [cache.rows[read.text] - plan.low for read in reads]
        inputs, states = placed(plan, reads, cache).to(self.device, non_blocking=True), None
        if self.reads_states:
            states = torch.zeros(*inputs.shape[:2], self.hidden_size, dtype=self.model.dtype, device=self.device)
            put_states(reads, rows, states)
        masks = layer_masks(self.types, inputs, torch.arange(plan.width, device=self.device))
        if blind is not None:
            masks[blind] = masks[blind] & (masks[blind].cumsum(-1) == masks[blind].sum(-1, keepdim=True))
        scores = {name: as_scores(mask, self.model.dtype) for name, mask in masks.items()}
        mask = scores if self.types.by_type else next(iter(scores.values()))
        tokens, positions = inputs[..., 0], inputs[..., 1]
        put_drawn(reads, rows, tokens)
        logits, hidden = self.run(cache, tokens, keep, kept, mask, positions, states)
        cache.end_forward()
        picked = ends(rows, [read.keep for read in reads], keep), ends(rows, [read.kept_states for read in reads], kept)
        return _rows(logits.flatten(0, 1), picked[0]), _rows(hidden.flatten(0, 1), picked[1])

    def _read_paths(self, cache: RaggedKVCache, read: Read, tree: TreeMask) -> tuple[Tensor, Tensor]:
        """Read a tree as a batch: each path to a leaf is a row, with a copy of the cached columns it attends to."""
        first = cache.length(read.text)  # the column of the first new token
        nodes = first + len(read.tokens) - len(tree.above)  # the column of the first node
        paths = [[*range(tree.trunk), *path] for path in tree.paths(nodes)] or [list(range(tree.trunk))]
        # Number of cached columns → (cached columns, new columns) of each path.
        rows: dict[int, list[tuple[tuple[int, ...], list[int]]]] = {}
        for path in paths:
            cached = tuple(column for column in path if column < first)
            rows.setdefault(len(cached), []).append((cached, [c - first for c in path if c >= first]))
        # Tokens shared by several paths have the same result in each of them.
        found: dict[int, tuple[Tensor, Tensor, RaggedKVCache, int, int]] = {}
        for past, group in rows.items():
            width = max(len(new) for _, new in group)
            # Padding comes after a row's leaf, so it affects no result.
            tokens = [[read.tokens[c] for c in new + new[-1:] * (width - len(new))] for _, new in group]
            spread = cache.spread(read.text, [cached for cached, _ in group], past + width)
            spread.start_forward(list(range(len(group))), [width] * len(group))
            logits, hidden = self.run(spread, torch.tensor(tokens), width, width)
            spread.end_forward()
            for row, (_, new) in enumerate(group):
                for place, token in enumerate(new):
                    found[token] = logits[row, place], hidden[row, place], spread, row, past + place
        cache.append_from(read.text, [found[token][2:] for token in range(len(read.tokens))])
        n = len(read.tokens)
        logits = torch.stack([found[token][0] for token in range(n - read.keep, n)])
        return logits, torch.stack([found[token][1] for token in range(n - read.kept_states, n)])

    def run(
        self,
        cache: RaggedKVCache,
        tokens: Tensor,
        keep: int,
        kept: int,
        mask: Any = None,
        positions: Tensor | None = None,
        states: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The model's forward on the rows of the cache's plan: logits (B, keep, V) and states (B, kept, d)."""
        inputs: dict[str, Any] = {"past_key_values": cache, "use_cache": True, **self._inputs(tokens, states)}
        if self._keeps_logits:
            inputs["logits_to_keep"] = kept
        if mask is not None:
            inputs["attention_mask"] = mask
        if positions is not None:
            inputs["position_ids"] = positions
        model, inner = self.packed, self._inner
        if self.fixed is not None and cache.slots is not None:
            model, inner = self.fixed.model, [self.fixed.layers[layer - 1] for layer in self.state_layers]
        logits, hidden = forward_with_hidden(model, None if keep == kept else partial(_last, keep), inner, **inputs)
        return logits[:, -keep:], hidden[:, -kept:]

    def _inputs(self, tokens: Tensor, states: Tensor | None) -> dict[str, Tensor]:
        """The tokens (B, n), or what is made of them and of the states (B, n, d) before them."""
        tokens = tokens.to(self.device)
        if self.state_input is None:
            return {"input_ids": tokens}
        embeddings = self.model.get_input_embeddings()(tokens)
        if states is None:
            states = embeddings.new_zeros(*tokens.shape, self.hidden_size)
        return {"inputs_embeds": self.state_input(embeddings, states.to(embeddings.dtype))}


def reads_host(model: PreTrainedModel) -> bool:
    """Whether the model's experts make the host wait for the device, which no CUDA graph can capture.

    transformers multiplies experts in groups without reading their sizes only in bfloat16.
    """
    config: Any = model.config.get_text_config(decoder=True)
    has_experts = any(type(module).__name__.endswith("Experts") for module in model.modules())
    experts = getattr(config, "_experts_implementation", None)
    return has_experts and (experts != "grouped_mm" or model.dtype != torch.bfloat16) and experts != "batched_mm"


def _accepted(model: PreTrainedModel) -> set[str]:
    """The arguments of the model's forward; where it was replaced by one that takes any, those of the class's."""
    own = inspect.signature(model.forward).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values()):
        return {*own, *inspect.signature(type(model).forward).parameters}
    return {*own}


def padding_groups(reads: Sequence[Read]) -> list[list[int]]:
    """Groups of indices into ``reads`` that share a padded forward: short reads, or reads of similar lengths."""
    order = sorted(range(len(reads)), key=lambda i: len(reads[i].tokens))
    groups: list[list[int]] = []
    total = 0
    for i in order:
        count = len(reads[i].tokens)
        padded = count * (len(groups[-1]) + 1) if groups else 0
        if not groups or (count > SHORT and padded > PADDED * (total + count)) or padded > LARGEST:
            groups.append([])
            total = 0
        groups[-1].append(i)
        total += count
    return groups


def _last(count: int, states: Tensor) -> Tensor:
    return states[:, -count:]


def _rows(values: Tensor, picked: list[int]) -> Tensor:
    return values if picked == list(range(len(values))) else values[torch.tensor(picked, device=values.device)]


def _agree(found: Tensor, expected: Tensor) -> bool:
    """Whether logits (1, V) are equal up to rounding, but for tokens without a logit."""
    given = expected.isfinite()
    tolerance = AGREE if expected.dtype in (torch.float32, torch.float64) else AGREE_HALF
    found, expected = found[given].float(), expected[given].float()
    return bool((found - expected).norm() <= tolerance * (expected - expected.mean()).norm())


def forward_with_hidden(
    model: PreTrainedModel,
    select: Callable[[Tensor], Tensor] | None = None,
    layers: Sequence[nn.Module] = (),
    **inputs: Any,
) -> tuple[Tensor, Tensor]:
    """Logits (B, n, V) and last hidden states (B, n, d) of one call ``model(**inputs)``.

    The outputs of ``layers`` follow the last states: (B, n, d + L·d).

    Of the states only ``select(states)`` go through the output embedding, so that there are fewer logits than states.

    The hidden state is the input of the output embedding, after the final norm and any output projection, at the
    positions of ``logits_to_keep``. (``output_hidden_states=True`` would collect every layer at every position.)
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
