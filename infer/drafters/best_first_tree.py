"""Trees grown while the next node is worth its price (:mod:`~specpilot.controllers.length.rate_optimal_tree`).

A node that is read by the draft gets one drawn child; further children are drawn without replacement, or *candidates*:
the text's n-gram match, and at temperature 0 the draft's most probable tokens. The target's distribution is preserved
because every drawn child is verified, and whether another one is drawn is decided by those before it, never by itself
(:mod:`~specpilot.infer.verify.candidates`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from ...controllers.acceptance.sibling_acceptance import DRAWN, GREEDY, SAMPLED, Coefficients, Sibling, drawn_logit
from ...controllers.length import MAX_DRAFT, Step
from ...controllers.length.rate_optimal_tree import RateOptimalTree, Visit
from ...controllers.truncation import top_k
from ...models import ancestors_of
from ...models.read import children_of
from ..core import Draft, Request, TokenDistribution
from ..random_source import without
from .ngram import point_masses
from .tree import LevelDrafter, PartialTree

MAX_NODES = 128  # of a tree
MAX_LEVEL = 32  # nodes read in one level
MAX_CHILDREN = 8  # candidates among the draft's most probable tokens
MAX_DRAWN = 4  # children drawn at a node


class GrowingTree(PartialTree):
    """A tree that grows where nodes are worth their price.

    Attributes:
        survivals: π of each node.
        visits: what was predicted at each node that has children.
    """

    def __init__(self, drafter: LevelDrafter, request: Request) -> None:
        assert isinstance(request.length, RateOptimalTree)
        super().__init__(drafter, request)
        self.controller = request.length
        self.greedy = request.sampling.temperature == 0
        # At temperature 0 the host reads the logits of all of these.
        self.kept = drafter.kept_on_host if self.greedy else drafter.kept
        self.survivals: list[float] = []
        self.visits: dict[int, Visit] = {}
        if self.level and not self.controller.start_round():
            self.level = []

    def grow(self, q: TokenDistribution, logits: Tensor, hidden: Tensor) -> None:
        start = len(self.tokens)
        of_states: list[list[float] | None] = [None] * len(self.level)
        if self.drafter.model.on_accelerator:  # one read for all nodes of the level
            logits, of_state = logits.cpu() if self.greedy else logits, self.controller.of_state(hidden)
            of_states = of_states if of_state is None else of_state.tolist()
        for row, node in enumerate(self.level):
            if len(self.tokens) == MAX_NODES:
                break
            one = slice(row, row + 1)
            self.hidden[node] = hidden[one]
            alone = q if len(self.level) == 1 else q.take([row])
            self._expand(node, alone, logits[one, : q.size], of_states[row])
        self.level = self._next_level(start) if self.n_forwards < min(MAX_DRAFT, self.reach) else []

    def _next_level(self, start: int) -> list[int]:
        """The nodes from ``start`` on that are worth children of their own."""
        if len(self.tokens) >= MAX_NODES:
            return []
        size, stop_tokens = self.drafter.model.vocab_size, self.request.stop_tokens
        new = [(n, self.tokens[n]) for n in range(start, len(self.tokens))]
        ends = [n for n, token in new if token not in stop_tokens and token < size]
        worth = self.controller.level([self.survivals[node] for node in ends])
        best = sorted((ends[place] for place in worth), key=lambda node: -self.survivals[node])
        return best[: min(MAX_LEVEL, MAX_NODES - len(self.tokens))]

    def _expand(self, node: int, q: TokenDistribution, logits: Tensor, of_state: list[float] | None) -> None:
        """The children of ``node``, after which the draft's distribution is ``q`` (1, k) of ``logits`` (1, V).

        Args:
            of_state: as of :class:`.Step`.
        """
        before, hidden = self.path(node), self.hidden[node]
        draws = iter([0]) if self.greedy else self.source.draws(q, 0, len(before))
        choice = next(draws)
        token, probability = q.token(0, choice), float(q.probabilities[0, choice])
        step = Step(
            len(before) + 1, token, probability, q.probabilities, logits, hidden,
            partial(self.request.ngrams.match, [*before, token]),
            listed=None if q.lists is None else q.lists[0][0], kept=self.kept, of_state=of_state,
        )  # fmt: skip
        visit = self.controller.visit(step)
        survival = 1.0 if node < 0 else self.survivals[node]
        self.visits[node] = visit
        self.add(node, token, q, survival * visit.accept)
        left = survival * (1.0 - visit.accept)
        if left >= self.controller.node_price and len(self.tokens) < MAX_NODES:  # else none can be worth its price
            Siblings(self, node, before, q, step, visit, left).add(choice, draws)

    def add(self, parent: int, token: int, q: TokenDistribution, survival: float) -> None:
        """A node with its π."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.distributions.append(q)
        self.survivals.append(survival)

    def path(self, node: int) -> list[int]:
        """The tokens from the root down to ``node``."""
        return [] if node < 0 else [self.tokens[n] for n in (*ancestors_of(self.parents, node), node)]

    def draft(self) -> Draft:
        """The tree depth first, so that a path of first children lies in one piece in the target's cache."""
        if len({*self.parents}) > 1:
            self._renumber(depth_first(self.parents))
        return super().draft()

    def _renumber(self, order: Sequence[int]) -> None:
        """Give node ``order[i]`` the number i, in what the draft and its commit ask for."""
        number = {-1: -1} | {node: place for place, node in enumerate(order)}
        self.tokens = [self.tokens[node] for node in order]
        self.parents = [number[self.parents[node]] for node in order]
        self.distributions = [self.distributions[node] for node in order]
        self.visits = {number[node]: visit for node, visit in self.visits.items()}
        self.columns = {number[node]: column for node, column in self.columns.items()}

    def visited(self, path: Sequence[int]) -> list[Visit]:
        """The nodes with children that verification arrived at, which accepted ``path``."""
        found = []
        for depth, node in enumerate([-1, *path]):
            if node in self.visits:
                visit = self.visits[node]
                if depth < len(path):
                    siblings = [n for n, parent in enumerate(self.parents) if parent == node]
                    visit.kept = siblings.index(path[depth])
                found.append(visit)
        return found


