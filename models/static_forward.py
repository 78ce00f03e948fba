"""Forwards of fixed shapes over buffers of fixed sizes, which CUDA graphs can replay.

On a GPU the launches of kernels determine the time of an eager forward of a few tokens: 12 ms with the sizes of
Llama-3.2-1B on an H200. A replayed graph of the same kernels takes 2.4 ms. A graph repeats its kernels on the same
addresses. Therefore

* rows, tokens and columns are padded to sizes from a small set (powers of two), and there is a graph for each shape;
* keys and values are written to places that a tensor holds, and padding to the last column, which no text reaches;
* masks are computed on the device, from the number of first columns that each token attends to and from its further
  columns, those of its ancestors in a tree.

On other devices than CUDA the same code runs without graphs, for tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .kv_cache import LayerSlots, RaggedKVCache, size_above
from .masks import additive_mask, lay_out, layer_masks, longest_path
from .read import Read, Results, ends, put_drawn, put_states

LONGEST = 64  # maximum number of tokens of a read; arithmetic determines the time of longer reads, not launches
MAX_TOKENS = 512  # maximum of rows times tokens; graphs of larger shapes hold gigabytes of logits and scores
WARM = 2  # forwards of a shape before its capture, because some shapes occur once, and first calls prepare libraries


class Shape(NamedTuple):
    """The sizes of a forward.

    Attributes:
        rows, tokens: number of texts, and of tokens of each text, with padding.
        extra: number of columns that a token attends to besides the first columns: its own, and its ancestors'.
        layers, state_layers: the model's layers; an early exit has fewer layers and shares its target's cache.
    """

    rows: int
    tokens: int
    extra: int
    layers: int
    state_layers: tuple[int, ...]


class StaticForward:
    """The forward of one shape on the buffers of one cache: B rows, n tokens, E further columns.

    It has no reference to the cache. With a reference cycle the buffers would stay in memory until Python's garbage
    collector runs.

    Args:
        model: a :class:`.causal_lm.CausalLM`.
        strategy: its :class:`.forwards.FixedShapes`.
        cache: the cache, whose buffers exist.
        shape: the sizes of the forward.
        keep: number of last tokens of each text with results. Default: all.

    Attributes:
        inputs: (B, n, 4 + E) the inputs of each token, see :func:`.masks.lay_out`.
        states: (B, n, d) the states before each token, for models that read them.
        uses: number of calls.
        failed: whether the capture failed.
        graph: the captured graph, or None.
        results: logits and states that the graph overwrites.
    """

    def __init__(self, model: Any, strategy: Any, cache: RaggedKVCache, shape: Shape, keep: int | None = None) -> None:
        self.model, self.strategy, self.shape, self.keep = (
            model,
            strategy,
            shape,
            shape.tokens if keep is None else keep,
        )
        rows, tokens, extra, *_ = shape
        device = model.device
        self.inputs = torch.zeros(rows, tokens, 4 + extra, dtype=torch.long, device=device)
        self.states: Tensor | None = None
        if model.reads_states:
            self.states = torch.zeros(rows, tokens, model.hidden_size, dtype=model.model.dtype, device=device)
        self.rows = torch.arange(rows, device=device).unsqueeze(1)
        self.columns = torch.arange(cache.n_columns, device=device)
        self.slots: list[LayerSlots] = []
        if strategy.fused is not None:
            self.tables = strategy.fused.tables(cache.n_columns)  # every replay reads these tensors
        elif strategy.fixed is not None:
            places = self.rows, self.inputs[..., 2]
            self.slots = [LayerSlots(layer, *places) for layer in cache.ragged_layers[: model.layers]]
        self.uses, self.failed = 0, False
        self.graph: torch.cuda.CUDAGraph | None = None
        self.results: Results

    def __call__(self, cache: RaggedKVCache) -> Results:
        """Return logits (B, keep, V) and states (B, keep, d + L·d) of ``inputs``; the next call overwrites them."""
        self.uses += 1
        if self.graph is None and self.uses > WARM and not self.failed and self.model.device.type == "cuda":
            self._capture(cache)
        if self.graph is None:
            return self._compute(cache)
        self.graph.replay()
        return self.results

    def _capture(self, cache: RaggedKVCache) -> None:
        """Capture the forward in a CUDA graph, or let the model read padded batches if this fails."""
        device, graph, pool = self.model.device, torch.cuda.CUDAGraph(), cache.pool()
        with torch.cuda.device(device):  # a capture uses a stream of the current device
            current = torch.cuda.current_stream(device)
            torch.cuda.synchronize(device)
            # A capture must take its workspaces from its own pool, and leave none for graphs of other pools: such a
            # workspace would outlive the pool, or graphs of torch.compile would clear it.
            torch._C._cuda_clearCublasWorkspaces()
            try:
                stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
                with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                    self.results = self._compute(cache)
            except RuntimeError as error:
                leave_capture(device, current, pool)
                self.failed = True
                self.strategy.give_up(self.model, str(error).strip().splitlines()[0])
            else:
                self.graph = graph
            finally:
                torch._C._cuda_clearCublasWorkspaces()

    def _compute(self, cache: RaggedKVCache) -> Results:
        """Compute the results of ``inputs``."""
        assert self.model.types is not None
        tokens, positions, columns = self.inputs[..., :3].unbind(-1)
        masks = {
            name: additive_mask(mask, self.model.model.dtype)
            for name, mask in layer_masks(self.model.types, self.inputs, self.columns).items()
        }
        if self.strategy.fused is not None:
            (mask,) = masks.values()
            buffers = [layer.pair for layer in cache.ragged_layers[: self.model.layers]]
            return self.strategy.fused(  # type: ignore[no-any-return]
                tokens, positions, self.rows, columns, mask, buffers, self.tables, self.keep
            )
        return self._compute_layers(cache, masks)

    def _compute_layers(self, cache: RaggedKVCache, masks: dict[str, Tensor]) -> Results:
        """Compute the results with the model's own layers, or with those of :mod:`.fixed_layers`."""
        tokens, positions, columns = self.inputs[..., :3].unbind(-1)
        cache.slots, cache.layer_slots = (self.rows, columns), self.slots
        try:
            mask = masks if self.model.types.by_type else next(iter(masks.values()))
            return self.model.run(  # type: ignore[no-any-return]
                cache, tokens, self.keep, self.keep, mask, positions, self.states, self.strategy.fixed
            )
        finally:
            cache.slots, cache.layer_slots = None, ()


