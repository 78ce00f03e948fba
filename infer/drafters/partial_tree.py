"""What trees have in common while they are drafted level by level."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..distribution import TokenDistribution
from ..draft import NO_DRAFT, Draft
from ..models import Read, TreeMask, ancestors_of

if TYPE_CHECKING:
    from ..request import Request
    from .base import ModelDrafter


class PartialTree:
    """One request's tree while it is drafted.

    Args:
        unread: what the draft reads first; empty if it cannot.
        trunk: number of tokens in its cache then.

    Attributes:
        level: the nodes whose children are chosen next, -1 for the root; empty when the tree is done.
        columns: where the nodes that the draft has read stand in its cache.
        hidden: (1, d) the draft's hidden state after the root (-1) and each node that it has read.
    """

    def __init__(self, request: Request, unread: list[int], trunk: int) -> None:
        self.request, self.unread, self.trunk = request, unread, trunk
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.distributions: list[TokenDistribution] = []
        self.columns: dict[int, int] = {}
        self.hidden: dict[int, Tensor] = {}
        self.n_forwards = 0
        self.level: list[int] = []

    def read_level(self, drafter: ModelDrafter) -> Read:
        """What the draft of ``drafter`` reads for the next level: the text, or the level's nodes."""
        if self.level == [-1]:
            return drafter.read_text(self.request, self.unread)
        above = [[self.columns[a] for a in ancestors_of(self.parents, node)] for node in self.level]
        first = self.trunk + len(self.columns)
        self.columns |= {node: first + place for place, node in enumerate(self.level)}
        tokens, states = [self.tokens[node] for node in self.level], None
        if drafter.reads_states:
            states = torch.cat([self.hidden[self.parents[node]] for node in self.level])
        return Read(self.request, tokens, len(tokens), TreeMask(self.trunk, above), states=states)

    def draft(self) -> Draft:
        return Draft(self.tokens, self.distributions, self.parents, self.n_forwards) if self.tokens else NO_DRAFT
