"""Forwards of fixed shapes over buffers of fixed sizes, which CUDA graphs can replay.

On a GPU an eager forward of one or a few tokens is bound by the launches of its kernels: 12 ms in the shape of
Llama-3.2-1B on an H200, where a replayed graph of the same kernels takes 2.4. A graph repeats its kernels on the same
addresses, so that

* rows, tokens and columns are padded to sizes from a small set (powers of two), for each of which there is a graph;
* keys and values are written to places that a tensor holds, and padding to the last column, which no text reaches;
* masks are computed on the device, from how many columns each token sees and which others, its ancestors in a tree.

Elsewhere than on CUDA the same code runs without graphs, for tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .kv_cache import LayerSlots, RaggedKVCache, size_above
from .masks import as_scores, laid_out, layer_masks, longest_path
from .read import Read, Results, ends, put_drawn, put_states

LONGEST = 64  # longer reads are bound by arithmetic, not by launches
MOST_TOKENS = 512  # rows times tokens: the graphs of larger shapes hold gigabytes of logits and attention scores
WARM = 2  # forwards of a shape before it is captured: some are used once, and the first ones prepare libraries


class Shape(NamedTuple):
    """The sizes of a forward.

    Attributes:
        rows, tokens: texts, and tokens of each, padded.
        others: columns that a token sees beside the first ones: its own, and its ancestors in a tree.
        layers, state_layers: of the model, since an early exit shares its target's cache.
    """

    rows: int
    tokens: int
    others: int
    layers: int
    state_layers: tuple[int, ...]


class StaticForward:
    """The forward of one shape on the buffers of one cache: B rows, n tokens, E other columns.

    It holds no reference to the cache, whose buffers would otherwise wait for Python's collector of cycles.

    Args:
        model: a :class:`.causal_lm.CausalLM`.
        way: its :class:`.forwards.FixedShapes`.
        keep: number of last tokens of each text with results. Default: all.

    Attributes:
        inputs: (B, n, 4 + E) of each token, see :func:`.masks.laid_out`.
        states: (B, n, d) the states before each token, for models that read them.
    """

    def __init__(self, model: Any, way: Any, cache: RaggedKVCache, shape: Shape, keep: int | None = None) -> None:
        self.model, self.way, self.shape, self.keep = model, way, shape, shape.tokens if keep is None else keep
        rows, tokens, others, *_ = shape
        device = model.device
        self.inputs = torch.zeros(rows, tokens, 4 + others, dtype=torch.long, device=device)
        self.states: Tensor | None = None
        if model.reads_states:
            self.states = torch.zeros(rows, tokens, model.hidden_size, dtype=model.model.dtype, device=device)
        self.rows = torch.arange(rows, device=device).unsqueeze(1)
        self.columns = torch.arange(cache.n_columns, device=device)
        self.slots: list[LayerSlots] = []
        if way.fused is not None:
            self.tables = way.fused.tables(cache.n_columns)  # the same ones in every replay
        elif way.fixed is not None:
            places = self.rows, self.inputs[..., 2]
            self.slots = [LayerSlots(layer, *places) for layer in cache.own[: model.layers]]
        self.uses, self.failed = 0, False
        self.graph: torch.cuda.CUDAGraph | None = None
        self.results: Results

    def __call__(self, cache: RaggedKVCache) -> Results:
        """Logits (B, keep, V) and states (B, keep, d) of ``inputs``; the next call overwrites them."""
        self.uses += 1
        if self.graph is None and self.uses > WARM and not self.failed and self.model.device.type == "cuda":
            self._capture(cache)
        if self.graph is None:
            return self._compute(cache)
        self.graph.replay()
        return self.results

    def _capture(self, cache: RaggedKVCache) -> None:
        device, graph, pool = self.model.device, torch.cuda.CUDAGraph(), cache.pool()
        with torch.cuda.device(device):  # a capture is on a stream of the current device
            current = torch.cuda.current_stream(device)
            torch.cuda.synchronize(device)
            # A capture takes its workspaces from its own pool and leaves none there for graphs of other pools:
            # those would outlive the pool, or be cleared by graphs of torch.compile.
            torch._C._cuda_clearCublasWorkspaces()
            try:
                stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
                with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                    self.results = self._compute(cache)
            except RuntimeError as error:
                leave_capture(device, current, pool)
                self.failed = True
                self.way.give_up(self.model, str(error).strip().splitlines()[0])
            else:
                self.graph = graph
            finally:
                torch._C._cuda_clearCublasWorkspaces()

    def _compute(self, cache: RaggedKVCache) -> Results:
        assert self.model.types is not None
        tokens, positions, columns = self.inputs[..., :3].unbind(-1)
        masks = {
            name: as_scores(mask, self.model.model.dtype)
            for name, mask in layer_masks(self.model.types, self.inputs, self.columns).items()
        }
        if self.way.fused is not None:
            (mask,) = masks.values()
            buffers = [layer.pair for layer in cache.own[: self.model.layers]]
            return self.way.fused(  # type: ignore[no-any-return]
                tokens, positions, self.rows, columns, mask, buffers, self.tables, self.states, self.keep
            )
        return self._compute_layers(cache, masks)

    def _compute_layers(self, cache: RaggedKVCache, masks: dict[str, Tensor]) -> Results:
        """The forward with the model's own layers, or those of :mod:`.fixed_layers`."""
        tokens, positions, columns = self.inputs[..., :3].unbind(-1)
        cache.slots, cache.layer_slots = (self.rows, columns), self.slots
        try:
            mask = masks if self.model.types.by_type else next(iter(masks.values()))
            return self.model.run(  # type: ignore[no-any-return]
                cache, tokens, self.keep, self.keep, mask, positions, self.states, self.way.fixed
            )
        finally:
            cache.slots, cache.layer_slots = None, ()