def leave_capture(device: torch.device, stream: Any, pool: Any) -> None:
    """Return to ``stream`` and to the allocator's usual memory after a failed capture.

    ``torch.cuda.graph`` does neither if the end of the capture raises an error.
    """
    torch.cuda.set_stream(stream)
    end_allocation = getattr(torch._C, "_cuda_endAllocateToPool", None)
    if end_allocation is not None:
        end_allocation(device.index, pool)


def fits_static(cache: RaggedKVCache, reads: Sequence[Read]) -> bool:
    """Return true if :func:`read_static` supports ``reads``: they are short and few, and the cache has buffers."""
    longest = max(len(read.tokens) for read in reads)
    if longest > LONGEST or not cache.initialized:
        return False
    rows = max(cache.rows[read.text] for read in reads) + 1
    return size_above(rows) * size_above(longest) <= MAX_TOKENS


def read_static(model: Any, strategy: Any, cache: RaggedKVCache, reads: Sequence[Read]) -> Results:
    """Read ``reads`` by a forward of fixed shape, and return logits (N, V) and hidden states (N', d + L·d).

    Args:
        model: a :class:`.causal_lm.CausalLM`.
        strategy: its :class:`.forwards.FixedShapes`.
        cache: the cache of the texts.
        reads: the new tokens, for which :func:`fits_static` is true.
    """
    longest = max(len(read.tokens) for read in reads)
    plan = cache.start_forward([read.text for read in reads], [len(read.tokens) for read in reads])
    cache.fit()
    n, rows = size_above(longest), size_above(plan.high)
    shape = Shape(rows, n, size_above(longest_path(reads)), model.layers, model.state_layers)
    forward = cache.forwards.get(shape)
    if forward is None:
        forward = cache.forwards[shape] = StaticForward(model, strategy, cache, shape)
    cache_rows = [cache.rows[read.text] for read in reads]
    inputs = lay_out(reads, cache_rows, [cache.lengths[row] for row in cache_rows], shape[:3], cache.n_columns - 1)
    forward.inputs.copy_(inputs, non_blocking=True)
    if forward.states is not None:
        put_states(reads, cache_rows, forward.states.zero_())
    put_drawn(reads, cache_rows, forward.inputs[..., 0])
    logits, hidden = forward(cache)
    cache.end_forward()
    # Copies, because the next replay overwrites the results.
    indices = (
        ends(cache_rows, [read.keep for read in reads], n),
        ends(cache_rows, [read.kept_states for read in reads], n),
    )
    return _copy_rows(logits.flatten(0, 1), indices[0]), _copy_rows(hidden.flatten(0, 1), indices[1])


def _copy_rows(values: Tensor, rows: list[int]) -> Tensor:
    """Return a copy of ``rows`` of ``values``."""
    if rows == list(range(rows[0], rows[-1] + 1)):
        return values[rows[0] : rows[-1] + 1].clone()
    return values[torch.tensor(rows).to(values.device, non_blocking=True)]
