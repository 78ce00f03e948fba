"""GGUF models behind the model protocol, and their texts in llama.cpp's KV cache.

Logits and hidden states of every token read come out of one ``llama_decode``. Results are not bit for bit those of
another batch size, as with any engine.

llama.cpp knows no masks, only sequences: a token attends to what its sequence holds before it. A text is a sequence. A
tree is read as one more sequence for each leaf, the trunk and inner nodes shared by all those below them, and kept by
copying the winner's sequence over the text's own; copies share cells, and cost nothing. Where sequences run out, nodes
that have been read are dropped: a later node that needs them reads them again, and so does the engine where
:meth:`LlamaCache.keep` had to cut the path that was kept.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...common.errors import InputError
from .base import LanguageModel
from .gguf_model import GgufModel
from .llama_context import MOST_SEQUENCES, PAD, Entry, LlamaContext
from .text_cache import Read, TextCache, TreeMask

MOST_TEXTS = 192  # at once; other sequences are for the leaves of their trees
SEQUENCES = (1, 16, 64, MOST_SEQUENCES)  # a context's; every call looks at all pairs of them
SPARE = 64  # cells beyond what the texts have reserved
SKIM = 32  # tokens without results that are worth a call of their own: each result costs V numbers


@dataclass
class Text:
    """One text.

    Attributes:
        sequence: its own, which holds its chain.
        reserve: tokens it is expected to grow to.
        tokens: of every column.
        chain: columns that follow one after another; those behind are nodes of a tree.
        above: for each node its path behind the chain, itself the last.
        positions: each node's position.
        via: for each node that is in the cache, a sequence that passes through it.
        tips: the last node of each sequence that the tree uses.
    """

    sequence: int
    reserve: int
    tokens: list[int] = field(default_factory=list)
    chain: int = 0
    above: dict[int, list[int]] = field(default_factory=dict)
    positions: dict[int, int] = field(default_factory=dict)
    via: dict[int, int] = field(default_factory=dict)
    tips: dict[int, int] = field(default_factory=dict)


@dataclass
class Unread:
    """What a text adds to the next batch.

    Attributes:
        chain: columns of its chain.
        nodes: for each node the sequences that pass through it.
        roots: for each sequence that begins in this batch, how many tokens of the chain it shares.
    """

    text: Text
    chain: range
    nodes: dict[int, list[int]] = field(default_factory=dict)
    roots: dict[int, int] = field(default_factory=dict)

    def entries(self) -> list[tuple[int, Entry]]:
        """Columns and what is read of them, in the order in which they follow each other."""
        text = self.text
        found = []
        for column in self.chain:
            others = [sequence for sequence, root in self.roots.items() if column < root]
            found.append((column, Entry(text.tokens[column], column, (text.sequence, *others))))
        for column in sorted(self.nodes):
            found.append((column, Entry(text.tokens[column], text.positions[column], self.nodes[column])))
        return found


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
            self._drop_tree(gone)
            self._release(gone.sequence)

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
        own, context = self.texts[text], self.context
        columns = list(columns)
        while columns and columns[0] == length < own.chain:
            length += 1
            del columns[0]
        assert length <= own.chain
        if length == len(own.tokens):
            return
        assert context is not None
        cached = next((i for i, column in enumerate(columns) if column not in own.via), len(columns))
        winner = own.via[columns[cached - 1]] if cached else own.sequence
        if winner == own.sequence:
            context.forget(own.sequence, length + cached)
        else:
            context.forget(own.sequence, length)
            context.copy(winner, own.sequence, length, length + cached)
        own.tokens[length:] = [own.tokens[column] for column in columns[:cached]]
        own.chain = len(own.tokens)
        own.above, own.positions = {}, {}
        self._drop_tree(own)

    def fit(self, tokens: int, leaves: int) -> LlamaContext:
        """The context, with room for so many new tokens, and sequences for so many leaves if there are any left."""
        columns = sum(max(len(text.tokens), text.reserve) for text in self.texts.values()) + tokens + SPARE
        wanted = min(len(self.texts) + leaves, MOST_SEQUENCES)
        context = self.context
        if context is None or columns > context.cells or wanted > context.sequences or -1 in self._sequences():
            held = 0 if context is None else context.cells
            cells = max(held, columns + (columns // 4 if columns > held > 0 else 0))
            self._move(-(-cells // PAD) * PAD, next(size for size in SEQUENCES if size >= wanted))
        assert self.context is not None
        return self.context

    def _sequences(self) -> list[int]:
        return [text.sequence for text in self.texts.values()]

    def _move(self, cells: int, sequences: int) -> None:
        """Have a larger context read all texts; trees are forgotten but for their tokens."""
        if self.context is not None:
            self.context.close()
            sequences = max(sequences, self.context.sequences)
        self.context = self._make(cells, sequences)
        self.free = list(range(sequences))[::-1]
        for text in self.texts.values():
            text.sequence = self.free.pop()
            text.via, text.tips = {}, {}
            if text.chain:
                self.context.skim([Entry(text.tokens[i], i, (text.sequence,)) for i in range(text.chain)])

    def _drop_tree(self, text: Text) -> None:
        """Forget the keys and values of a text's nodes, not what they are."""
        assert self.context is not None
        for sequence in text.tips:
            if sequence == text.sequence:
                self.context.forget(sequence, text.chain)
            else:
                self._release(sequence)
        text.via, text.tips = {}, {}

    def drop_trees(self) -> None:
        """Forget the keys and values of all nodes, so that their sequences are free."""
        for text in self.texts.values():
            self._drop_tree(text)

    def _release(self, sequence: int) -> None:
        assert self.context is not None
        self.context.forget(sequence)
        self.free.append(sequence)

    def append(self, key: Hashable, tokens: Sequence[int], tree: TreeMask | None) -> tuple[Unread, list[int]]:
        """Give a text new columns: what is to be read of its chain, and the leaves of its new nodes."""
        text = self.texts[key]
        start = len(text.tokens)
        text.tokens += tokens
        above = [] if tree is None else tree.above
        first = len(text.tokens) - len(above)
        if start == text.chain:
            text.chain = first
        inner: set[int] = set()
        for column, ancestors in enumerate(above, first):
            assert tree is not None
            text.above[column], text.positions[column] = [*ancestors, column], tree.trunk + len(ancestors)
            inner.update(ancestors)
        return Unread(text, range(start, first)), [node for node in range(first, len(text.tokens)) if node not in inner]

    def branch(self, unread: Unread, leaf: int, trunk: int) -> bool:
        """Find a sequence for the path from the first ``trunk`` columns down to ``leaf``; whether there was one."""
        assert self.context is not None
        text, path, root = unread.text, unread.text.above[leaf], trunk
        along = next((i for i, column in enumerate(path) if column != trunk + i or column >= text.chain), len(path))
        root, path = trunk + along, path[along:]  # a branch may leave the chain further down
        cached = next(
            (i for i, column in enumerate(path) if column not in text.via or column in unread.nodes), len(path)
        )
        parent = path[cached - 1] if cached else None
        if parent is None and root == text.chain and text.sequence not in text.tips:
            sequence = text.sequence
        else:
            sequence = next((one for one, tip in text.tips.items() if parent is not None and tip == parent), -1)
        if sequence < 0:
            if not self.free:
                return False
            sequence = self.free.pop()
            self.context.copy(text.sequence, sequence, 0, min(root, unread.chain.start) if unread.chain else root)
            unread.roots[sequence] = root
            if parent is not None:
                self.context.copy(text.via[parent], sequence, root, root + cached)
        text.tips[sequence] = leaf
        for column in path[cached:]:
            unread.nodes.setdefault(column, []).append(sequence)
            text.via[column] = sequence
        return True


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
        return Forward(cache, reads).run()


