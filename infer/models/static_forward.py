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

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .fixed_layers import SIZES, FixedLayers
from .kv_cache import LayerSlots, RaggedKVCache, size_above
from .masks import CHUNKED, FULL, SLIDING, MaskTypes
from .text_cache import Read, Results

LONGEST = 64  # longer reads are bound by arithmetic, not by launches
WARM = 2  # forwards of a shape before it is captured: some are used once, and the first ones prepare libraries
INTEGERS = 4  # for each token: its id, position, column, and number of first columns seen


class Model(Protocol):
    """What is asked of :class:`.causal_lm.CausalLM`."""

    model: Any
    name: str
    device: torch.device
    hidden_size: int
    layers: int
    state_layers: tuple[int, ...]
    reads_states: bool
    types: MaskTypes | None
    static: bool
    fixed: FixedLayers | None

    def run(
        self, cache: RaggedKVCache, tokens: Tensor, keep: int, kept: int, mask: Any, positions: Tensor,
        states: Tensor | None,
    ) -> Results: ...  # fmt: skip


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

    Attributes:
        inputs: (B, n, 4 + E) integers, see ``INTEGERS``; then the other columns.
        states: (B, n, d) the states before each token, for models that read them.
    """

    def __init__(self, model: Model, cache: RaggedKVCache, shape: Shape) -> None:
        self.model, self.cache, self.shape = model, cache, shape
        rows, tokens, others, *_ = shape
        device = model.device
        self.inputs = torch.zeros(rows, tokens, INTEGERS + others, dtype=torch.long, device=device)
        self.states: Tensor | None = None
        if model.reads_states:
            self.states = torch.zeros(rows, tokens, model.hidden_size, dtype=model.model.dtype, device=device)
        self.rows = torch.arange(rows, device=device).unsqueeze(1)
        self.columns = torch.arange(cache.n_columns, device=device)
        self.depths = torch.arange(others, device=device)
        self.slots: list[LayerSlots] = []
        if model.fixed is not None:
            places = self.rows, self.inputs[..., 2]
            self.slots = [LayerSlots(layer, *places) for layer in cache.own[: model.layers]]
        self.uses = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.results: Results

    def __call__(self) -> Results:
        """Logits (B, n, V) and states (B, n, d) of ``inputs``; the next call overwrites them."""
        self.uses += 1
        if self.graph is None and self.uses > WARM and self.model.static and self.model.device.type == "cuda":
            self._capture()
        if self.graph is None:
            return self._compute()
        self.graph.replay()
        return self.results

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.model.device)
        # A capture takes its workspaces from its own pool and leaves none there for graphs of other pools:
        # those would outlive the pool, or be cleared by graphs of torch.compile.
        _clear_workspaces()
        try:
            with torch.cuda.graph(graph, pool=self.cache.pool(), capture_error_mode="thread_local"):
                self.results = self._compute()
        except RuntimeError as error:
            self.model.static = False
            reason = str(error).strip().splitlines()[0]
            warnings.warn(
                f"{self.model.name}: runs without CUDA graphs, since it cannot be captured ({reason})", stacklevel=2
            )
        else:
            self.graph = graph
        finally:
            _clear_workspaces()

    def _compute(self) -> Results:
        tokens, positions, columns, _ = self.inputs[..., :INTEGERS].unbind(-1)
        self.cache.slots = self.rows, columns
        if self.model.fixed is not None:
            self.model.fixed.slots = self.slots
        try:
            masks = self.masks()
            assert self.model.types is not None
            mask = masks if self.model.types.by_type else next(iter(masks.values()))
            n = self.shape.tokens
            with torch._dynamo.config.patch(recompile_limit=SIZES):
                return self.model.run(self.cache, tokens, n, n, mask, positions, self.states)
        finally:
            self.cache.slots = None

    def masks(self) -> dict[str, Tensor]:
        """(B, 1, n, C) additive masks by layer type, as :func:`.masks.layer_masks` makes them on the host."""
        positions, limits = self.inputs[..., 1, None], self.inputs[..., 3, None]
        others = self.inputs[..., INTEGERS:]
        seen = self.columns < limits
        of_others = torch.minimum(limits + self.depths, positions)  # their positions; the last one is the token's own
        masks = {}
        assert self.model.types is not None
        dtype = self.model.model.dtype
        for name, size in self.model.types.sizes.items():
            if size is None or name == FULL:
                mask = seen.scatter(-1, others, torch.ones_like(others, dtype=torch.bool))
            elif name == SLIDING:
                mask = (seen & (positions - self.columns < size)).scatter(-1, others, positions - of_others < size)
            else:
                assert name == CHUNKED
                chunk = positions // size
                mask = (seen & (self.columns // size == chunk)).scatter(-1, others, of_others // size == chunk)
            scores = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
            masks[name] = scores.masked_fill_(~mask, torch.finfo(dtype).min).unsqueeze(1)
        return masks


def read_static(model: Model, cache: RaggedKVCache, reads: Sequence[Read]) -> Results | None:
    """The results of ``reads``; None if they are too long, or the cache has no buffers yet."""
    longest = max(len(read.tokens) for read in reads)
    if longest > LONGEST or not cache.initialized:
        return None
    plan = cache.start_forward([read.text for read in reads], [len(read.tokens) for read in reads])
    cache.fit()
    n, rows = size_above(longest), size_above(plan.high)
    depth = max([1, *(len(above) + 1 for read in reads if read.tree is not None for above in read.tree.above)])
    shape = Shape(rows, n, size_above(depth), model.layers, model.state_layers)
    forward = cache.forwards.get(shape)
    if forward is None:
        forward = cache.forwards[shape] = StaticForward(model, cache, shape)
    last = cache.n_columns - 1
    padding = [0, 0, last, 0, *[last] * shape.others]
    integers = [[padding] * n for _ in range(rows)]
    picked: list[int] = []
    picked_states: list[int] = []
    if forward.states is not None:
        forward.states.zero_()
    for read in reads:
        row = cache.rows[read.text]
        start, count = cache.lengths[row], len(read.tokens)
        integers[row] = [padding] * (n - count) + _of_read(read, start, shape.others)
        if forward.states is not None and read.states is not None:
            forward.states[row, n - count :] = read.states
        end = (row + 1) * n
        picked += range(end - read.keep, end)
        picked_states += range(end - read.kept_states, end)
    forward.inputs.copy_(torch.tensor(integers), non_blocking=True)
    for read in reads:
        read.put_drawn(forward.inputs[cache.rows[read.text], :, 0])
    logits, hidden = forward()
    cache.end_forward()
    # Copies, since the next replay overwrites the results.
    return _picked(logits.flatten(0, 1), picked), _picked(hidden.flatten(0, 1), picked_states)


def _of_read(read: Read, start: int, others: int) -> list[list[int]]:
    """The integers of each token of ``read``, whose first column is ``start``."""
    above: Sequence[Sequence[int]] = [] if read.tree is None else read.tree.above
    chain = len(read.tokens) - len(above)
    rows = [
        [token, start + i, start + i, start + i, *[start + i] * others] for i, token in enumerate(read.tokens[:chain])
    ]
    for i, ancestors in enumerate(above):
        assert read.tree is not None
        trunk, column = read.tree.trunk, start + chain + i
        seen = [*ancestors, *[column] * (others - len(ancestors))]
        rows.append([read.tokens[chain + i], trunk + len(ancestors), column, trunk, *seen])
    return rows


def _clear_workspaces() -> None:
    torch._C._cuda_clearCublasWorkspaces()


def _picked(values: Tensor, rows: list[int]) -> Tensor:
    if rows == list(range(rows[0], rows[-1] + 1)):
        return values[rows[0] : rows[-1] + 1].clone()
    return values[torch.tensor(rows).to(values.device, non_blocking=True)]
