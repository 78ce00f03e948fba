"""GGUF models behind the model protocol, and their texts in llama.cpp's KV cache.

One call of ``llama_decode`` gives logits and hidden states of all tokens that it reads. As in any engine, results
depend on the batch size within rounding.

llama.cpp has no masks, only sequences: a token attends to the earlier tokens of its sequence. A text is a sequence.
Drafts of a GGUF target are chains. Training data, traces and tree drafters also read branches. Each branch is read in a
sequence of its own, which shares the cells of the text before it and is removed afterwards. :meth:`LlamaCache.keep`
therefore keeps only those nodes of a tree that continue the text's sequence; the engine reads the end of the path
again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ..common.errors import InputError
from .base import LanguageModel
from .gguf_model import GgufModel
from .llama_context import MAX_SEQUENCES, PAD, Entry, LlamaContext
from .read import Read, TreeMask
from .text_cache import TextCache

MAX_TEXTS = 192  # maximum number of texts in a cache
SEQUENCES = (1, 16, 64, MAX_SEQUENCES)  # sizes of a context; every call takes time for all pairs of its sequences
SPARE = 64  # cells beyond those that the texts have reserved
SKIM = 32  # more tokens without results than this get a call of their own, because each result takes V numbers


class Branch(NamedTuple):
    """The path to a node of a tree.

    Attributes:
        root: number of first columns of the text's chain that begin the path.
        nodes: the columns of the nodes that follow them.
    """

    root: int
    nodes: list[int]


@dataclass
class Text:
    """One text.

    Attributes:
        sequence: the sequence that holds the text's chain.
        reserve: number of tokens that the text is expected to grow to.
        tokens: the token of every column.
        chain: number of first columns that form a chain. Later columns are nodes of a tree, which llama.cpp's cache
            does not hold.
        above: for each node the columns of its path after the trunk (the first columns, which every node attends to),
            including its own.
    """

    sequence: int
    reserve: int
    tokens: list[int] = field(default_factory=list)
    chain: int = 0
    above: dict[int, list[int]] = field(default_factory=dict)

    def append(self, tokens: Sequence[int], tree: TreeMask | None) -> tuple[range, list[Branch]]:
        """Append columns; return the columns of the chain, and the paths to the leaves among the new nodes."""
        start = len(self.tokens)
        self.tokens += tokens
        above = [] if tree is None else tree.above
        first = len(self.tokens) - len(above)
        if start == self.chain:
            self.chain = first
        if tree is None:
            return range(start, first), []
        self.above |= {column: [*ancestors, column] for column, ancestors in enumerate(above, first)}
        inner = {column for ancestors in above for column in ancestors}
        leaves = [column for column in range(first, len(self.tokens)) if column not in inner]
        return range(start, first), [self._branch(tree.trunk, self.above[leaf]) for leaf in leaves]

    def _branch(self, trunk: int, path: list[int]) -> Branch:
        """Return the branch of a path after ``trunk`` columns; the branch may leave the chain after the trunk's end."""
        shared = next((i for i, c in enumerate(path) if c != trunk + i or c >= self.chain), len(path))
        return Branch(trunk + shared, path[shared:])