def depth_first(parents: Sequence[int]) -> list[int]:
    """The nodes of a tree, each before its children and after its elder siblings with all that is below them."""
    children = children_of(parents)
    order, waiting = [], children[-1][::-1]
    while waiting:
        order.append(waiting.pop())
        waiting += children.get(order[-1], [])[::-1]
    return order


class Siblings:
    """Chooses a node's further children, while the next is worth its price.

    Args:
        before: the tokens from the root down to the node.
        rejected: the probability that verification arrives at the node and rejects its first child.
    """

    def __init__(
        self,
        tree: GrowingTree,
        node: int,
        before: list[int],
        q: TokenDistribution,
        step: Step,
        visit: Visit,
        rejected: float,
    ) -> None:
        self.tree, self.node, self.before, self.q, self.step, self.visit = tree, node, before, q, step, visit
        self.rejected = rejected
        self.entropy = step.unwarped_entropy if tree.greedy else float(torch.special.entr(q.probabilities).sum())
        self.rank = 1

    def add(self, choice: int, draws: Iterator[int]) -> None:
        """Add what pays besides the first child, entry ``choice`` of the node's distribution; ``draws`` are further."""
        first = self.q.token(0, choice)
        copy = self.tree.request.ngrams.match([*self.before, first]).copy
        if copy == first:
            copy = None
        if self.tree.greedy:
            self._add_likely(first, copy)
        else:
            self._add_drawn(choice, draws, copy)

    def _add_likely(self, first: int, copy: int | None) -> None:
        """Candidates: the copy, then the draft's most probable tokens."""
        q, kept = self.step.unwarped, self.step.kept  # (M,)
        left = 1.0 - self._of(first)
        values, tokens = top_k(q, min(MAX_CHILDREN + 1, len(q)))
        likely = dict(zip((tokens if kept is None else kept[tokens]).tolist(), values.tolist(), strict=True))
        order = [] if copy is None else [copy]
        order += [token for token in likely if token not in (first, copy)]
        for token in order[: MAX_NODES - len(self.tree.tokens)]:
            probability = likely[token] if token in likely else self._of(token)
            if not self._candidate(token, probability, left, GREEDY) and token != copy:
                break
            left -= probability

    def _add_drawn(self, choice: int, draws: Iterator[int], copy: int | None) -> None:
        """Draws without replacement, as long as a draw promises more than the copy, then the copy."""
        controller, q = self.tree.controller, self.q.probabilities[0]  # (k,)
        left, mass = without(q, choice), 1.0 - float(q[choice])
        for _ in range(min(MAX_DRAWN, MAX_NODES - 1 - len(self.tree.tokens))):
            if not bool(left.any()):
                break
            promise = controller.sibling(drawn_logit(float(left.max()) * mass, mass))
            copied = -math.inf if copy is None else self._sibling(copy, self._of(copy), mass).logit(SAMPLED)
            if controller.sibling(copied) >= promise or self.rejected * promise < controller.node_price:
                break
            choice = next(draws)
            token, probability = self.q.token(0, choice), float(q[choice])
            accept = controller.sibling(self._sibling(token, probability, mass).logit(DRAWN))
            self._add(token, TokenDistribution(left.unsqueeze(0), self.q.tokens, self.q.size), accept)
            left, mass = without(left, choice), mass - probability
            copy = None if token == copy else copy
        if copy is not None:
            self._candidate(copy, self._of(copy), mass, SAMPLED)

    def _candidate(self, token: int, probability: float, left: float, weights: Coefficients) -> bool:
        """Add ``token`` if it is worth its price."""
        accept = self.tree.controller.sibling(self._sibling(token, probability, left).logit(weights))
        if self.rejected * accept < self.tree.controller.node_price:
            return False
        self._add(token, point_masses([token], self.q.size, self.q.probabilities.device)[0], accept)
        return True

    def _sibling(self, token: int, probability: float, left: float) -> Sibling:
        match = self.tree.request.ngrams.match([*self.before, token])
        return Sibling(probability, left, self.entropy, self.rank, match, token)

    def _add(self, token: int, q: TokenDistribution, accept: float) -> None:
        self.tree.add(self.node, token, q, self.rejected * accept)
        self.visit.siblings.append(accept)
        self.rejected *= 1.0 - accept
        self.rank += 1

    def _of(self, token: int) -> float:
        """q of ``token``; at temperature 0 that of the softmax at temperature 1."""
        return self.step.unwarped_of(token) if self.tree.greedy else self.q.of([token])[0]


class BestFirstDrafter(LevelDrafter):
    """Rate-optimal trees."""

    def room(self, request: Request) -> int:
        return request.budget + MAX_NODES

    def plant(self, request: Request) -> PartialTree:
        return GrowingTree(self, request)

    def commit(self, request: Request, draft: Draft, path: list[int]) -> None:
        if not draft.tokens:
            return
        tree = self.trees[request]
        assert isinstance(tree, GrowingTree)
        tree.controller.end_tree(draft.parents, tree.visited(path))
        self.roll_back(request, [tree.columns[node] for node in path if node in tree.columns])
