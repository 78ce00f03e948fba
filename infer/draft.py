"""Drafts: the tokens a draft model proposed and the distributions they were really drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from ..controllers.length import LengthController, Step
from ..controllers.lookup import Lookup, Recalled
from ..controllers.sampling import SamplingParams
from .cache import as_row
from .cached_model import CachedModel
from .distribution import TokenDistribution
from .random_source import RandomSource
from .tree_mask import ancestors_of


@dataclass(frozen=True)
class Draft:
    """A tree of drafted tokens; a chain is one with a single branch.

    Attributes:
        tokens: one for each node; children come after their parents, siblings in the order they were drawn.
        laws: what the tokens were drawn from, warped, in their order; without replacement, their first sibling's law.
        parents: the node above each, -1 for children of the root.
        n_forwards: forwards of the draft model it took.
    """

    tokens: list[int]
    laws: list[TokenDistribution]
    parents: list[int]
    n_forwards: int

    @classmethod
    def chain(cls, tokens: list[int], laws: list[TokenDistribution]) -> Draft:
        """y_1 … y_K, each after the one before, each with a law and a forward of its own."""
        return cls(tokens, laws, list(range(-1, len(tokens) - 1)), len(tokens))

    @cached_property
    def q(self) -> Tensor:
        """(N, V) row i is the distribution token i was drawn from."""
        return torch.cat([law.dense for law in self.laws])

    def ratios(self, p: TokenDistribution) -> list[float]:
        """p_i(y_i) / q_i(y_i) of a chain; q_i(y_i) > 0, since y_i was drawn from it."""
        drawn = [law.of([token])[0] for law, token in zip(self.laws, self.tokens, strict=True)]
        return [p_y / q_y for p_y, q_y in zip(p.of(self.tokens), drawn, strict=True)]

    def follow(self, tokens: list[int]) -> list[int]:
        """The path from the root that says ``tokens``, as far as one does."""
        path: list[int] = []
        level = [-1]
        for token in tokens:
            level = [n for n, above in enumerate(self.parents) if above in level and self.tokens[n] == token]
            if not level:
                break
            path = [*ancestors_of(self.parents, level[0]), level[0]]
        return path


NO_DRAFT = Draft.chain([], [])


def merge(drafts: list[Draft]) -> Draft:
    """One tree of several: all hang from the same root, one after another (SpecInfer, Miao et al. 2024, §3)."""
    if len(drafts) == 1:
        return drafts[0]
    starts = accumulate((len(draft.tokens) for draft in drafts), initial=0)
    return Draft(
        [token for draft in drafts for token in draft.tokens],
        [law for draft in drafts for law in draft.laws],
        [n + start if n >= 0 else -1 for draft, start in zip(drafts, starts, strict=False) for n in draft.parents],
        sum(draft.n_forwards for draft in drafts),
    )


class Chain:
    """A chain while it is drafted: token by token until the controller, the budget or a stop token ends it.

    Args:
        unread: tokens of the text that the draft model reads next, at least one.
        longest: tokens to draft at most.
        lookup: of the text that the draft goes on from.

    Attributes:
        drafting: whether another token is wanted.
    """

    def __init__(
        self,
        unread: list[int],
        controller: LengthController,
        chance: RandomSource,
        longest: int,
        stop_tokens: frozenset[int],
        lookup: Lookup,
    ) -> None:
        self.unread, self.controller, self.chance = unread, controller, chance
        self.longest, self.stop_tokens, self.lookup = longest, stop_tokens, lookup
        self.tokens: list[int] = []
        self.laws: list[TokenDistribution] = []
        self.drafting = longest > 0 and controller.start_round()

    def add(self, law: TokenDistribution, logits: Tensor, hidden: Tensor) -> None:
        """Draw the next token from ``law``, made of ``logits`` (…, V), which come from ``hidden`` (…, d)."""
        token = law.sample(0, self.chance)
        self.tokens.append(token)
        self.laws.append(law)
        self.unread = [token]
        self.drafting = (
            len(self.tokens) < self.longest
            and token not in self.stop_tokens
            and self.controller.observe(
                Step(
                    len(self.tokens), token, law.of([token])[0], law.probabilities, logits, hidden, self._recall
                )
            )
        )  # fmt: skip

    def _recall(self) -> Recalled:
        return self.lookup.recall(self.tokens)

    def draft(self) -> Draft:
        return Draft.chain(self.tokens, self.laws)


def draft_chain(model: CachedModel, chain: Chain, warp: SamplingParams, vocab_size: int) -> Draft:
    """Draft ``chain`` to its end; V = ``vocab_size`` is the target's.

    ``model`` is the draft model; its cache holds all of the text but what the chain has unread.
    """
    while chain.drafting:
        logits, hidden = model.forward(as_row(chain.unread, model.device), keep=1)
        chain.add(TokenDistribution.under(warp, logits[0], vocab_size), logits, hidden)
    return chain.draft()
