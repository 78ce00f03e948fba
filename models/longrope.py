"""Longrope (Phi-3's 128k models): two sets of rotary factors, one for short texts and one for long ones.

When a text grows past the original context, all its keys change; transformers then reads it again from its start, and
so do we. One call of the model uses one set of factors, so results on both sides of the switch need two calls.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from .kv_cache import RaggedKVCache
from .read import Read, Results, joined, read_in_groups

Forward = Callable[[RaggedKVCache, Sequence[Read]], Results]  # of texts that need the same factors


def longrope_switch(config: Any) -> int | None:
    """The original context of a model with longrope; None without longrope."""
    parameters = getattr(config, "rope_parameters", None) or {}
    each = [parameters] if "rope_type" in parameters else [p for p in parameters.values() if isinstance(p, dict)]
    found = [p["original_max_position_embeddings"] for p in each if p.get("rope_type") == "longrope"]
    return min(found) if found else None


class TokenKVCache(RaggedKVCache):
    """A cache that stores the tokens of its texts, so that they can be read again.

    Attributes:
        tokens: token of each column, by text.
        long: whether a text's keys were computed with the factors of long texts; None if some keys are missing.
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
        """Record ``tokens`` that will be appended to ``text``; ``long`` as for the class."""
        self.tokens[text] = [*self.tokens[text], *tokens]
        self.long[text] = long

    def crop_text(self, text: Hashable, length: int) -> None:
        super().crop_text(text, length)
        self.tokens[text] = self.tokens[text][:length]

    def keep(self, text: Hashable, length: int, columns: Sequence[int]) -> None:
        if self.long[text] is None:  # the keys will be recomputed: only the tokens matter
            self.lengths[self.rows[text]] = length + len(columns)
        else:
            super().keep(text, length, columns)
        tokens = self.tokens[text]
        self.tokens[text] = [*tokens[:length], *(tokens[column] for column in columns)]


def read_by_factors(forward: Forward, cache: TokenKVCache, reads: Sequence[Read], switch: int) -> Results:
    """Read texts below and above the switch separately; a text that crosses it is read from its start."""
    groups: dict[tuple[bool, bool], list[int]] = {}
    for i, read in enumerate(reads):
        shortest, longest = _lengths_read(cache, read)
        groups.setdefault((shortest > switch, longest > switch), []).append(i)
    if len(groups) > 1:
        return read_in_groups(reads, groups.values(), lambda own: read_by_factors(forward, cache, own, switch))
    ((short, long),) = groups
    if short != long:
        return joined([_read_across(forward, cache, read, switch) for read in reads])
    changing = [bool(cache.length(read.text)) and cache.long[read.text] != long for read in reads]
    for i, read in enumerate(reads):
        if changing[i] and read.tree is not None and cache.length(read.text) > read.tree.trunk:
            if len(reads) == 1:
                return _read_fresh(forward, cache, read, switch)
            return joined([read_by_factors(forward, cache, [one], switch) for one in reads])
    ready = []
    for read, changes in zip(reads, changing, strict=True):
        known = cache.tokens[read.text] if changes else []
        if changes:
            cache.crop_text(read.text, 0)
        ready.append(read._replace(tokens=[*known, *read.tokens]))
        cache.note(read.text, ready[-1].tokens, long=long)
    return forward(cache, ready)


def _lengths_read(cache: RaggedKVCache, read: Read) -> tuple[int, int]:
    """Lengths of the shortest and the longest prefix for which ``read`` needs results."""
    past, count = cache.length(read.text), len(read.tokens)
    nodes = [] if read.tree is None else [position + 1 for position in read.tree.positions()]
    lengths = [*range(past + 1, past + count - len(nodes) + 1), *nodes]
    wanted = lengths[-read.keep :]
    return min(wanted), max(wanted)


def _read_across(forward: Forward, cache: TokenKVCache, read: Read, switch: int) -> Results:
    """Read when results are needed on both sides of the switch: a tree node by node, a chain in two parts."""
    if read.tree is not None:
        return _read_fresh(forward, cache, read, switch)
    short = switch - cache.length(read.text)
    beyond = len(read.tokens) - short
    parts = (read.tokens[:short], read.keep - beyond), (read.tokens[short:], beyond)
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
        own = TokenKVCache(len(cache.own))
        own.add(0, len(path))
        results.append(read_by_factors(forward, own, [Read(0, [tokens[place] for place in path])], switch))
    return joined(results)
