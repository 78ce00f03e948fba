"""Builds the models, length controllers and drafters that a :class:`.Plan` names, without further decisions.

There is one drafter and one controller for each description, because the requests of a drafter share its forwards, and
the texts of a controller share what it learns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from ..common.console import logger
from ..common.errors import InputError
from ..controllers.acceptance.copy_head import CopyPredictor
from ..controllers.length import MAX_DRAFT, Fixed, LengthController, OnlineConfidence, Oracle, RateOptimal
from ..controllers.length.cost_model import ASSUMED, CostModel
from ..controllers.length.cost_source import CostSource, MeasuredCosts, NoCosts, PresetCosts
from ..controllers.length.online_confidence_tree import OnlineConfidenceTree
from ..controllers.length.rate_optimal_tree import RateOptimalTree
from ..models import EarlyExit, LanguageModel, language_model
from . import plan as plans
from .core import Drafter, DraftingArm, Verifier
from .costs import pair_costs
from .drafters.base import Autoregressive
from .drafters.beams import BeamDrafter, JointDrafter
from .drafters.best_first_tree import BestFirstDrafter
from .drafters.chain import ChainDrafter, EarlyExitDrafter
from .drafters.mixed import MixedDrafter, MixedTreeDrafter
from .drafters.ngram import Ngram, NgramDrafter
from .drafters.oracle import OracleDrafter
from .drafters.tree import TreeDrafter
from .engine import Engine
from .loading.controllers import load_copies, load_length
from .loading.pair import load_draft_model, load_target
from .loading.routing import Routing, load_routing
from .plan import LENGTH, ControllerLength, Length, Lookup, Plan, WhilePaying, check_growing
from .verify import candidates, parse_verifier


class Models(NamedTuple):
    """The models of a plan.

    Attributes:
        target: the target model.
        drafts: a list with the draft model; empty if no model drafts, or with a router, whose arms have draft models.
        tokenizer: the tokenizer of texts; None if the decoder accepts token ids only.
        routing: a router with its arms; None without one.
    """

    target: LanguageModel
    drafts: list[LanguageModel]
    tokenizer: PreTrainedTokenizerBase | None
    routing: Routing | None = None

    def limited(self, tokens: int) -> Models:
        """Return the same models for texts of at most ``tokens`` tokens, prompt and continuation together.

        The limit is set for the target and for draft models with a cache of their own. Early exits and the arms of a
        router are unchanged, because the target's limit also holds for their texts.
        """
        drafts = [draft if isinstance(draft, EarlyExit) else draft.limited(tokens) for draft in self.drafts]
        return self._replace(target=self.target.limited(tokens), drafts=drafts)

    @property
    def drafting(self) -> list[LanguageModel]:
        """All models that draft; with a router, those of its arms in order."""
        return self.drafts if self.routing is None else self.routing.models


def load_models(plan: Plan) -> Models:
    """Load the models that ``plan`` names.

    Raises:
        InputError: a model or a tokenizer is missing, models do not fit together, or a router was trained for others.
    """
    model, tokenizer = load_target(plan.target)
    target = language_model(model, graphs=plan.target.graphs)
    if isinstance(plan.drafting, plans.Routed):
        names = [arm.name for arm in plan.drafting.arms]
        specs = {arm.name: arm.drafting.draft for arm in plan.drafting.arms if isinstance(arm.drafting, plans.Chain)}
        routing = load_routing(
            plan.drafting.router, names, specs, target, tokenizer, plan.pair_check, sample=plan.drafting.sample
        )
        return Models(target, [], tokenizer, routing)
    return Models(target, [load_draft_model(spec, target, tokenizer) for spec in plan.drafts], tokenizer)


@dataclass(frozen=True)
class Setup:
    """A plan with the objects that decode requests.

    Attributes:
        plan: the plan, with the properties of the loaded models and with measured costs.
        arms: a drafter and a length controller; several pairs with a router.
        verify: the verification rule.
    """

    plan: Plan
    arms: Sequence[DraftingArm]
    verify: Verifier


class Builder:
    """Builds the setups of one decoder.

    Args:
        engine: the engine of the target.
        models: the loaded models.
    """

    def __init__(self, engine: Engine, models: Models) -> None:
        self.engine, self.models = engine, models
        self._drafters: dict[Hashable, Drafter] = {}
        self._lengths: dict[tuple[str, float | None, CostModel | None, bool], LengthController] = {}
        self._copies: dict[str, CopyPredictor] = {}
        self._measured: CostModel | None = None

    def build(self, plan: Plan) -> Setup:
        """Return the drafters, the length controllers and the rule of ``plan``.

        Raises:
            InputError: a controller cannot be loaded, or does not fit the models or the plan.
        """
        plan = plan.loaded(self.models.target, self.models.drafting)
        logger.debug("costs: %s", plan.costs.describe())
        if isinstance(plan.costs, MeasuredCosts):
            plan = plan.with_measured_costs(self._measure())
        verify = candidates if plan.verifies_every_node else parse_verifier(plan.verifier.name)[1]
        arms = self._arms(plan)
        if not isinstance(plan.drafting, plans.Routed):
            verifier = replace(plan.verifier, draft_exponent=arms[0].draft_exponent)
            plan = replace(plan, verifier=verifier)
        return Setup(plan, arms, verify)

    def _measure(self) -> CostModel:
        """Measure the costs of the pair, or of the target without a draft, once, and return them."""
        if self._measured is None:
            drafts = self.models.drafts
            self._measured = pair_costs(self.models.target, drafts[0] if drafts else None)
        return self._measured

    # Drafters

    def _arms(self, plan: Plan) -> list[DraftingArm]:
        """Return the drafter and the length controller of ``plan``, or those of each arm of a router."""
        if not isinstance(plan.drafting, plans.Routed):
            draft = self.models.drafts[0] if self.models.drafts else None
            return [self._arm(plan.drafting, draft, plan)]
        assert self.models.routing is not None
        arms = []
        for arm, loaded in zip(plan.drafting.arms, self.models.routing.arms, strict=True):
            try:
                arms.append(self._arm(arm.drafting, loaded.model, plan))
            except InputError as error:
                raise InputError(f"arm {arm.name!r}: {error}") from error
        return arms

    def _arm(self, drafting: plans.Drafting, draft: LanguageModel | None, plan: Plan) -> DraftingArm:
        """Return the drafter of ``drafting`` and its length controller."""
        engine, size = self.engine, self.engine.target.vocab_size
        drafter: Drafter
        length: LengthController
        match drafting:
            case plans.Autoregressive(_, observer):
                drafter = self._once(None, partial(Autoregressive, engine.target, engine.cache))
                length = Fixed(0) if observer is None else self._length(observer, draft, plan)
            case plans.JointBeams(steps, search):
                joint = partial(JointDrafter, engine.target, engine.cache, search, steps)
                drafter, length = self._once(("joint", search, steps), joint), Fixed(steps)
            case plans.Copies(lookup, ends):
                planned, ngram = isinstance(ends, WhilePaying), self._ngram(lookup, plan)
                copying = partial(NgramDrafter, size, engine.target.device, ngram, planned=planned)
                drafter = self._once(("ngram", ngram, planned), copying)
                # The drafter decides on the length of planned copies.
                length = Fixed(MAX_DRAFT) if isinstance(ends, WhilePaying) else self._length(ends, None, plan)
            case plans.Routed():
                raise AssertionError("an arm has no router")
            case _:
                assert draft is not None
                drafter, length = self._with_model(drafting, draft, plan)
        exponent = plan.verifier.draft_exponent
        return DraftingArm(drafter, length, length.draft_exponent if exponent is None else exponent)

    def _with_model(
        self,
        drafting: plans.Chain | plans.Tree | plans.GrownTree | plans.Mixed | plans.Beams,
        draft: LanguageModel,
        plan: Plan,
    ) -> tuple[Drafter, LengthController]:
        """Return the drafter of a draft model and its length controller."""
        size = self.engine.target.vocab_size
        drafter: Drafter
        length: LengthController
        if not (plan.drafts_chains or self.engine.target.decodes_trees):
            shape = "x".join(map(str, drafting.children)) if isinstance(drafting, plans.Tree) else "auto"
            raise InputError(f"tree={shape!r}: drafts of a GGUF target are chains; leave the tree out")
        match drafting:
            case plans.Beams(_, tokens, search):
                self._require_tokens_alone(draft)
                drafter = self._once(("beams", search, tokens), partial(BeamDrafter, draft, size, search, tokens))
                length = Fixed(tokens)
            case plans.Tree(_, children, distinct):
                tree = partial(TreeDrafter, draft, size, children, replacement=not distinct)
                drafter, length = self._once(("tree", children, distinct), tree), Fixed(LENGTH)
            case plans.GrownTree(_, ends):
                length = _growing(self._length(ends, draft, plan))
                drafter = self._once("best-first", partial(BestFirstDrafter, draft, size))
            case plans.Mixed(lookup, model):
                length, ngram = self._length(model.length, draft, plan), self._ngram(lookup, plan)
                kind: type[MixedDrafter | MixedTreeDrafter] = MixedDrafter
                if isinstance(model, plans.GrownTree):
                    length, kind = _growing(length), MixedTreeDrafter
                drafter = self._once((kind, ngram), partial(kind, draft, size, ngram))
            case plans.Chain(_, ends):
                length = self._length(ends, draft, plan)
                drafter = self._chains(draft, length)
        return drafter, length

    def _chains(self, draft: LanguageModel, length: LengthController) -> Drafter:
        """Return the drafter of chains of ``draft`` for ``length``."""
        size = self.engine.target.vocab_size
        if isinstance(length, Oracle):
            self._require_tokens_alone(draft)
            return self._once("oracle", lambda: OracleDrafter(draft, size, self.engine.target))
        if isinstance(draft, EarlyExit):
            return self._once(draft, lambda: EarlyExitDrafter(draft, size, self.engine.cache))
        return self._once(draft, lambda: ChainDrafter(draft, size))

    @staticmethod
    def _require_tokens_alone(draft: LanguageModel) -> None:
        """Check that ``draft`` does not read the target's states.

        Raises:
            InputError: the draft reads the target's states.
        """
        if draft.reads_states:
            raise InputError(
                "draft: it reads the target's states, which is not supported for beams and the oracle; leave these "
                "out, or take a draft that reads tokens alone"
            )

    def _once(self, key: Hashable, make: Callable[[], Drafter]) -> Drafter:
        """Return the drafter of ``key``, which ``make`` creates at the first call."""
        if key not in self._drafters:
            self._drafters[key] = make()
        return self._drafters[key]

    # Length controllers

    def _length(self, length: Length, draft: LanguageModel | None, plan: Plan) -> LengthController:
        """Return the controller that ``length`` names, which is loaded once, or the controller in ``length``."""
        if isinstance(length, ControllerLength):
            return length.controller
        cost, adapt = _measured_costs(length.costs)
        key = length.name, length.threshold, cost, adapt
        if key not in self._lengths or self.models.routing is not None:  # arms have controllers of their own
            controller = load_length(
                length.name,
                self.models.target.model,
                None if draft is None else draft.model,
                self.models.tokenizer,
                length.threshold,
                cost,
                plan.pair_check,
            )
            self._lengths[key] = controller.with_costs(adapt=True) if adapt else controller
        return self._lengths[key]

    def _ngram(self, lookup: Lookup, plan: Plan) -> Ngram:
        """Return the settings of n-gram drafts, with their costs and the predictor of copies."""
        cost, adapt = _measured_costs(lookup.costs)
        predictor = lookup.predictor
        if predictor is not None and not isinstance(predictor, CopyPredictor):
            name = str(predictor)
            if name not in self._copies:
                target, tokenizer = self.models.target.model, self.models.tokenizer
                self._copies[name] = load_copies(predictor, target, tokenizer, plan.pair_check)
            predictor = self._copies[name]
        return Ngram(lookup.longest, ASSUMED if cost is None else cost, adapt, predictor)


def _growing(length: LengthController) -> RateOptimalTree:
    """Return the controller of trees with the predictions and costs of ``length``."""
    check_growing(length)
    if isinstance(length, RateOptimal):
        return RateOptimalTree.of(length)
    assert isinstance(length, OnlineConfidence)
    return OnlineConfidenceTree(length)


def _measured_costs(source: CostSource) -> tuple[CostModel | None, bool]:
    """Return the costs of ``source``, and whether rounds correct them.

    The costs must have been measured before.
    """
    if isinstance(source, NoCosts):
        return None, False
    assert isinstance(source, PresetCosts), "costs are measured before drafters are built"
    return source.cost, source.adapt
