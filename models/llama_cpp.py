"""GGUF models behind the model protocol, and their texts in llama.cpp's KV cache.

Logits and hidden states of every token read come out of one ``llama_decode``. Results are not bit for bit those of
another batch size, as with any engine.

llama.cpp knows no masks, only sequences: a token attends to what its sequence holds before it. A text is a sequence.
Drafts of a GGUF target are chains. The branches that training data, traces and tree drafters ask for are read in turn:
each path in a sequence of its own, which shares the cells of the text before it and is forgotten afterwards. Of a tree
:meth:`LlamaCache.keep` therefore keeps the nodes that follow the text in its own sequence; the engine reads the end of
the path again.
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

MOST_TEXTS = 192  # at once
SEQUENCES = (1, 16, 64, MOST_SEQUENCES)  # a context's; every call looks at all pairs of them
SPARE = 64  # cells beyond what the texts have reserved
SKIM = 32  # tokens without results that are worth a call of their own: each result costs V numbers


class Branch(NamedTuple):
    """The path to a node: the first ``root`` columns of the chain, then ``nodes``."""

    root: int
    nodes: list[int]


@dataclass
class Text:
    """One text.

    Attributes:
        sequence: its own, which holds its chain.
        reserve: tokens it is expected to grow to.
        tokens: of every column.
        chain: columns that follow one after another; those behind are nodes of a tree, which llama.cpp does not hold.
        above: for each node its path behind the tree's trunk, itself the last.
    """

    sequence: int
    reserve: int
    tokens: list[int] = field(default_factory=list)
    chain: int = 0
    above: dict[int, list[int]] = field(default_factory=dict)

    def append(self, tokens: Sequence[int], tree: TreeMask | None) -> tuple[range, list[Branch]]:
        """Add columns: those of the chain, and the paths to the leaves among the new nodes."""
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
        """See :meth:`.TextCache.keep`; a path is cut at its first column that is a node of a tree."""
        kept = self.texts[text]
        for column in columns:
            if column != length or column >= kept.chain:
                break
            length += 1
        assert length <= kept.chain
        if length == len(kept.tokens):
            return
        assert self.context is not None
        if length < kept.chain:
            self.context.forget(kept.sequence, length)
        del kept.tokens[length:]
        kept.chain, kept.above = length, {}

    def fit(self, tokens: int, *, branches: bool) -> LlamaContext:
        """The context, with room for so many new tokens, and a free sequence where ``branches`` are read."""
        columns = sum(max(len(text.tokens), text.reserve) for text in self.texts.values()) + tokens + SPARE
        wanted = len(self.texts) + branches
        context = self.context
        unplaced = any(text.sequence < 0 for text in self.texts.values())
        if context is None or columns > context.cells or wanted > context.sequences or unplaced:
            held = 0 if context is None else context.cells
            cells = max(held, columns + (columns // 4 if columns > held > 0 else 0))
            self._move(-(-cells // PAD) * PAD, next(size for size in SEQUENCES if size >= wanted))
        assert self.context is not None
        return self.context

    def _move(self, cells: int, sequences: int) -> None:
        """Have a larger context read the chains of all texts."""
        if self.context is not None:
            self.context.close()
            sequences = max(sequences, self.context.sequences)
        self.context = self._make(cells, sequences)
        self.free = list(range(sequences))[::-1]
        for text in self.texts.values():
            text.sequence = self.free.pop()
            if text.chain:
                self.context.skim([Entry(text.tokens[i], i, text.sequence) for i in range(text.chain)])

    def read_branch(self, text: Text, branch: Branch) -> tuple[Tensor, Tensor]:
        """Logits (n, V) and hidden states (n, d) of the n nodes of ``branch``, in a sequence that is then freed."""
        assert self.context is not None
        sequence = self.free.pop()
        self.context.copy(text.sequence, sequence, 0, branch.root)
        entries = [Entry(text.tokens[c], position, sequence) for position, c in enumerate(branch.nodes, branch.root)]
        results = self.context.read(entries)
        self._release(sequence)
        return results

    def _release(self, sequence: int) -> None:
        assert self.context is not None
        self.context.forget(sequence)
        self.free.append(sequence)


class LlamaCpp(LanguageModel):
    """A decoder-only GGUF model; may be used from several threads, each with caches of its own."""

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
        entries: list[Entry] = []  # the ends of the chains, of all reads
        rows: list[int] = []  # where the results of each chain are among those of ``entries``
        counts: list[int] = []  # results of each chain
        branches: list[list[Branch]] = []
        for read in reads:
            text = cache.texts[read.text]
            chain, leaves = text.append(read.tokens, read.tree)
            count = max(0, read.keep - (len(read.tokens) - len(chain)))
            skipped = chain[: len(chain) - count]
            if len(skipped) > SKIM:
                context.skim([Entry(text.tokens[c], c, text.sequence) for c in skipped])
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
        """Logits (1, V) and hidden states (1, d) of each of the last ``keep`` nodes of ``text``."""
        found: dict[int, tuple[Tensor, Tensor]] = {}
        for branch in leaves:
            logits, hidden = cache.read_branch(text, branch)
            for row, column in enumerate(branch.nodes):
                found.setdefault(column, (logits[row : row + 1], hidden[row : row + 1]))
        return [found[column] for column in range(len(text.tokens) - keep, len(text.tokens))]
