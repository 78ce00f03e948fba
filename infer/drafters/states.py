"""Chains of a draft that reads the target's hidden states (EAGLE, Li et al. 2024, §4; EAGLE-3, Li et al. 2025, §3).

Between rounds its cache holds only entries that were made from the target's states. A round begins by reading the
tokens that were added to the text since, each with the target's state before it; then each drafted token is read with
the draft's own state. Those entries are removed at commit, whether or not their tokens were accepted, so that q is a
function of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..draft import Draft
from ..models import CausalLM, LanguageModel, Read
from .chain import Chain, ChainDrafter

if TYPE_CHECKING:
    from ..request import Request


class StateChainDrafter(ChainDrafter):
    """Drafts with a model that reads states; the prompt is read in the first round that drafts."""

    reads_states = True

    def __init__(self, model: LanguageModel, vocab_size: int) -> None:
        super().__init__(model, vocab_size)
        assert isinstance(model, CausalLM)
        assert model.state_input is not None
        self.inputs = model.state_input

    def start(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.model.begin(self.cache, request, request.prompt, self.room(request))

    def read(self, chain: Chain) -> Read:
        if chain.tokens:
            return Read(chain.request, chain.unread, states=chain.hidden)
        request = chain.request
        states, request.states = request.states, None
        assert states is not None
        states = self.inputs.from_target(states, beginning=not self.cache.length(request))
        return Read(request, chain.unread, states=states)

    def unread(self, request: Request, copied: Sequence[int] = ()) -> list[int]:
        return super().unread(request, copied)[self.inputs.skipped :]

    def commit(self, request: Request, draft: Draft, path: list[int]) -> None:
        if draft.tokens:
            self.cache.crop_text(request, len(request.text) - self.inputs.skipped)