class LlamaCache(TextCache):
    """Texts in one context, which is created by the first read, and replaced by a larger one when texts need more room.

    Args:
        make: returns a context, for a number of cells and a number of sequences.

    Attributes:
        context: the current context; None before the first read.
        texts: the texts by key.
        free: the unused sequences of the context.
    """

    def __init__(self, make: Callable[[int, int], LlamaContext]) -> None:
        self._make = make
        self.context: LlamaContext | None = None
        self.texts: dict[Hashable, Text] = {}
        self.free: list[int] = []

    def add(self, text: Hashable, reserve: int) -> None:
        assert text not in self.texts
        if len(self.texts) == MAX_TEXTS:
            raise InputError(f"llama.cpp decodes at most {MAX_TEXTS} texts at once; give a smaller max_running")
        self.texts[text] = Text(self.free.pop() if self.free else -1, reserve)  # -1: waits for a larger context

    def remove(self, text: Hashable) -> None:
        removed = self.texts.pop(text)
        if self.context is not None and removed.sequence >= 0:
            self._release(removed.sequence)

    def clear(self) -> None:
        self.texts.clear()
        self.context, self.free = None, []  # an interrupted round may have left any state

    def __contains__(self, text: Hashable) -> bool:
        return text in self.texts

    def length(self, text: Hashable) -> int:
        return len(self.texts[text].tokens)

    def crop_text(self, text: Hashable, length: int) -> None:
        self.keep(text, length, ())

    def keep(self, text: Hashable, length: int, columns: Sequence[int]) -> None:
        """Keep columns as in :meth:`.TextCache.keep`; the path is cut before its first column outside the chain."""
        entry = self.texts[text]
        for column in columns:
            if column != length or column >= entry.chain:
                break
            length += 1
        assert length <= entry.chain
        if length == len(entry.tokens):
            return
        assert self.context is not None
        if length < entry.chain:
            self.context.forget(entry.sequence, length)
        del entry.tokens[length:]
        entry.chain, entry.above = length, {}

    def fit(self, tokens: int, *, branches: bool) -> LlamaContext:
        """Return the context with room for ``tokens`` new tokens, and with a free sequence if ``branches`` are read."""
        columns = sum(max(len(text.tokens), text.reserve) for text in self.texts.values()) + tokens + SPARE
        sequences = len(self.texts) + branches
        context = self.context
        has_unassigned = any(text.sequence < 0 for text in self.texts.values())
        if context is None or columns > context.cells or sequences > context.sequences or has_unassigned:
            current_cells = 0 if context is None else context.cells
            cells = max(current_cells, columns + (columns // 4 if columns > current_cells > 0 else 0))
            self._move(-(-cells // PAD) * PAD, next(size for size in SEQUENCES if size >= sequences))
        assert self.context is not None
        return self.context

    def _move(self, cells: int, sequences: int) -> None:
        """Replace the context by a larger one, which reads the chains of all texts."""
        if self.context is not None:
            self.context.close()
            sequences = max(sequences, self.context.sequences)
        self.context = self._make(cells, sequences)
        self.free = list(range(sequences))[::-1]
        for text in self.texts.values():
            text.sequence = self.free.pop()
            if text.chain:
                self.context.read_without_outputs([Entry(text.tokens[i], i, text.sequence) for i in range(text.chain)])

    def read_branch(self, text: Text, branch: Branch) -> tuple[Tensor, Tensor]:
        """Return logits (n, V) and hidden states (n, d) of the n nodes of ``branch``; its sequence is freed again."""
        assert self.context is not None
        sequence = self.free.pop()
        self.context.copy(text.sequence, sequence, 0, branch.root)
        entries = [Entry(text.tokens[c], position, sequence) for position, c in enumerate(branch.nodes, branch.root)]
        results = self.context.read(entries)
        self._release(sequence)
        return results

    def _release(self, sequence: int) -> None:
        """Empty and free a sequence."""
        assert self.context is not None
        self.context.forget(sequence)
        self.free.append(sequence)


class LlamaCpp(LanguageModel):
    """A decoder-only GGUF model. Several threads may use it, each with its own caches."""

    model: GgufModel
    decodes_trees = False

    def __init__(self, model: GgufModel) -> None:
        self.model = model
        self.name, self.precision = model.config.model_type, "as in the file"
        self.device = torch.device("cpu")
        self.vocab_size, self.hidden_size, self.context = model.vocab_size, model.hidden_size, model.context

    def new_cache(self) -> LlamaCache:
        return LlamaCache(self.model.new_context)

    def forward(self, cache: TextCache, reads: Sequence[Read]) -> tuple[Tensor, Tensor]:
        assert isinstance(cache, LlamaCache)
        context = cache.fit(sum(len(read.tokens) for read in reads), branches=any(read.tree for read in reads))
        entries: list[Entry] = []  # the ends of the chains of all reads
        rows: list[int] = []  # indices of the chains' results among the results of ``entries``
        counts: list[int] = []  # number of results of each chain
        branches: list[list[Branch]] = []
        for read in reads:
            text = cache.texts[read.text]
            chain, leaves = text.append(read.tokens, read.tree)
            count = max(0, read.keep - (len(read.tokens) - len(chain)))
            skipped = chain[: len(chain) - count]
            if len(skipped) > SKIM:
                context.read_without_outputs([Entry(text.tokens[c], c, text.sequence) for c in skipped])
                chain = chain[len(skipped) :]
            entries += [Entry(text.tokens[c], c, text.sequence) for c in chain]
            rows += range(len(entries) - count, len(entries))
            counts.append(count)
            branches.append(leaves)
        parts: list[tuple[Tensor, Tensor]] = []
        if entries:
            logits, hidden = context.read(entries)
            chains = (logits, hidden) if len(rows) == len(logits) else (logits[rows], hidden[rows])
            if not any(branches):
                return chains
            parts = list(zip(*(torch.split(part, counts) for part in chains), strict=True))
        results: list[tuple[Tensor, Tensor]] = []
        for i, (read, leaves) in enumerate(zip(reads, branches, strict=True)):
            results += parts[i : i + 1]
            if read.tree is not None:
                results += self._nodes(cache, cache.texts[read.text], leaves, min(read.keep, len(read.tree.above)))
        logits, hidden = (torch.cat(part) for part in zip(*results, strict=True))
        return logits, hidden

    def _nodes(self, cache: LlamaCache, text: Text, leaves: Sequence[Branch], keep: int) -> list[tuple[Tensor, Tensor]]:
        """Return logits (1, V) and hidden states (1, d) of each of the last ``keep`` nodes of ``text``."""
        results: dict[int, tuple[Tensor, Tensor]] = {}
        for branch in leaves:
            logits, hidden = cache.read_branch(text, branch)
            for row, column in enumerate(branch.nodes):
                results.setdefault(column, (logits[row : row + 1], hidden[row : row + 1]))
        return [results[column] for column in range(len(text.tokens) - keep, len(text.tokens))]
