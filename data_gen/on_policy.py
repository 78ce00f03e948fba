"""``specpilot data on-policy``: logs the decoder's rounds with drafted tokens and their acceptance probabilities.

While decoding, a controller gets drafted tokens of its own rounds. Their distribution differs from that of drafted
tokens at all positions of a text. Training on logged rounds removes this difference (DAgger, Ross et al. 2011).
Training and logging can be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch import Tensor

from ..common.record import Identity
from ..controllers.checkpoints.provenance import TOKEN_WISE
from ..controllers.length.cost_source import PresetCosts, cost_source
from ..infer.core import Draft, Generation, Request, RoundHook, TokenDistribution, Verdict
from ..infer.decoder import SpeculativeDecoder
from ..infer.loading.controllers import length_digest
from ..infer.random_source import sample_seed
from .builder import DatasetBuilder, Item, make_dataset, pair_identity
from .kinds import RoundsRow
from .options import OnPolicyDataOptions
from .rollout import acceptance
from .workers import OnDone


class OnPolicyDatasetBuilder(DatasetBuilder[RoundsRow]):
    """Makes the rows of a dataset of rounds.

    Raises:
        InputError: a model or the controller is missing or does not fit.
    """

    kind = RoundsRow
    token_bytes = 9
    settings: OnPolicyDataOptions

    def __init__(self, settings: OnPolicyDataOptions) -> None:
        self.settings = settings
        self.decoder = SpeculativeDecoder.from_pretrained(
            settings.target, settings.draft, length=settings.length, threshold=settings.threshold, cost=settings.cost,
            dtype=settings.dtype, device=settings.device, trust_remote_code=settings.trust_remote_code,
            **settings.placement,
        )  # fmt: skip
        (draft,) = self.decoder.drafts
        self.models = [self.decoder.target, draft]
        self.setup = self.decoder.setup_for(verifier=settings.verifier)

    def identity(self) -> Identity:
        s = self.settings
        controller = length_digest(s.length)
        source = cost_source(s.cost)
        cost = (
            source.cost.to_dict() if isinstance(source, PresetCosts) else s.cost
        )  # independent of the name of its file
        return {
            **pair_identity(s, self.decoder.fingerprint, *self.models),
            "length": str(s.length),
            "threshold": s.threshold,
            "cost": cost,
            # The digest: a controller retrained in the same folder drafts differently.
            **({} if controller is None else {"controller": controller}),
        }

    def rows(self, items: list[Item], on_done: OnDone) -> list[RoundsRow]:
        settings = self.settings
        rows: list[RoundsRow] = []
        for start in range(0, len(items), settings.batch_size):
            batch = items[start : start + settings.batch_size]
            budget = max(item.budget for item in batch)
            hooks = [AcceptanceHook(settings.verifier) for _ in batch]
            requests = [
                self.decoder.new_request(
                    item.ids, self.sampling, budget, sample_seed(settings.seed, item.number), setup=self.setup
                )
                for item in batch
            ]
            if settings.verifier != TOKEN_WISE:
                for request, hook in zip(requests, hooks, strict=True):
                    request.hooks = [hook]
            self.decoder.scheduler.run(requests)
            for item, request, hook in zip(batch, requests, hooks, strict=True):
                output = request.output
                rows.append(RoundsRow(item.id, item.prompt, item.ids, output.tokens, *rounds_of(output, hook.accept)))
                on_done(len(output.tokens))
        self.check_answers([row.x for row in rows], self.decoder.stop_tokens)
        return rows


class AcceptanceHook(RoundHook):
    """Computes the acceptance probabilities of a request's drafted tokens for rules that do not compute them.

    Token-wise verification computes them itself, see :attr:`.Round.ratios`.

    Attributes:
        verifier: the verification rule.
        accept: acceptance probabilities of all drafted tokens by the index of the round.
    """

    def __init__(self, verifier: str) -> None:
        self.verifier = verifier
        self.accept: dict[int, list[float]] = {}

    def verified(self, request: Request, draft: Draft, verdict: Verdict, p: TokenDistribution, logits: Tensor) -> None:
        """Store the acceptance probabilities of a draft."""
        if draft.tokens:
            q = TokenDistribution.joined(draft.distributions)
            tokens = torch.tensor(draft.tokens, device=q.probabilities.device)
            probabilities = acceptance(p.part(0, len(draft.tokens)), q, tokens, self.verifier)
            self.accept[len(request.output.rounds) - 1] = probabilities.tolist()


# The rounds of a text: number of its tokens before each draft, drafted tokens up to the first rejected token, and their
# acceptance probabilities.
Rounds: TypeAlias = tuple[list[int], list[list[int]], list[list[float]]]


def rounds_of(generation: Generation, probabilities: Mapping[int, Sequence[float]] = MappingProxyType({})) -> Rounds:
    """Return the rounds of a generation.

    Args:
        generation: the generation.
        probabilities: acceptance probabilities of all drafted tokens by the index of the round. Missing rounds were
            verified token-wise.
    """
    starts: list[int] = []
    drafted: list[list[int]] = []
    accept: list[list[float]] = []
    emitted = 0
    for index, round in enumerate(generation.rounds):
        # Tokens of the draft model up to the first rejected token, or all of them if none is rejected.
        verified = slice(round.copied, round.accepted + 1)
        if round.drafted[verified]:
            starts.append(emitted + round.copied)
            drafted.append(round.drafted[verified])
            accept.append([min(1.0, ratio) for ratio in probabilities.get(index, round.ratios)[verified]])
        emitted += len(round.emitted)
    return starts, drafted, accept


make_on_policy_data = partial(make_dataset, OnPolicyDatasetBuilder)
"""Make or complete a dataset of rounds; see :func:`~specpilot.data_gen.builder.make_dataset`."""
