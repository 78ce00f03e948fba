"""Trees that grow while the next node is worth its price (:mod:`~specpilot.controllers.length.rate_optimal_tree`).

Every node that the draft reads gets one drawn child. Further children are drawn without replacement, or are
*candidates*: the text's n-gram match, and at temperature 0 the draft's most probable tokens. The output keeps the
target's distribution for two reasons. Every drawn child is verified. The decision to draw another child depends on
earlier children only, never on the child itself (:mod:`~specpilot.infer.verify.candidates`).
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
    """A tree that grows while nodes are worth their price.

    Attributes:
        controller: the request's length controller.
        greedy: whether the temperature is 0.
        kept_tokens: the draft's only tokens with finite logits, on the device that reads the logits; None for all.
        survivals: π of each node, the predicted probability that the node is accepted.
        visits: the predictions at each node that has children.
        unexpanded: number of nodes of the level that do not have their children yet.
    """

    def __init__(self, drafter: LevelDrafter, request: Request) -> None:
        assert isinstance(request.length, RateOptimalTree)
        super().__init__(drafter, request)
        self.controller = request.length
        self.greedy = request.sampling.temperature == 0
        # At temperature 0 the host reads the logits.
        self.kept_tokens = drafter.kept_tokens_on_host if self.greedy else drafter.kept_tokens
        self.survivals: list[float] = []
        self.visits: dict[int, Visit] = {}
        self.unexpanded = 0
        if self.level and not self.controller.start_round():
            self.level = []

    @property
    def node_price(self) -> float:
        """The minimum gain of a further child, in tokens."""
        return self.controller.node_price(len(self.tokens) + self.unexpanded)

    def grow(self, q: TokenDistribution, logits: Tensor, hidden: Tensor) -> None:
        start = len(self.tokens)
        level_values: list[list[float] | None] = [None] * len(self.level)
        if self.drafter.model.on_accelerator:  # the host reads one tensor for all nodes of the level
            logits, values = logits.cpu() if self.greedy else logits, self.controller.state_values(hidden)
            level_values = level_values if values is None else values.tolist()
        for row, node in enumerate(self.level):
            if len(self.tokens) == MAX_NODES:
                break
            single = slice(row, row + 1)
            self.unexpanded = len(self.level) - row - 1
            self.hidden[node] = hidden[single]
            node_q = q if len(self.level) == 1 else q.take([row])
            self._expand(node, node_q, logits[single, : q.size], level_values[row])
        self.level = self._next_level(start) if self.n_forwards < min(MAX_DRAFT, self.reach) else []

    def _next_level(self, start: int) -> list[int]:
        """Return the nodes from ``start`` on that are worth a forward which gives them children."""
        if len(self.tokens) >= MAX_NODES:
            return []
        size, stop_tokens = self.drafter.model.vocab_size, self.request.stop_tokens
        new = [(n, self.tokens[n]) for n in range(start, len(self.tokens))]
        ends = [n for n, token in new if token not in stop_tokens and token < size]
        paying_indices = self.controller.level([self.survivals[node] for node in ends], len(self.tokens))
        best = sorted((ends[index] for index in paying_indices), key=lambda node: -self.survivals[node])
        return best[: min(MAX_LEVEL, MAX_NODES - len(self.tokens))]

    def _expand(self, node: int, q: TokenDistribution, logits: Tensor, state_values: list[float] | None) -> None:
        """Add the children of ``node``.

        Args:
            q: (1, k) the draft's distribution after the node.
            logits: (1, V) the logits of ``q``.
            state_values: as in :class:`.Step`.
        """
        before, hidden = self.path(node), self.hidden[node]
        draws = iter([0]) if self.greedy else self.source.draws(q, 0, len(before))
        choice = next(draws)
        token, probability = q.token(0, choice), float(q.probabilities[0, choice])
        step = Step(
            len(before) + 1, token, probability, q.probabilities, logits, hidden,
            partial(self.request.ngrams.match, [*before, token]),
            listed=None if q.lists is None else q.lists[0][0], kept_tokens=self.kept_tokens, state_values=state_values,
        )  # fmt: skip
        visit = self.controller.visit(step)
        survival = 1.0 if node < 0 else self.survivals[node]
        self.visits[node] = visit
        self.add(node, token, q, survival * visit.accept)
        rejected = survival * (1.0 - visit.accept)
        if rejected >= self.node_price and len(self.tokens) < MAX_NODES:  # or no sibling can be worth its price
            Siblings(self, node, before, q, step, visit, rejected).add(choice, draws)

    def add(self, parent: int, token: int, q: TokenDistribution, survival: float) -> None:
        """Append a node with the token ``token``, drawn from ``q``, and its π ``survival``."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.distributions.append(q)
        self.survivals.append(survival)

    def path(self, node: int) -> list[int]:
        """Return the tokens from the root down to ``node``."""
        return [] if node < 0 else [self.tokens[n] for n in (*ancestors_of(self.parents, node), node)]

    def draft(self) -> Draft:
        """Return the tree depth first, so that paths of first children are contiguous in the target's cache."""
        if len({*self.parents}) > 1:
            self._renumber(depth_first(self.parents))
        return super().draft()

    def _renumber(self, order: Sequence[int]) -> None:
        """Give node ``order[i]`` the number i in all attributes that the draft and its commit use."""
        number = {-1: -1} | {node: index for index, node in enumerate(order)}
        self.tokens = [self.tokens[node] for node in order]
        self.parents = [number[self.parents[node]] for node in order]
        self.distributions = [self.distributions[node] for node in order]
        self.visits = {number[node]: visit for node, visit in self.visits.items()}
        self.columns = {number[node]: column for node, column in self.columns.items()}

    def visited(self, path: Sequence[int]) -> list[Visit]:
        """Return the visits of the nodes with children that verification reached when it accepted ``path``."""
        visits = []
        for depth, node in enumerate([-1, *path]):
            if node in self.visits:
                visit = self.visits[node]
                if depth < len(path):
                    siblings = [n for n, parent in enumerate(self.parents) if parent == node]
                    visit.accepted_child = siblings.index(path[depth])
                visits.append(visit)
        return visits