def leave_capture(device: torch.device, stream: Any, pool: Any) -> None:
    """Go back to ``stream`` and to the allocator's usual memory after a failed capture.

    ``torch.cuda.graph`` does neither where ending the capture raises.
    """
    torch.cuda.set_stream(stream)
    end_allocation = getattr(torch._C, "_cuda_endAllocateToPool", None)
    if end_allocation is not None:
        end_allocation(device.index, pool)


def fits_static(cache: RaggedKVCache, reads: Sequence[Read]) -> bool:
    """Whether :func:`read_static` takes ``reads``: the cache has buffers, and they are short and few enough."""
    longest = max(len(read.tokens) for read in reads)
    if longest > LONGEST or not cache.initialized:
        return False
    rows = max(cache.rows[read.text] for read in reads) + 1
    return size_above(rows) * size_above(longest) <= MOST_TOKENS


def read_static(model: Any, way: Any, cache: RaggedKVCache, reads: Sequence[Read]) -> Results:
    """The results of ``reads``, which :func:`fits_static`."""
    longest = max(len(read.tokens) for read in reads)
    plan = cache.start_forward([read.text for read in reads], [len(read.tokens) for read in reads])
    cache.fit()
    n, rows = size_above(longest), size_above(plan.high)
    shape = Shape(rows, n, size_above(longest_path(reads)), model.layers, model.state_layers)
    forward = cache.forwards.get(shape)
    if forward is None:
        forward = cache.forwards[shape] = StaticForward(model, way, cache, shape)
    own = [cache.rows[read.text] for read in reads]
    inputs = laid_out(reads, own, [cache.lengths[row] for row in own], shape[:3], cache.n_columns - 1)
    forward.inputs.copy_(inputs, non_blocking=True)
    if forward.states is not None:
        put_states(reads, own, forward.states.zero_())
    put_drawn(reads, own, forward.inputs[..., 0])
    logits, hidden = forward(cache)
    cache.end_forward()
    # Copies, since the next replay overwrites the results.
    picked = ends(own, [read.keep for read in reads], n), ends(own, [read.kept_states for read in reads], n)
    return _picked(logits.flatten(0, 1), picked[0]), _picked(hidden.flatten(0, 1), picked[1])


def _picked(values: Tensor, rows: list[int]) -> Tensor:
    if rows == list(range(rows[0], rows[-1] + 1)):
        return values[rows[0] : rows[-1] + 1].clone()
    return values[torch.tensor(rows).to(values.device, non_blocking=True)]
