"""N-gram drafts: tokens copied from the text, without a forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...common.errors import InputError, is_whole
from ...controllers.acceptance.copy_head import CopyPredictor, copy_evidence
from ...controllers.acceptance.ngram_index import NgramIndex
from ...controllers.length import MAX_DRAFT, Step
from ...controllers.length.cost_model import ASSUMED, CostModel
from ...controllers.length.draft_sources import DraftSources, Plan
from ...controllers.length.running_cost import RunningCost
from ..core import NO_DRAFT, Draft, Drafter, Request, TokenDistribution
from .prompt_lookup import MAX_RUN, CopyRates, Match, PromptLookup

NGRAM = "ngram"
MAX_LONGEST = 16
NO_TENSOR = torch.empty(1, 0)
POINT_MASS = torch.ones(1, 1)
CERTAIN = 1.0, 1.0, 0.0  # draft signals of a copied token, whose q is a point mass without logits


@dataclass(frozen=True)
class Ngram:
    """Settings of n-gram drafts.

    Attributes:
        longest: length of the longest n-gram that is looked up in the text.
        cost: the cost model that determines the number of copied tokens and the source of the draft.
        adapt: correct ``cost`` by the rounds' wall times. Drafts then depend on the machine's speed; the distribution
            of the text does not.
        predictor: predicts the acceptance of copied tokens; None uses the text's acceptance rates by match length.

    Raises:
        InputError: ``longest`` is not from 1 to ``MAX_LONGEST``.
    """

    longest: int = 4
    cost: CostModel = ASSUMED
    adapt: bool = False
    predictor: CopyPredictor | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.longest <= MAX_LONGEST:
            raise InputError(
                f"draft='{NGRAM}:{self.longest}': the longest n-gram must be from 1 to {MAX_LONGEST} tokens"
            )


def split_ngram(draft: str) -> tuple[str | None, Ngram | None]:
    """Split ``"ngram"``, ``"ngram:4"``, ``"MODEL+ngram"`` or ``"MODEL+ngram:4"`` into model name and n-gram settings.

    Returns:
        The model's name, or None; the settings, or None if ``draft`` does not end with ``ngram``.

    Raises:
        InputError: the longest n-gram is not a number, or out of range.
    """
    model, plus, last = draft.rpartition("+")
    name, colon, longest = last.partition(":")
    if name != NGRAM or (plus and not model):
        return draft, None
    if colon and not is_whole(longest):
        raise InputError(f"draft={draft!r}: give the longest n-gram as a number, as in 'ngram:4'")
    return model or None, Ngram(int(longest)) if colon else Ngram()


def split_drafts(draft: Any) -> tuple[list[Any], Ngram | None]:
    """Return a list with the draft model, or an empty list, and the n-gram settings, or None without n-gram drafts.

    Args:
        draft: the option ``draft``: a name, or a list with one name. From Python also a loaded model, and a list of a
            model and an :class:`Ngram`.

    Raises:
        InputError: there are several models, the name is ``"none"``, or the longest n-gram is not a number or out of
            range.
    """
    if isinstance(draft, str | Path) and draft:
        model, ngram = split_ngram(str(draft))
        if model is not None and model.lower() == "none" and not Path(model).exists():
            raise InputError(
                f"draft={str(draft)!r}: no draft has this name; leave draft out for the default, give null to decode "
                "without a draft model, or name a model, 'ngram' or 'MODEL+ngram'"
            )
        return ([draft] if ngram is None else [] if model is None else [model]), ngram
    if not isinstance(draft, list | tuple):
        return [draft] if draft else [], None
    settings = [entry for entry in draft if isinstance(entry, Ngram)]
    models = [entry for entry in draft if not isinstance(entry, Ngram)]
    if len(models) > 1:
        raise InputError(
            f"draft: {len(models)} drafts need a router, which chooses one of them; give one draft, or a router"
        )
    names, ngram = split_drafts(models[0]) if models else ([], None)
    return names, settings[0] if settings else ngram


class CopyCosts:
    """The cost model of n-gram drafts, which all requests of a drafter share.

    Args:
        options: the settings, with the initial cost model. With ``adapt`` the rounds' wall times correct it.
    """

    def __init__(self, options: Ngram) -> None:
        self.first = options.cost
        self.running = RunningCost(options.cost) if options.adapt else None

    @property
    def cost(self) -> CostModel:
        """The current cost model."""
        return self.first if self.running is None else self.running.cost

    @property
    def draft_is_due(self) -> bool:
        """Return true if the draft model should draft in this round to measure its costs."""
        return self.running is not None and self.running.draft_is_due()

    def add(self, tokens: int, forwards: int, seconds: float, rows: int) -> None:
        """Learn from the time of a round if costs adapt; :attr:`cost` then holds for rounds of ``rows`` requests.

        Args:
            tokens: number of drafted tokens.
            forwards: number of forwards of the draft model.
            seconds: wall time of the round.
            rows: number of requests in the round.
        """
        if self.running is not None:
            self.running = self.running.at(rows)
            self.running.add(tokens, forwards, seconds)


class TextCopies:
    """The n-gram index of a request, and the selection of the sources of its drafts.

    Args:
        request: the request.
        options: the settings, with the longest n-gram and the predictor of the acceptance of copies.
        costs: the cost model of all requests.
        model: whether there is a draft model as well.
        joined: whether the draft model can draft after a copy.
    """

    def __init__(
        self, request: Request, options: Ngram, costs: CopyCosts, *, model: bool, joined: bool = False
    ) -> None:
        self.request, self.predictor = request, options.predictor
        within = request.text[: len(request.prompt)] == request.prompt  # false for encoder-decoders
        request.ngrams = NgramIndex(
            request.text, [] if within else request.prompt, max(options.longest, request.ngrams.longest)
        )
        self.lookup = PromptLookup(request.ngrams, options.longest)
        self.costs, self.rates = costs, CopyRates()
        self.sources = DraftSources(costs.cost, model=model, joined=joined)

    def available(self) -> tuple[Match | None, list[int]]:
        """Return the current match, or None, and the tokens that can be copied."""
        request = self.request
        for run, accepted in self.lookup.extend():
            self.rates.add(run, accepted)
        match = self.lookup.match()
        if match is None:
            return None, []
        return match, self.lookup.copy(match, min(MAX_DRAFT, request.max_draft), request.stop_tokens)

    def plan(self, reach: int = 0) -> tuple[Plan, list[int]]:
        """Return the sources of the request's round, and the tokens to copy.

        Args:
            reach: maximum number of tokens that the draft model can draft; 0 if it cannot draft.
        """
        match, tokens = self.available()
        measure = self.sources.model and self.costs.draft_is_due
        plan = self.sources.plan(self._survivals(match, tokens), min(MAX_DRAFT, reach), measure=measure)
        return plan, tokens[: plan.copies]

    def _survivals(self, match: Match | None, tokens: list[int]) -> Iterator[float]:
        """Yield the probability that the first 0, 1, … of ``tokens`` are all accepted."""
        survival = 1.0
        yield survival
        if match is None:
            return
        for index in range(len(tokens)):
            survival *= self._acceptance(match, tokens[: index + 1])
            yield survival

    def _acceptance(self, match: Match, copied: list[int]) -> float:
        """Return the probability that the last token of ``copied`` is accepted if all tokens before it are."""
        run = min(match.run + len(copied) - 1, MAX_RUN)
        rate = self.rates.after(run)
        if self.predictor is None:
            return rate
        evidence = copy_evidence(
            rate, self.rates.recent.value, run, self.request.ngrams.match(copied),
            answer=match.position + len(copied) > len(self.request.prompt), distance=self.lookup.distance(match),
        )  # fmt: skip
        return self.predictor.predict(evidence, copied[-1], [*self.request.text[-1:], *copied][-2])

    def end_round(self, draft: Draft, accepted: int) -> None:
        """Learn from a round in which the target accepted ``accepted`` tokens of ``draft``."""
        self.sources.follow(self.costs.cost, len(draft.tokens), draft.n_forwards)
        self.sources.end_round(draft.copied, len(draft.tokens) - draft.copied, accepted, draft.n_forwards)


def point_masses(tokens: Sequence[int], size: int, device: torch.device) -> list[TokenDistribution]:
    """Return a point mass on each of ``tokens``; ``size`` is the vocabulary size V."""
    probability = POINT_MASS.to(device)
    return [TokenDistribution(probability, torch.tensor([[token]], device=device), size) for token in tokens]


def copied_draft(tokens: list[int], size: int, device: torch.device) -> Draft:
    """Return the chain of the copied ``tokens``; ``size`` is the vocabulary size V."""
    return Draft.chain(tokens, point_masses(tokens, size, device), 0, len(tokens))


class CopyingDrafter(Drafter):
    """Base class of drafters that copy: keeps every request's n-gram index and the costs of rounds.

    Attributes:
        with_model: whether there is a draft model as well.
        joined: whether the draft model can draft after a copy.
        texts: the :class:`TextCopies` of each request, from the end of its first round on.
    """

    with_model = joined = False

    def copy_by(self, options: Ngram) -> None:
        """Set the ``options`` of n-gram drafts, and begin with their costs; called before there are requests."""
        self.options, self.costs = options, CopyCosts(options)
        self.texts: dict[Request, TextCopies] = {}

    def start(self, requests: Sequence[Request]) -> None:
        super().start(requests)
        for request in requests:
            self.texts[request] = TextCopies(
                request, self.options, self.costs, model=self.with_model, joined=self.joined
            )

    def timed(self, tokens: int, forwards: int, seconds: float) -> None:
        self.costs.add(tokens, forwards, seconds, max(1, len(self.texts)))

    def release(self, request: Request) -> None:
        super().release(request)
        self.texts.pop(request, None)

    def clear(self) -> None:
        super().clear()
        self.texts.clear()


class NgramDrafter(CopyingDrafter):
    """A drafter that copies the continuation of an earlier occurrence of the text's last tokens.

    Args:
        vocab_size: the target's vocabulary size V.
        device: the target's device.
        options: settings of n-gram drafts.
        planned: copy as many tokens as pay by their predicted acceptance; otherwise the length controller decides.
    """

    def __init__(self, vocab_size: int, device: torch.device, options: Ngram, *, planned: bool) -> None:
        self.vocab_size, self.device, self.planned = vocab_size, device, planned
        self.copy_by(options)

    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        return [self._draft(request) for request in requests]

    def _draft(self, request: Request) -> Draft:
        """Return the request's draft."""
        text = self.texts[request]
        tokens = text.plan()[1] if self.planned else controlled_prefix(request, text.available()[1])
        if not tokens:
            return NO_DRAFT
        draft = copied_draft(tokens, self.vocab_size, self.device)
        return draft if self.planned else replace(draft, copied=0)

    def commit(self, request: Request, draft: Draft, path: list[int]) -> None:
        if self.planned and request in self.texts:  # not in the request's first round
            self.texts[request].end_round(draft, len(path))


def controlled_prefix(request: Request, tokens: list[int]) -> list[int]:
    """Return the first of ``tokens``, as many as the request's length controller allows."""
    if not tokens or not request.length.start_round():
        return []
    for index, token in enumerate(tokens, 1):
        drafted = tokens[:index]
        match = partial(request.ngrams.match, drafted)
        step = Step(index, token, 1.0, POINT_MASS, NO_TENSOR, NO_TENSOR, match, draft_signals=CERTAIN)
        if index == len(tokens) or not request.length.observe(step):
            return drafted
    return tokens
