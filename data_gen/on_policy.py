"""``specpilot data on-policy``: logs the decoder's rounds: drafted tokens and their acceptance probabilities.

In decoding, a controller sees drafted tokens of its own rounds, whose distribution differs from that of drafted tokens
at all positions of a text. Training on logged rounds removes this difference (DAgger, Ross et al. 2011); training and
logging can be repeated.
"""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

from ..common.record import Identity
from ..controllers.length.cost_source import PresetCosts, cost_source
from ..infer.core import Generation
from ..infer.decoder import SpeculativeDecoder
from ..infer.loading.controllers import length_digest
from ..infer.random_source import sample_seed
from .builder import DatasetBuilder, Item, make_dataset, pair_identity
from .kinds import RoundsRow
from .options import OnPolicyDataOptions
from .workers import OnDone


class OnPolicyDatasetBuilder(DatasetBuilder[RoundsRow]):
    """The decoder and the settings of one dataset of rounds.

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

    def identity(self) -> Identity:
        s = self.settings
        controller = length_digest(s.length)
        source = cost_source(s.cost)
        cost = source.cost.to_dict() if isinstance(source, PresetCosts) else s.cost  # whatever its file is called
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
            some = items[start : start + settings.batch_size]
            generations = self.decoder.generate(
                [item.ids for item in some],
                max_new_tokens=max(item.budget for item in some),
                temperature=settings.temperature,
                top_k=settings.top_k,
                top_p=settings.top_p,
                seed=[sample_seed(settings.seed, item.number) for item in some],
                verifier="token-wise",
            )
            for item, generation in zip(some, generations, strict=True):
                rows.append(RoundsRow(item.id, item.prompt, item.ids, generation.tokens, *rounds_of(generation)))
                on_done(len(generation.tokens))
        self.check_answers([row.x for row in rows], self.decoder.stop_tokens)
        return rows


# Of one text: number of its tokens before each draft, drafted tokens up to the first rejected one, their acceptance.
Rounds: TypeAlias = tuple[list[int], list[list[int]], list[list[float]]]


def rounds_of(generation: Generation) -> Rounds:
    """The rounds of one generation under token-wise verification."""
    starts: list[int] = []
    drafted: list[list[int]] = []
    accept: list[list[float]] = []
    said = 0
    for round in generation.rounds:
        # Of the draft model's, up to the first rejected token, or all tokens if none is rejected.
        verified = slice(round.copied, round.accepted + 1)
        if round.drafted[verified]:
            starts.append(said + round.copied)
            drafted.append(round.drafted[verified])
            accept.append([min(1.0, ratio) for ratio in round.ratios[verified]])
        said += len(round.emitted)
    return starts, drafted, accept


make_on_policy_data = partial(make_dataset, OnPolicyDatasetBuilder)
"""Makes or completes a dataset of rounds; see :func:`~specpilot.data_gen.builder.make_dataset`."""
