"""A GGUF model behind the model protocol, run by llama.cpp.

Logits and hidden states of every token read come out of one ``llama_decode``; keys and values stand in
:class:`.llama_cache.LlamaCache`. Results are not bit for bit those of another batch size, as with any engine.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from .base import LanguageModel, Read
from .gguf_model import GgufModel
from .llama_cache import LlamaCache, Unread
from .llama_context import Entry, LlamaContext
from .text_cache import TextCache

SKIM = 32  # tokens without results that are worth a call of their own: each result costs V numbers


class LlamaCpp(LanguageModel):
    """A decoder-only GGUF model; may be used from several threads, each with caches of its own."""

    model: GgufModel

    def __init__(self, model: GgufModel) -> None:
        self.model = model
        self.name = model.config.model_type
        self.device = torch.device("cpu")
        self.vocab_size, self.hidden_size, self.context = model.vocab_size, model.hidden_size, model.context

    def new_cache(self) -> LlamaCache:
        return LlamaCache(self.model.new_context)

    def begin(self, cache: TextCache, text: Hashable, prompt: Sequence[int], reserve: int) -> list[int]:
        cache.add(text, len(prompt) + reserve)
        return list(prompt)

    def forward(self, cache: TextCache, reads: Sequence[Read]) -> tuple[Tensor, Tensor]:
        assert isinstance(cache, LlamaCache)
        if len(reads) > 1 or reads[0].tree is not None:
            return Forward(cache, reads).run()
        (read,) = reads
        n = len(read.tokens)
        if n > SKIM:
            return Forward(cache, reads).run()
        context = cache.fit_text(read.text, n)
        text = cache.texts[read.text]
        start = len(text.tokens)
        assert start == text.chain
        logits, hidden = context.read_chain(read.tokens, start, text.sequence)
        text.tokens += read.tokens
        text.chain = start + n
        return (logits, hidden) if read.keep == n else (logits[-read.keep :], hidden[-read.keep :])


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