def depth_first(parents: Sequence[int]) -> list[int]:
    """Return a tree's nodes depth first: each before its children, after its earlier siblings and their descendants."""
    children = children_of(parents)
    order, waiting = [], children[-1][::-1]
    while waiting:
        order.append(waiting.pop())
        waiting += children.get(order[-1], [])[::-1]
    return order


class Siblings:
    """Adds children of a node besides the first, while the next child is worth its price.

    Args:
        tree: the tree.
        node: the parent of the children.
        before: the tokens from the root down to the node.
        q: (1, k) the draft's distribution after the node.
        step: the first child, as the length controller observes it.
        visit: the predictions at the node.
        rejected: the probability that verification reaches the node and rejects its first child.
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
        """Add all further children that are worth their price.

        Args:
            choice: entry of the node's distribution that the first child was drawn as.
            draws: further entries, drawn without replacement.
        """
        first = self.q.token(0, choice)
        copy = self.tree.request.ngrams.match([*self.before, first]).copy
        if copy == first:
            copy = None
        if self.tree.greedy:
            self._add_likely(first, copy)
        else:
            self._add_drawn(choice, draws, copy)

    def _add_likely(self, first: int, copy: int | None) -> None:
        """Add candidates: the copy, then the draft's most probable tokens."""
        q, kept_tokens = self.step.unwarped, self.step.kept_tokens  # (M,)
        mass = 1.0 - self._of(first)
        values, tokens = top_k(q, min(MAX_CHILDREN + 1, len(q)))
        likely = dict(
            zip((tokens if kept_tokens is None else kept_tokens[tokens]).tolist(), values.tolist(), strict=True)
        )
        order = [] if copy is None else [copy]
        order += [token for token in likely if token not in (first, copy)]
        for token in order[: MAX_NODES - len(self.tree.tokens)]:
            probability = likely[token] if token in likely else self._of(token)
            if not self._candidate(token, probability, mass, GREEDY) and token != copy:
                break
            mass -= probability

    def _add_drawn(self, choice: int, draws: Iterator[int], copy: int | None) -> None:
        """Add draws without replacement while a draw has a higher predicted acceptance than the copy, then the copy."""
        controller, q = self.tree.controller, self.q.probabilities[0]  # (k,)
        remaining, mass = without(q, choice), 1.0 - float(q[choice])
        for _ in range(min(MAX_DRAWN, MAX_NODES - 1 - len(self.tree.tokens))):
            if not bool(remaining.any()):
                break
            promise = controller.sibling(drawn_logit(float(remaining.max()) * mass, mass))
            copied = -math.inf if copy is None else self._sibling(copy, self._of(copy), mass).logit(SAMPLED)
            if controller.sibling(copied) >= promise or self.rejected * promise < self.tree.node_price:
                break
            choice = next(draws)
            token, probability = self.q.token(0, choice), float(q[choice])
            accept = controller.sibling(self._sibling(token, probability, mass).logit(DRAWN))
            self._add(token, TokenDistribution(remaining.unsqueeze(0), self.q.tokens, self.q.size), accept)
            remaining, mass = without(remaining, choice), mass - probability
            copy = None if token == copy else copy
        if copy is not None:
            self._candidate(copy, self._of(copy), mass, SAMPLED)

    def _candidate(self, token: int, probability: float, mass: float, weights: Coefficients) -> bool:
        """Add ``token`` as a candidate if it is worth its price, and return true if it was added.

        Args:
            probability: the draft's probability of ``token``.
            mass: the probability of all tokens that are not children yet.
            weights: coefficients of the prediction.
        """
        accept = self.tree.controller.sibling(self._sibling(token, probability, mass).logit(weights))
        if self.rejected * accept < self.tree.node_price:
            return False
        self._add(token, point_masses([token], self.q.size, self.q.probabilities.device)[0], accept)
        return True

    def _sibling(self, token: int, probability: float, mass: float) -> Sibling:
        """Return the inputs of the prediction for ``token``; arguments as of :meth:`_candidate`."""
        match = self.tree.request.ngrams.match([*self.before, token])
        return Sibling(probability, mass, self.entropy, self.rank, match, token)

    def _add(self, token: int, q: TokenDistribution, accept: float) -> None:
        """Add the child ``token``, drawn from ``q``, with the predicted acceptance ``accept``."""
        self.tree.add(self.node, token, q, self.rejected * accept)
        self.visit.siblings.append(accept)
        self.rejected *= 1.0 - accept
        self.rank += 1

    def _of(self, token: int) -> float:
        """Return q of ``token``; at temperature 0 its probability under the softmax at temperature 1."""
        return self.step.unwarped_of(token) if self.tree.greedy else self.q.of([token])[0]


class BestFirstDrafter(LevelDrafter):
    """Drafts rate-optimal trees."""

    def columns_needed(self, request: Request) -> int:
        return request.budget + MAX_NODES

    def new_tree(self, request: Request) -> PartialTree:
        return GrowingTree(self, request)

    def commit(self, request: Request, draft: Draft, path: list[int]) -> None:
        if not draft.tokens:
            return
        tree = self.trees[request]
        assert isinstance(tree, GrowingTree)
        tree.controller.end_tree(draft.parents, tree.visited(path))
        self.roll_back(request, [tree.columns[node] for node in path if node in tree.columns])
