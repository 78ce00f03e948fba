"""GGUF models behind the model protocol, and their texts in llama.cpp's KV cache.

Logits and hidden states of every token read come out of one ``llama_decode``. Results are not bit for bit those of
another batch size, as with any engine.

llama.cpp knows no masks, only sequences: a token attends to what its sequence holds before it. A text is a sequence. A
tree is read as one more sequence for each leaf, the trunk and inner nodes shared by all those below them, and kept by
copying the winner's sequence over the text's own; copies share cells, and cost nothing. The sequences of a tree last
until the next forward, which reads the nodes again that it needs. Where sequences run out the leaves are read in turn,
and :meth:`LlamaCache.keep` may have to cut the path, whose end the engine reads again.
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
from .llama_context import MOST_SEQUENCES, PAD, Entry, LlamaContext
from .read import Read, TreeMask
from .text_cache import TextCache

MOST_TEXTS = 192  # at once; other sequences are for the leaves of their trees
SEQUENCES = (1, 16, 64, MOST_SEQUENCES)  # a context's; every call looks at all pairs of them
SPARE = 64  # cells beyond what the texts have reserved
SKIM = 32  # tokens without results that are worth a call of their own: each result costs V numbers


class Branch(NamedTuple):
    """The path to a leaf: the first ``root`` columns of the chain, then ``nodes``."""

    root: int
    nodes: list[int]


@dataclass
class Text:
    """One text.

    Attributes:
        sequence: its own, which holds its chain.
        reserve: tokens it is expected to grow to.
        tokens: of every column.
        chain: columns that follow one after another; those behind are nodes of a tree.
        above: for each node its path behind the tree's trunk, itself the last.
        branches: by sequence, what the last forward has read of the tree.
    """

    sequence: int
    reserve: int
    tokens: list[int] = field(default_factory=list)
    chain: int = 0
    above: dict[int, list[int]] = field(default_factory=dict)
    branches: dict[int, Branch] = field(default_factory=dict)

    def append(self, tokens: Sequence[int], tree: TreeMask | None) -> tuple[range, list[Branch]]:
        """Add columns: those of the chain, and the paths to the leaves of the new nodes."""
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
        """A branch may leave the chain further down than at the trunk's end."""
        along = next((i for i, c in enumerate(path) if c != trunk + i or c >= self.chain), len(path))
        return Branch(trunk + along, path[along:])


