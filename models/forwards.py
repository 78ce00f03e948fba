"""The forwards by which a decoder-only model of transformers can read tokens.

All forwards give the same logits up to rounding:

* :class:`TextByText`: a forward for each text with the model's own masks, and a tree as a batch of its paths. It is for
  models that count positions by cache columns or do not accept masks.
* :class:`Padded`: one padded batch of several texts and trees, with positions and masks of :mod:`.masks`.
* :class:`FixedShapes`: short reads in fixed shapes, which CUDA graphs replay (:mod:`.static_forward`).
* :class:`Lean`: the forward of :mod:`.lean_forward` on a CPU.
* :class:`ByLength`: one of the first two for models whose rotary frequencies depend on the text's length.

:func:`choose_forward` selects one when the model is loaded, and records the reason.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .base import is_dispatched
from .fixed_layers import FixedLayers
from .fused_layers import FusedLayers
from .kv_cache import FEWEST, RaggedKVCache
from .lean_forward import LeanForward
from .linear import Quantization, pack
from .longrope import TokenKVCache, read_by_factors
from .masks import additive_mask, layer_masks, place_tokens
from .read import Read, Results, TreeMask, ends, joined, put_drawn, put_states, read_in_groups
from .sampled import DraftedTokens, Sampled
from .static_draft import draft_static
from .static_forward import LONGEST, fits_static, read_static

Graphs = Literal["on", "off", "compiled"]
MASKED_ATTENTION = ("eager", "sdpa")  # implementations that accept an additive mask
# These models count positions by cache columns, because of ALiBi computed from the padding mask, Llama 4's temperature
# tuning, or GPT-Neo's local layers.
COLUMN_COUNTING = frozenset({"bloom", "mpt", "llama4", "llama4_text", "gpt_neo"})
SHORT = 32  # reads of at most this many tokens are padded to a common length
PADDED = 1.3  # maximum ratio of padded size to tokens for longer reads
ALIGNED = 64  # columns; attention kernels read rows of masks in blocks of this size
LARGEST = 4096  # maximum padded tokens of a forward of several texts
# Tolerance of logits relative to their spread: far above rounding, far below an ignored mask.
AGREE, AGREE_HALF = 0.02, 0.15


class Forward(ABC):
    """A forward by which a model reads tokens.

    The methods have the :class:`.causal_lm.CausalLM` that reads as an argument. An attribute would create a reference
    cycle, which would hold weights until Python's garbage collector runs.

    Args:
        reason: the reason why this forward was chosen, as the end of "…, because …".

    Attributes:
        name: the forward in words, for messages.
        together: whether texts of different lengths and trees share a forward.
        takes_unread: whether it reads tokens that the host has not read, ``Read.drawn``.
        replaces_modules: whether it computes something in place of the modules' own forwards.
    """

    name: str
    together: bool
    takes_unread = True
    replaces_modules = False

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def of(self, model: Any) -> Forward:
        """Return a forward of this kind for a variant of the model.

        Args:
            model: the variant: a model with fewer layers, or one that also returns the outputs of some layers.
        """
        return self

    def new_cache(self, model: Any) -> RaggedKVCache:
        """Return an empty cache for this forward."""
        return RaggedKVCache(model.layers, column_bytes=model.column_bytes)

    @abstractmethod
    def read(self, model: Any, cache: RaggedKVCache, reads: Sequence[Read]) -> Results:
        """Append the new tokens of each read to its text, and return the results.

        Returns:
            Logits (N, V) and hidden states (N', d + L·d), as :meth:`.base.LanguageModel.forward`.
        """

    def draft_unread(
        self, model: Any, cache: RaggedKVCache, reads: Sequence[Read], counts: Sequence[int],
        numbers: Sequence[Sequence[float]], sampled: Sampled, steps: int,
    ) -> DraftedTokens | None:  # fmt: skip
        """Sample tokens after each read on the device, as :meth:`.base.LanguageModel.draft_unread`.

        A forward that cannot do this reads nothing and returns None, as this method of the base class does.
        """
        return None


class Lean(Forward):
    """The forward of :mod:`.lean_forward`.

    Args:
        reason: as for :class:`Forward`.
        lean: the forward with its copy of the weights.
    """

    name = "lean forward"
    together = True
    takes_unread = False
    replaces_modules = True

    def __init__(self, reason: str, lean: LeanForward) -> None:
        super().__init__(reason)
        self.lean = lean

    def of(self, model: Any) -> Lean:
        return Lean(self.reason, self.lean.first(model.layers).with_layers(model.state_layers))

    def read(self, model: Any, cache: RaggedKVCache, reads: Sequence[Read]) -> Results:
        return self.lean.forward(cache, reads)


class TextByText(Forward):
    """transformers' forward, once for each text."""

    name = "transformers' forward, text by text"
    together = False

    def read(self, model: Any, cache: RaggedKVCache, reads: Sequence[Read]) -> Results:
        if len(reads) == 1 and reads[0].tree is None:
            return self.read_text(model, cache, reads[0])
        return joined(
            [
                self.read_text(model, cache, read)
                if read.tree is None
                else self.read_paths(model, cache, read, read.tree)
                for read in reads
            ]
        )

    def read_text(self, model: Any, cache: RaggedKVCache, read: Read) -> tuple[Tensor, Tensor]:
        """Read one text without a tree, with the model's own masks; results as for :meth:`Forward.read`."""
        cache.start_forward([read.text], [len(read.tokens)])
        states = None if read.states is None else read.states.unsqueeze(0)
        tokens = torch.tensor([read.tokens], dtype=torch.long).to(model.device, non_blocking=True)
        put_drawn([read], [0], tokens)
        logits, hidden = model.run(cache, tokens, read.keep, read.kept_states, states=states)
        cache.end_forward()
        return logits[0], hidden[0]

    def read_paths(self, model: Any, cache: RaggedKVCache, read: Read, tree: TreeMask) -> tuple[Tensor, Tensor]:
        """Read a tree as a batch; results as for :meth:`Forward.read`.

        Each path to a leaf is a row with a copy of the cached columns of the path.
        """
        first = cache.length(read.text)  # the column of the first new token
        nodes = first + len(read.tokens) - len(tree.above)  # the column of the first node
        paths = [[*range(tree.trunk), *path] for path in tree.paths(nodes)] or [list(range(tree.trunk))]
        # Number of cached columns → (cached columns, new columns) of each path.
        rows: dict[int, list[tuple[tuple[int, ...], list[int]]]] = {}
        for path in paths:
            cached = tuple(column for column in path if column < first)
            rows.setdefault(len(cached), []).append((cached, [c - first for c in path if c >= first]))
        # A token that several paths share has the same result in each of them.
        results: dict[int, tuple[Tensor, Tensor, RaggedKVCache, int, int]] = {}
        for past, group in rows.items():
            width = max(len(new) for _, new in group)
            # Padding follows a row's leaf, so that it affects no result.
            tokens = [[read.tokens[c] for c in new + new[-1:] * (width - len(new))] for _, new in group]
            spread = cache.spread(read.text, [cached for cached, _ in group], past + width)
            spread.start_forward(list(range(len(group))), [width] * len(group))
            logits, hidden = model.run(spread, torch.tensor(tokens), width, width)
            spread.end_forward()
            for row, (_, new) in enumerate(group):
                for index, token in enumerate(new):
                    results[token] = logits[row, index], hidden[row, index], spread, row, past + index
        cache.append_from(read.text, [results[token][2:] for token in range(len(read.tokens))])
        n = len(read.tokens)
        logits = torch.stack([results[token][0] for token in range(n - read.keep, n)])
        return logits, torch.stack([results[token][1] for token in range(n - read.kept_states, n)])


class Padded(TextByText):
    """transformers' forward of padded batches."""

    name = "transformers' forward, padded batches"
    together = True

    def read(self, model: Any, cache: RaggedKVCache, reads: Sequence[Read]) -> Results:
        if len(reads) == 1 and reads[0].tree is None:
            return self.read_text(model, cache, reads[0])
        groups = padding_groups(reads)
        if len(groups) == 1:
            return self.read_padded(model, cache, reads)
        return read_in_groups(reads, groups, lambda group: Padded.read(self, model, cache, group))

    def read_padded(
        self, model: Any, cache: RaggedKVCache, reads: Sequence[Read], blind: str | None = None
    ) -> tuple[Tensor, Tensor]:
        """Read a padded batch, aligned at the right.

        Args:
            model: the :class:`.causal_lm.CausalLM` that reads.
            cache: the cache of the texts.
            reads: the new tokens of each text.
            blind: a type of layer in which each token attends only to itself, for :meth:`follows_masks`.

        Returns:
            Logits (N, V) and hidden states (N', d + L·d), as :meth:`.base.LanguageModel.forward`.
        """
        assert model.types is not None
        plan = cache.start_forward([read.text for read in reads], [len(read.tokens) for read in reads])
        keep = max(read.keep for read in reads)
        kept_states = max(read.kept_states for read in reads)
        rows = [cache.rows[read.text] - plan.low for read in reads]
        inputs, states = place_tokens(plan, reads, cache).to(model.device, non_blocking=True), None
        if model.reads_states:
            states = torch.zeros(*inputs.shape[:2], model.hidden_size, dtype=model.model.dtype, device=model.device)
            put_states(reads, rows, states)
        masks = layer_masks(model.types, inputs, torch.arange(plan.width, device=model.device))
        if blind is not None:
            masks[blind] = masks[blind] & (masks[blind].cumsum(-1) == masks[blind].sum(-1, keepdim=True))
        scores = {name: additive_mask(mask, model.model.dtype) for name, mask in masks.items()}
        mask = scores if model.types.by_type else next(iter(scores.values()))
        tokens, positions = inputs[..., 0], inputs[..., 1]
        put_drawn(reads, rows, tokens)
        logits, hidden = model.run(cache, tokens, keep, kept_states, mask, positions, states)
        cache.end_forward()
        picked = (
            ends(rows, [read.keep for read in reads], keep),
            ends(rows, [read.kept_states for read in reads], kept_states),
        )
        return _rows(logits.flatten(0, 1), picked[0]), _rows(hidden.flatten(0, 1), picked[1])

    @torch.inference_mode()
    def follows_masks(self, model: Any) -> bool:
        """Return true if a tree with explicit masks has the logits of its path, and every layer type uses its mask."""
        prompt, path = [t % model.vocab_size for t in (3, 1, 4)], [t % model.vocab_size for t in (1, 5)]
        cache = self.new_cache(model)
        for text in ("plain", "tree", "blind"):
            cache.add(text, 8)
        tree = TreeMask.from_parents(3, [-1, -1, 1])  # a node beside the path's two
        try:
            path_logits, _ = self.read_text(model, cache, Read("plain", [*prompt, *path]))
            self.read_text(model, cache, Read("tree", prompt))
            tree_logits, _ = self.read_padded(model, cache, [Read("tree", [path[1], *path], tree=tree)])
            if not _agree(tree_logits, path_logits):
                return False
            assert model.types is not None
            cache.crop_text("tree", 3)
            for name in model.types.sizes:
                blind_logits, _ = self.read_padded(
                    model, cache, [Read("tree", [path[1], *path], tree=tree)], blind=name
                )
                cache.crop_text("tree", 3)
                if len(model.types.sizes) > 1 and _agree(blind_logits, tree_logits):
                    return False
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError):
            return False  # the model does not accept such masks
        return True


