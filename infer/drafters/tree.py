"""Tree drafts: nodes have several children, and one forward reads all nodes of a level (SpecTr, App. E; SpecInfer)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import islice
from typing import Literal

import torch
from torch import Tensor

from ...common.errors import InputError, is_whole
from ...models import LanguageModel, Read, TreeMask, ancestors_of
from ..core import NO_DRAFT, Draft, Request, TokenDistribution
from ..distribution import on_host
from .base import ModelDrafter

MAX_TREE_NODES = 256
AUTO_TREE = "auto"  # a tree whose shape is decided while it is drafted

TreeShape = tuple[int, ...] | Literal["auto"]  # the number of children at each level; "auto" uses predicted acceptance


def parse_tree(tree: str | Sequence[int]) -> TreeShape:
    """Return ``"auto"``, or the expansions of ``tree``, such as ``"3x2x1"`` or ``(3, 2, 1)``.

    Raises:
        InputError: the string is not a shape.
    """
    if isinstance(tree, str):
        return "auto" if tree == AUTO_TREE else parse_expansions(tree)
    return tuple(tree)


def parse_expansions(spec: str) -> tuple[int, ...]:
    """Return (3, 2, 1) for ``"3x2x1"``: the number of children of the root, of each node of level 1, and of level 2.

    ``"4x1x1"`` stands for four chains of three tokens.

    Raises:
        InputError: ``spec`` is not a list of positive numbers, or the tree has more than ``MAX_TREE_NODES`` nodes.
    """
    parts = spec.lower().split("x")
    if not all(is_whole(part) and int(part) > 0 for part in parts):
        raise InputError(f"tree={spec!r}: give the children at each level, as in '3x2x1', or 'auto'")
    expansions = tuple(int(part) for part in parts)
    if count_nodes(expansions) > MAX_TREE_NODES:
        raise InputError(f"tree={spec!r}: {count_nodes(expansions)} nodes; take at most {MAX_TREE_NODES}")
    return expansions


def count_nodes(expansions: tuple[int, ...]) -> int:
    """Return the number of nodes of a tree with these ``expansions``, without its root."""
    total, level = 0, 1
    for factor in expansions:
        level *= factor
        total += level
    return total


class PartialTree(ABC):
    """One request's tree while it is drafted level by level.

    Attributes:
        source: the random source of the tree's tokens.
        unread: the tokens that the draft model reads first; empty if it cannot draft.
        trunk: number of tokens in the draft model's cache after this first read.
        reach: maximum depth of the tree.
        tokens, parents, distributions: as in :class:`.Draft`.
        level: the nodes whose children are chosen next, -1 for the root; empty when the tree is complete.
        columns: the cache column of each node that the draft model has read.
        hidden: (1, d) the draft's hidden state after the root (-1) and after each node that it has read.
        n_forwards: number of forwards of the draft model.
    """

    def __init__(self, drafter: ModelDrafter, request: Request) -> None:
        self.drafter, self.request = drafter, request
        self.source = request.source
        self.unread, self.trunk, self.reach = drafter.unread(request), drafter.trunk(request), drafter.reach(request)
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.distributions: list[TokenDistribution] = []
        self.columns: dict[int, int] = {}
        self.hidden: dict[int, Tensor] = {}
        self.n_forwards = 0
        self.level = [-1] if self.unread and self.reach > 0 else []

    def read_level(self) -> Read:
        """Return the read that gives the next level: of the text for the first level, then of the level's nodes."""
        if self.level == [-1]:
            return self.drafter.read_text(self.request, self.unread)
        above = [[self.columns[a] for a in ancestors_of(self.parents, node)] for node in self.level]
        first = self.trunk + len(self.columns)
        self.columns |= {node: first + index for index, node in enumerate(self.level)}
        tokens, states = [self.tokens[node] for node in self.level], None
        if self.drafter.reads_states:
            states = torch.cat([self.hidden[self.parents[node]] for node in self.level])
        return Read(self.request, tokens, len(tokens), TreeMask(self.trunk, above), states=states)

    @abstractmethod
    def grow(self, q: TokenDistribution, logits: Tensor, hidden: Tensor) -> None:
        """Add the children of the level's nodes, and set the next level.

        Args:
            q: N distributions, one after each node of the level.
            logits: (N, V) the logits of ``q``.
            hidden: (N, d) the hidden states that ``logits`` were computed from.
        """

    def draft(self) -> Draft:
        """Return the tree."""
        if not self.tokens:
            return NO_DRAFT
        on_host = self.drafter.model.on_accelerator
        return Draft(self.tokens, self.distributions, self.parents, self.n_forwards, on_host=on_host)