class LlamaCache(TextCache):
    """Texts in one context, which is made when they are first read, and anew where they need more room.

    Args:
        make: a context of so many cells and sequences.
    """

    def __init__(self, make: Callable[[int, int], LlamaContext]) -> None:
        self._make = make
        self.context: LlamaContext | None = None
        self.texts: dict[Hashable, Text] = {}
        self.free: list[int] = []  # sequences of the context that nothing uses

    def add(self, text: Hashable, reserve: int) -> None:
        assert text not in self.texts
        if len(self.texts) == MOST_TEXTS:
            raise InputError(f"llama.cpp decodes at most {MOST_TEXTS} texts at once; give a smaller max_running")
        self.texts[text] = Text(self.free.pop() if self.free else -1, reserve)  # -1: until there is a larger context

    def remove(self, text: Hashable) -> None:
        gone = self.texts.pop(text)
        if self.context is not None and gone.sequence >= 0:
            self._release(*gone.branches, gone.sequence)

    def clear(self) -> None:
        self.texts.clear()
        self.context, self.free = None, []  # in whatever state a round has left it

    def __contains__(self, text: Hashable) -> bool:
        return text in self.texts

    def length(self, text: Hashable) -> int:
        return len(self.texts[text].tokens)

    def crop_text(self, text: Hashable, length: int) -> None:
        self.keep(text, length, ())

    def keep(self, text: Hashable, length: int, columns: Sequence[int]) -> None:
        own, columns = self.texts[text], list(columns)
        while columns and columns[0] == length < own.chain:
            length += 1
            del columns[0]
        assert length <= own.chain
        if length == len(own.tokens):
            return
        assert self.context is not None
        shared = {s: _shared(columns, b.nodes) for s, b in own.branches.items() if b.root == length}
        winner = max(shared, key=shared.__getitem__, default=own.sequence)
        kept = columns[: shared.get(winner, 0)]
        self.context.forget(own.sequence, length)
        self.context.copy(winner, own.sequence, length, length + len(kept))
        own.tokens[length:] = [own.tokens[column] for column in kept]
        own.chain, own.above = len(own.tokens), {}
        self._release(*own.branches)
        own.branches = {}

    def fit(self, tokens: int, leaves: int) -> LlamaContext:
        """The context, with room for so many new tokens, and sequences for so many leaves if there are any left."""
        self.drop_branches()
        columns = sum(max(len(text.tokens), text.reserve) for text in self.texts.values()) + tokens + SPARE
        wanted = min(len(self.texts) + leaves, MOST_SEQUENCES)
        context = self.context
        unplaced = any(text.sequence < 0 for text in self.texts.values())
        if context is None or columns > context.cells or wanted > context.sequences or unplaced:
            held = 0 if context is None else context.cells
            cells = max(held, columns + (columns // 4 if columns > held > 0 else 0))
            self._move(-(-cells // PAD) * PAD, next(size for size in SEQUENCES if size >= wanted))
        assert self.context is not None
        return self.context

    def _move(self, cells: int, sequences: int) -> None:
        """Have a larger context read all texts; of trees it holds nothing."""
        if self.context is not None:
            self.context.close()
            sequences = max(sequences, self.context.sequences)
        self.context = self._make(cells, sequences)
        self.free = list(range(sequences))[::-1]
        for text in self.texts.values():
            text.sequence = self.free.pop()
            if text.chain:
                self.context.skim([Entry(text.tokens[i], i, (text.sequence,)) for i in range(text.chain)])

    def drop_branches(self) -> None:
        """Free the sequences of all trees; their nodes are read again where they are needed."""
        for text in self.texts.values():
            self._release(*text.branches)
            text.branches = {}

    def branch(self, text: Text, branch: Branch, held: int) -> None:
        """Give ``branch`` a free sequence, with those of its columns among the ``held`` first ones of the chain."""
        assert self.context is not None
        sequence = self.free.pop()
        self.context.copy(text.sequence, sequence, 0, min(branch.root, held))
        text.branches[sequence] = branch

    def _release(self, *sequences: int) -> None:
        for sequence in sequences:
            assert self.context is not None
            self.context.forget(sequence)
            self.free.append(sequence)


class LlamaCpp(LanguageModel):
    """A decoder-only GGUF model; may be used from several threads, each with caches of its own."""

    model: GgufModel

    def __init__(self, model: GgufModel) -> None:
        self.model = model
        self.name, self.precision = model.config.model_type, "as in the file"
        self.device = torch.device("cpu")
        self.vocab_size, self.hidden_size, self.context = model.vocab_size, model.hidden_size, model.context

    def new_cache(self) -> LlamaCache:
        return LlamaCache(self.model.new_context)

    def forward(self, cache: TextCache, reads: Sequence[Read]) -> tuple[Tensor, Tensor]:
        assert isinstance(cache, LlamaCache)
        leaves = sum(0 if read.tree is None else len(read.tree.above) for read in reads)
        context = cache.fit(sum(len(read.tokens) for read in reads), leaves)
        texts = [cache.texts[read.text] for read in reads]
        wanted: list[tuple[int, int]] = []  # read and column of each result
        unread: list[range] = []  # of each chain
        waiting: list[tuple[int, Branch]] = []
        for i, (text, read) in enumerate(zip(texts, reads, strict=True)):
            chain, branches = text.append(read.tokens, read.tree)
            end = len(text.tokens)
            wanted += [(i, column) for column in range(end - read.keep, end)]
            skipped = chain[: max(0, end - read.keep - chain.start)]
            if len(skipped) > SKIM:
                context.skim([Entry(text.tokens[c], c, (text.sequence,)) for c in skipped])
                chain = chain[len(skipped) :]
            unread.append(chain)
            waiting += [(i, branch) for branch in branches]
        found: list[tuple[Tensor, Tensor]] = []
        rows: dict[tuple[int, int], int] = {}  # where the results are, in all of ``found``
        while waiting or not found:
            for i, branch in waiting[: len(cache.free)]:
                cache.branch(texts[i], branch, unread[i].start)
            waiting = waiting[sum(len(text.branches) for text in texts) :]
            entries: list[Entry] = []
            for i, text in enumerate(texts):
                for column, entry in _entries(text, unread[i]):
                    rows.setdefault((i, column), len(entries) + sum(len(logits) for logits, _ in found))
                    entries.append(entry)
                unread[i] = range(text.chain, text.chain)
            found.append(context.read(entries))
            if waiting:
                cache.drop_branches()
        index = [rows[place] for place in wanted]
        logits, hidden = found[0] if len(found) == 1 else (torch.cat(parts) for parts in zip(*found, strict=True))
        return (logits, hidden) if index == list(range(len(logits))) else (logits[index], hidden[index])


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many of their first elements are the same."""
    differing = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, min(len(one), len(other)))


def _entries(text: Text, chain: range) -> list[tuple[int, Entry]]:
    """Columns of a text and what is read of them: those of its ``chain``, then the nodes of its branches."""
    found = []
    for column in chain:
        others = [sequence for sequence, branch in text.branches.items() if column < branch.root]
        found.append((column, Entry(text.tokens[column], column, (text.sequence, *others))))
    passing: dict[int, list[int]] = {}  # node → the sequences that pass through it
    positions: dict[int, int] = {}
    for sequence, branch in text.branches.items():
        for position, column in enumerate(branch.nodes, branch.root):
            passing.setdefault(column, []).append(sequence)
            positions[column] = position
    return found + [(c, Entry(text.tokens[c], positions[c], passing[c])) for c in sorted(passing)]
