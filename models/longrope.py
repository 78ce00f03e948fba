"""Longrope (Phi-3's 128k models): two sets of rotary factors, one for short texts and one for long texts.

When a text grows beyond the original context, all its keys change. The text is then read again from its start, as in
transformers. One call of the model uses one set of factors, so that results on both sides of the switch need two calls.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from .kv_cache import RaggedKVCache
from .read import Read, Results, joined, read_in_groups

Forward = Callable[[RaggedKVCache, Sequence[Read]], Results]  # of texts that need the same factors


def longrope_switch(config: Any) -> int | None:
    """Return the original context, in tokens, of a model with longrope; None without longrope."""
    parameters = getattr(config, "rope_parameters", None) or {}
    rope_configs = (
        [parameters] if "rope_type" in parameters else [p for p in parameters.values() if isinstance(p, dict)]
    )
    contexts = [p["original_max_position_embeddings"] for p in rope_configs if p.get("rope_type") == "longrope"]
    return min(contexts) if contexts else None


class TokenKVCache(RaggedKVCache):
    """A cache that also stores the tokens of its texts, so that texts can be read again.

    Attributes:
        tokens: for each text the token of each column.
        long: for each text whether its keys were computed with the factors of long texts; None if keys are missing.
    """

    def __init__(self, layers: int) -> None:
        super().__init__(layers)
        self.tokens: dict[Hashable, list[int]] = {}
        self.long: dict[Hashable, bool | None] = {}

    def add(self, text: Hashable, reserve: int) -> None:
        super().add(text, reserve)
        self.tokens[text], self.long[text] = [], False

    def remove(self, text: Hashable) -> None:
        super().remove(text)
        del self.tokens[text], self.long[text]

    def clear(self) -> None:
        super().clear()
        self.tokens.clear()
        self.long.clear()

    def note(self, text: Hashable, tokens: Sequence[int], *, long: bool | None) -> None:
        """Record ``tokens`` that will be appended to ``text``; ``long`` becomes the entry of ``text`` in ``long``."""
        self.tokens[text] = [*self.tokens[text], *tokens]
        self.long[text] = long

    def crop_text(self, text: Hashable, length: int) -> None:
        super().crop_text(text, length)
        self.tokens[text] = self.tokens[text][:length]

    def keep(self, text: Hashable, length: int, columns: Sequence[int]) -> None:
        if self.long[text] is None:  # the keys will be recomputed from the tokens
            self.lengths[self.rows[text]] = length + len(columns)
        else:
            super().keep(text, length, columns)
        tokens = self.tokens[text]
        self.tokens[text] = [*tokens[:length], *(tokens[column] for column in columns)]


def read_by_factors(forward: Forward, cache: TokenKVCache, reads: Sequence[Read], switch: int) -> Results:
    """Read texts below and above the switch separately; read a text that crosses the switch from its start.

    Args:
        forward: reads texts that need the same factors.
        cache: the cache of the texts.
        reads: the new tokens.
        switch: length in tokens of the longest text with short factors.
    """
    groups: dict[tuple[bool, bool], list[int]] = {}
    for i, read in enumerate(reads):
        shortest, longest = _lengths_read(cache, read)
        groups.setdefault((shortest > switch, longest > switch), []).append(i)
    if len(groups) > 1:
        return read_in_groups(reads, groups.values(), lambda group: read_by_factors(forward, cache, group, switch))
    ((short, long),) = groups
    if short != long:
        return joined([_read_across(forward, cache, read, switch) for read in reads])
    changing = [bool(cache.length(read.text)) and cache.long[read.text] != long for read in reads]
    for i, read in enumerate(reads):
        if changing[i] and read.tree is not None and cache.length(read.text) > read.tree.trunk:
            if len(reads) == 1:
                return _read_fresh(forward, cache, read, switch)
            return joined([read_by_factors(forward, cache, [single], switch) for single in reads])
    prepared_reads = []
    for read, changes in zip(reads, changing, strict=True):
        cached = cache.tokens[read.text] if changes else []
        if changes:
            cache.crop_text(read.text, 0)
        prepared_reads.append(read._replace(tokens=[*cached, *read.tokens]))
        cache.note(read.text, prepared_reads[-1].tokens, long=long)
    return forward(cache, prepared_reads)


def _lengths_read(cache: RaggedKVCache, read: Read) -> tuple[int, int]:
    """Return the lengths of the shortest and the longest prefix for which ``read`` needs results."""
    past, count = cache.length(read.text), len(read.tokens)
    nodes = [] if read.tree is None else [position + 1 for position in read.tree.positions()]
    lengths = [*range(past + 1, past + count - len(nodes) + 1), *nodes]
    lengths_with_results = lengths[-read.keep :]
    return min(lengths_with_results), max(lengths_with_results)


def _read_across(forward: Forward, cache: TokenKVCache, read: Read, switch: int) -> Results:
    """Read a text with results on both sides of the switch: a tree node by node, a chain in two parts."""
    if read.tree is not None:
        return _read_fresh(forward, cache, read, switch)
    short = switch - cache.length(read.text)
    long_count = len(read.tokens) - short
    parts = (read.tokens[:short], read.keep - long_count), (read.tokens[short:], long_count)
    return joined([read_by_factors(forward, cache, [Read(read.text, tokens, keep)], switch) for tokens, keep in parts])


def _read_fresh(forward: Forward, cache: TokenKVCache, read: Read, switch: int) -> Results:
    """Read a tree whose factors differ from the cached ones: each node's text is read separately."""
    assert read.tree is not None
    start = cache.length(read.text)
    cache.note(read.text, read.tokens, long=None)
    cache.start_forward([read.text], [len(read.tokens)])
    cache.end_forward()
    tokens = cache.tokens[read.text]
    first = start + len(read.tokens) - len(read.tree.above)
    results = []
    for column in range(start + len(read.tokens) - read.keep, start + len(read.tokens)):
        path = [*range(column + 1)]
        if column >= first:
            path = [*range(read.tree.trunk), *read.tree.above[column - first], column]
        fresh = TokenKVCache(len(cache.ragged_layers))
        fresh.add(0, len(path))
        results.append(read_by_factors(forward, fresh, [Read(0, [tokens[index] for index in path])], switch))
    return joined(results)