class LevelDrafter(ModelDrafter):
    """Drafts trees level by level; one forward reads the next levels of all requests.

    Attributes:
        trees: the trees of the current round.
        kept_tokens_on_host: the draft's only tokens with finite logits, in the host's memory; None for all.
    """

    def __init__(self, model: LanguageModel, vocab_size: int) -> None:
        super().__init__(model, vocab_size)
        self.trees: dict[Request, PartialTree] = {}
        self.kept_tokens_on_host = None if self.kept_tokens is None else self.kept_tokens.cpu()

    @abstractmethod
    def new_tree(self, request: Request) -> PartialTree:
        """Return a request's tree before its first level."""

    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        trees = [self.new_tree(request) for request in requests]
        self.read_prompts([tree.request for tree in trees if tree.level])
        while growing := [tree for tree in trees if tree.level]:
            reads = [tree.read_level() for tree in growing]
            logits, hidden = self.model.forward(self.cache, reads)
            counts = [read.keep for read in reads]
            levels = self.distributions([tree.request for tree in growing], logits, counts)
            if self.model.on_accelerator:
                levels = on_host(levels)
            rows = zip(growing, levels, torch.split(logits, counts), torch.split(hidden, counts), strict=True)
            for tree, q, tree_logits, tree_hidden in rows:
                tree.n_forwards += 1
                try:
                    tree.grow(q, tree_logits, tree_hidden)
                except InputError as error:  # fails this request only
                    tree.request.error, tree.level = error, []
        self.trees = dict(zip(requests, trees, strict=True))
        return [tree.draft() for tree in trees]

    def release(self, request: Request) -> None:
        super().release(request)
        self.trees.pop(request, None)

    def clear(self) -> None:
        super().clear()
        self.trees = {}


class ShapedTree(PartialTree):
    """A tree with the same number of children at every node of a level.

    Args:
        drafter, request: as for :class:`PartialTree`.
        expansions: number of children of every node of each level.
        replacement: whether siblings are drawn independently; otherwise they are drawn without replacement.
    """

    def __init__(
        self, drafter: ModelDrafter, request: Request, expansions: tuple[int, ...], *, replacement: bool
    ) -> None:
        super().__init__(drafter, request)
        self.expansions, self.replacement = expansions, replacement

    def grow(self, q: TokenDistribution, logits: Tensor, hidden: Tensor) -> None:
        next_level: list[int] = []
        rows: list[int] = []
        for row, node in enumerate(self.level):
            self.hidden[node] = hidden[row : row + 1]
            count = self.expansions[self.n_forwards - 1]
            if self.replacement:
                choices = [self.request.rng.sample(q.probabilities[row]) for _ in range(count)]
            else:
                choices = list(islice(self.source.draws(q, row, self.n_forwards - 1), count))
            for choice in choices:
                next_level.append(len(self.tokens))
                self.tokens.append(q.token(row, choice))
                self.parents.append(node)
                rows.append(row)
        self.distributions.append(q.take(rows))
        ended = all(self.tokens[node] in self.request.stop_tokens for node in next_level)
        deepest = min(len(self.expansions), self.reach)
        self.level = [] if ended or self.n_forwards == deepest else next_level


class TreeDrafter(LevelDrafter):
    """Drafts trees of one shape; the arguments are those of :class:`.ModelDrafter` and :class:`ShapedTree`."""

    def __init__(
        self, model: LanguageModel, vocab_size: int, expansions: tuple[int, ...], *, replacement: bool
    ) -> None:
        super().__init__(model, vocab_size)
        self.expansions, self.replacement = expansions, replacement

    def columns_needed(self, request: Request) -> int:
        return request.budget + count_nodes(self.expansions)

    def new_tree(self, request: Request) -> PartialTree:
        return ShapedTree(self, request, self.expansions, replacement=self.replacement)