class Forward:
    """New tokens of several texts, or a tree, in as few batches as sequences allow: nearly always one."""

    def __init__(self, cache: LlamaCache, reads: Sequence[Read]) -> None:
        self.cache, self.reads = cache, reads
        leaves = sum(0 if read.tree is None else len(read.tree.above) for read in reads)
        self.context: LlamaContext = cache.fit(sum(len(read.tokens) for read in reads), leaves)
        self.waiting: dict[int, Unread] = {}  # by read: what the next batch holds of it
        self.found: list[tuple[Tensor, Tensor]] = []
        self.rows: dict[tuple[int, int], int] = {}  # by read and column: where the results are, in all of ``found``
        self.count = 0

    def run(self) -> tuple[Tensor, Tensor]:
        """Logits (N, V) and hidden states (N, d) of what the reads keep."""
        skimmed: list[Entry] = []
        wanted: list[tuple[int, int]] = []
        leaves: list[list[int]] = []
        for i, read in enumerate(self.reads):
            unread, own = self.cache.append(read.text, read.tokens, read.tree)
            end = len(unread.text.tokens)
            wanted += [(i, column) for column in range(end - read.keep, end)]
            skipped = unread.chain[: max(0, end - read.keep - unread.chain.start)]
            if len(skipped) > SKIM:
                unread.chain = unread.chain[len(skipped) :]
                skimmed += [Entry(unread.text.tokens[c], c, (unread.text.sequence,)) for c in skipped]
            self.waiting[i] = unread
            leaves.append(own)
        if skimmed:
            self.context.skim(skimmed)
        for i, (read, own) in enumerate(zip(self.reads, leaves, strict=True)):
            for leaf in own:
                assert read.tree is not None
                while not self.cache.branch(self.waiting[i], leaf, read.tree.trunk):
                    self._flush()
                    self.cache.drop_trees()
        self._flush()
        index = [self.rows[place] for place in wanted]
        logits, hidden = self.found[0]
        if len(self.found) > 1:
            logits, hidden = (torch.cat(parts) for parts in zip(*self.found, strict=True))
        return (logits, hidden) if index == list(range(len(logits))) else (logits[index], hidden[index])

    def _flush(self) -> None:
        """Read what waits."""
        entries: list[Entry] = []
        for i, unread in self.waiting.items():
            for column, entry in unread.entries():
                self.rows.setdefault((i, column), self.count)
                self.count += 1
                entries.append(entry)
            self.waiting[i] = Unread(unread.text, range(0))
        if entries:
            self.found.append(self.context.read(entries))
