"""Chains of a draft that reads the target's hidden states (EAGLE, Li et al. 2024, §4).

Between rounds its cache holds only entries that were made from the target's states. A round begins by reading the
tokens that were added to the text since, each with the target's state before it; then each drafted token is read with
the draft's own state. Those entries are removed at commit, whether or not their tokens were accepted, so that q is a
function of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch.nn.functional as F

from ..draft import Draft
from ..models import Read
from .chain import Chain, ChainDrafter

if TYPE_CHECKING:
    from ..request import Request


class StateChainDrafter(ChainDrafter):
    """Drafts with a model that reads states; the prompt is read in the first round that drafts."""

    reads_states = True

    def start(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.model.begin(self.cache, request, request.prompt, self.room(request))

    def read(self, chain: Chain) -> Read:
        if chain.tokens:
            return Read(chain.request, chain.unread, states=chain.hidden)
        request = chain.request
        states, request.states = request.states, None
        assert states is not None
        if not self.cache.length(request):
            states = F.pad(states, (0, 0, 1, 0))  # no state is before the first token
        return Read(request, chain.unread, states=states)

    def commit(self, request: Request, draft: Draft, path: list[int]) -> None:
        if draft.tokens:
            self.cache.crop_text(request, len(request.text))