class FixedShapes(Padded):
    """Short reads in fixed shapes, which CUDA graphs replay on a GPU; other reads as padded batches.

    Attributes:
        fused: the layers in few kernels; None for families without such layers.
        fixed: transformers' layers with fewer kernels, if ``fused`` is None; None for the model's own layers.
    """

    name = "fixed shapes with CUDA graphs"
    replaces_modules = True

    def __init__(self, model: Any, reason: str, fused: FusedLayers | None) -> None:
        super().__init__(reason)
        self.fused = fused
        self.fixed: FixedLayers | None = None
        if fused is None:
            self.fixed = self._fixed_layers(model)

    def of(self, model: Any) -> FixedShapes:
        forward = copy(self)
        if self.fused is not None:
            forward.fused = self.fused.first(model.layers).with_layers(model.state_layers)
        elif self.fixed is not None and len(self.fixed.layers) != model.layers:
            forward.fixed = None
        return forward

    def new_cache(self, model: Any) -> RaggedKVCache:
        # One more column than tokens, for padding.
        least = FEWEST if model.longest is None else (model.longest // ALIGNED + 1) * ALIGNED
        return RaggedKVCache(model.layers, static=True, least=least, column_bytes=model.column_bytes)

    def read(self, model: Any, cache: RaggedKVCache, reads: Sequence[Read]) -> Results:
        if _autocasts(model):
            return super().read(model, cache, reads)
        short = [i for i, read in enumerate(reads) if len(read.tokens) <= LONGEST]
        long = [i for i, read in enumerate(reads) if len(read.tokens) > LONGEST]
        if short and long:
            return read_in_groups(reads, [short, long], lambda group: self._read_alike(model, cache, group))
        return self._read_alike(model, cache, reads)

    def _read_alike(self, model: Any, cache: RaggedKVCache, reads: Sequence[Read]) -> Results:
        """Read texts that are all short or all long."""
        return (
            read_static(model, self, cache, reads) if fits_static(cache, reads) else super().read(model, cache, reads)
        )

    def draft_unread(
        self, model: Any, cache: RaggedKVCache, reads: Sequence[Read], counts: Sequence[int],
        numbers: Sequence[Sequence[float]], sampled: Sampled, steps: int,
    ) -> DraftedTokens | None:  # fmt: skip
        if _autocasts(model):
            return None
        return draft_static(model, self, cache, reads, counts, numbers, sampled, steps)

    def give_up(self, model: Any, reason: str) -> None:
        """Let ``model`` read padded batches from now on, because its forward cannot be captured."""
        model.strategy = Padded(f"its forward cannot be captured ({reason})")
        warnings.warn(f"{model.name}: runs without CUDA graphs, since it cannot be captured ({reason})", stacklevel=2)

    @torch.inference_mode()
    def _fixed_layers(self, model: Any) -> FixedLayers | None:
        """Return layers for fixed shapes that give the same logits as the model's own layers; None if they fail."""
        vocabulary = model.vocab_size
        prompt, following = [token % vocabulary for token in (3, 1, 4)], [1 % vocabulary] * 2
        forward = copy(self)
        try:
            forward.fixed = FixedLayers(model.packed, model.layers)
            logits = []
            for strategy in (self, forward):
                cache = self.new_cache(model)
                cache.add(0, 8)
                self.read_text(model, cache, Read(0, prompt))
                logits.append(read_static(model, strategy, cache, [Read(0, following)])[0])
            if not _agree(logits[1], logits[0]):
                return None
        except (ValueError, AttributeError, IndexError, KeyError, TypeError, RuntimeError):
            return None
        return forward.fixed


class ByLength(Forward):
    """A forward for models whose rotary frequencies change with the text's length: it reads such a text again.

    Args:
        reason: as for :class:`Forward`.
        inner: the forward that reads the tokens.
        switch: length in tokens of the longest text with the short frequencies.
    """

    def __init__(self, reason: str, inner: Forward, switch: int) -> None:
        super().__init__(reason)
        self.inner, self.switch = inner, switch
        self.name, self.together = f"{inner.name}, texts above {switch} tokens again", inner.together
        self.takes_unread = False

    def of(self, model: Any) -> ByLength:
        return ByLength(self.reason, self.inner.of(model), self.switch)

    def new_cache(self, model: Any) -> RaggedKVCache:
        return TokenKVCache(model.layers)

    def read(self, model: Any, cache: RaggedKVCache, reads: Sequence[Read]) -> Results:
        assert isinstance(cache, TokenKVCache)
        return read_by_factors(partial(self.inner.read, model), cache, reads, self.switch)


def _autocasts(model: Any) -> bool:
    """Return true if autocast is on for the model's device."""
    return torch.is_autocast_enabled(model.device.type)


def choose_forward(
    model: Any, plain: PreTrainedModel, quantization: Quantization | None, graphs: Graphs, switch: int | None
) -> Forward:
    """Return the fastest forward for ``model``, and set the attribute ``packed`` of ``model``.

    Args:
        model: a :class:`.causal_lm.CausalLM`.
        plain: the model of transformers without the wrappers that torch.compile puts around modules.
        quantization: round the weights, those of a draft in bfloat16.
        graphs: whether CUDA graphs replay short reads.
        switch: length in tokens of the longest text with longrope's short factors; None without longrope.

    Raises:
        InputError: weights have sizes that cannot be quantized.
    """
    model.packed = plain
    if LeanForward.fits(plain):
        return Lean("it is a model of the Llama family on a CPU", LeanForward(plain, quantization))
    model.packed = pack(plain, quantization)
    sharing_obstacle = _sharing_obstacle(model)
    padded = Padded("its attention follows masks")
    if sharing_obstacle is None and not padded.follows_masks(model):
        sharing_obstacle = "its attention does not follow masks"
    forward = padded if sharing_obstacle is None else TextByText(sharing_obstacle)
    if switch is not None:
        return ByLength("its rotary frequencies depend on the text's length", forward, switch)
    graph_obstacle = _graph_obstacle(model, plain, graphs)
    if sharing_obstacle is not None or graph_obstacle is not None:
        if model.device.type == "cuda":
            forward.reason = f"{forward.reason}, and without CUDA graphs: {sharing_obstacle or graph_obstacle}"
        return forward
    fused = FusedLayers(plain, compiled=graphs == "compiled") if FusedLayers.fits(plain) else None
    if graphs == "compiled" and fused is None:
        warnings.warn(
            f"{model.name}: --graphs compiled is for Llama, Mistral, Qwen2 and Qwen3; this model runs as with "
            "--graphs on",
            stacklevel=2,
        )
    return FixedShapes(model, "it is on a GPU", fused)


def _sharing_obstacle(model: Any) -> str | None:
    """Return the reason, known from the architecture, why texts cannot share a forward; None if there is none."""
    if not model.takes_positions:
        return "its forward takes no positions"
    if model.name in COLUMN_COUNTING or (model.name == "falcon" and model.model.config.alibi):
        return "it counts positions by cache columns"
    if model.model.config._attn_implementation not in MASKED_ATTENTION:
        return f"its attention, {model.model.config._attn_implementation!r}, takes no masks"
    return None


def _graph_obstacle(model: Any, plain: PreTrainedModel, graphs: Graphs) -> str | None:
    """Return the reason why CUDA graphs cannot replay forwards; None if they can."""
    if model.device.type != "cuda":
        return "it is not on a GPU"
    reasons = {
        "--graphs off": graphs == "off",
        "it is not on the current GPU": model.device.index != torch.cuda.current_device(),
        "a device map distributed it": is_dispatched(plain),
        "its experts make the host wait": reads_host(plain),
        "its forward was replaced": any("forward" in vars(module) for module in plain.modules() if module._modules),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def reads_host(model: PreTrainedModel) -> bool:
    """Return true if the model's experts make the host wait for the device, which no CUDA graph can capture.

    transformers multiplies experts in groups. Only in bfloat16 it does so without reading the groups' sizes.
    """
    config: Any = model.config.get_text_config(decoder=True)
    has_experts = any(type(module).__name__.endswith("Experts") for module in model.modules())
    experts = getattr(config, "_experts_implementation", None)
    return has_experts and (experts != "grouped_mm" or model.dtype != torch.bfloat16) and experts != "batched_mm"


def padding_groups(reads: Sequence[Read]) -> list[list[int]]:
    """Group the indices of ``reads`` that share a padded forward: short reads, or reads of similar lengths."""
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


def _rows(values: Tensor, picked: list[int]) -> Tensor:
    """Return the rows ``picked`` of ``values``."""
    return values if picked == list(range(len(values))) else values[torch.tensor(picked, device=values.device)]


def _agree(logits: Tensor, expected: Tensor) -> bool:
    """Return true if logits (1, V) are equal up to rounding; tokens with infinite logits are left out."""
    finite = expected.isfinite()
    tolerance = AGREE if expected.dtype in (torch.float32, torch.float64) else AGREE_HALF
    logits, expected = logits[finite].float(), expected[finite].float()
    return bool((logits - expected).norm() <= tolerance * (expected - expected.mean()).norm())
