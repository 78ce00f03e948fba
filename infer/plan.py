"""The plan of decoding: :func:`resolve` makes a :class:`Plan` of options, with all defaults and all checks.

A plan leaves nothing open: it has the models, the source of drafts, the end of a draft, the verification rule, and the
source of costs. :mod:`.build` builds drafters and length controllers for it. A call with a length or a verifier has a
plan of its own: :func:`resolve` applied to the decoder's options and to the :class:`Call`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar, cast

from ..common.errors import InputError, naming
from ..common.options import AUTO, Objects
from ..controllers.acceptance.copy_head import CopyPredictor
from ..controllers.arms import AUTOREGRESSIVE, DRAFT, check_enough, parse_arm
from ..controllers.arms import NGRAM as NGRAM_ARM
from ..controllers.checkpoints.checkpoint import locate, read_config
from ..controllers.checkpoints.provenance import INVARIANT, TOKEN_WISE
from ..controllers.length import (
    AcceptanceLength,
    Fixed,
    LengthController,
    OnlineConfidence,
    Oracle,
    RateOptimal,
    TrainedLength,
    load_rule,
    takes_cost,
)
from ..controllers.length.cost_model import ASSUMED, CostModel
from ..controllers.length.cost_source import CostSource, MeasuredCosts, NoCosts, PresetCosts, cost_source
from ..controllers.router import Router
from ..controllers.router.policy import Config as RouterConfig
from ..controllers.sampling import SamplingParams
from ..models import LanguageModel
from .drafters.beams import Beams as BeamSearch
from .drafters.ngram import NGRAM, Ngram, split_drafts
from .drafters.tree import AUTO_TREE, parse_expansions
from .loading.named_pair import named_pair
from .model_spec import ACCELERATOR, CHECKPOINT, ModelSpec, Name, TargetSpec
from .options import DecodingOptions
from .verify import RULES, parse_verifier
from .verify.otm import MAX_UNKNOWNS, unknowns

if TYPE_CHECKING:
    from .loading.routing import Routing

TARGET, DRAFT_MODEL = "tiny", "tiny-draft"  # the models of a decoder for which none is named
LENGTH = 4  # draft length where texts must not depend on time, of a router's arms and of lossy verifiers
LEARNING = "online-confidence"  # the length controller of all other decoders
JOINT = ("mtad", "mtjd")  # rules that search by beams
DISTINCT = "mcss"  # of trees of a fixed shape, where no rule is named; of others TOKEN_WISE or INVARIANT
NONE = "none"  # the length of a decoder that drafts nothing

D = TypeVar("D", bound=DecodingOptions)
T = TypeVar("T")


# When a draft ends


@dataclass(frozen=True)
class NamedLength:
    """A length controller that is loaded by its name.

    Attributes:
        name: a number of tokens, a rule such as ``confidence:0.4``, a class of the user, or a trained controller.
        threshold: stopping threshold of a trained controller; None for the one in its checkpoint, or to stop by costs.
        costs: the costs by which it stops.
    """

    name: str
    threshold: float | None
    costs: CostSource

    def describe(self) -> str:
        if self.name.isdecimal():
            return f"after {self.name} tokens"
        if not isinstance(self.costs, NoCosts):
            return f"when another token costs more than it yields, by {self.name}"
        return f"by {self.name}" + ("" if self.threshold is None else f" with the threshold {self.threshold:g}")


@dataclass(frozen=True)
class ControllerLength:
    """A length controller that the caller passed as an object, ``controller``."""

    controller: LengthController

    def describe(self) -> str:
        if isinstance(self.controller, Fixed):
            return f"after {self.controller.k} tokens"
        return f"by an object of the class {type(self.controller).__name__}"


@dataclass(frozen=True)
class WhilePaying:
    """The end of drafts of copies: as many tokens are copied as pay by predicted acceptance and costs."""

    def describe(self) -> str:
        return "when another copied token costs more than it yields"


Length: TypeAlias = NamedLength | ControllerLength


# What drafts


@dataclass(frozen=True)
class Lookup:
    """The settings of copies from the text.

    Attributes:
        longest: length of the longest n-gram that is looked up.
        costs: the costs that determine the number of copies; with ``NoCosts``, those of ``ASSUMED``.
        predictor: the name of a copy head, or a loaded one; None for the acceptance rates of the text's matches.
    """

    longest: int
    costs: CostSource
    predictor: Name | CopyPredictor | None

    def describe(self) -> str:
        predictor = self.predictor
        suffix = (
            ""
            if predictor is None
            else f", predicted by {'a copy head' if isinstance(predictor, CopyPredictor) else predictor}"
        )
        return f"tokens copied from the text after an n-gram of at most {self.longest} tokens{suffix}"


@dataclass(frozen=True)
class Autoregressive:
    """Nothing drafts: each round adds one token of the target.

    Attributes:
        idle: a draft model that is loaded for calls with a length; None without one.
        observer: a length controller of the user that drafts nothing and observes the rounds; None without one.
    """

    idle: ModelSpec | None = None
    observer: Length | None = None

    def describe(self) -> str:
        return "nothing: each round adds one token of the target"


@dataclass(frozen=True)
class Chain:
    """A draft model drafts one token after another.

    Attributes:
        draft: the draft model.
        length: decides after each token whether the draft ends.
    """

    draft: ModelSpec
    length: Length

    def describe(self) -> str:
        return f"a chain of tokens of {self.draft.name}"


@dataclass(frozen=True)
class Tree:
    """A draft model drafts a tree of a fixed shape.

    Attributes:
        draft: the draft model.
        children: number of children at each level.
        distinct: whether the children of a node are drawn without replacement.
    """

    draft: ModelSpec
    children: tuple[int, ...]
    distinct: bool

    def describe(self) -> str:
        shape = "x".join(map(str, self.children))
        return f"a tree of {shape} children at each level, of {self.draft.name}"


@dataclass(frozen=True)
class GrownTree:
    """A draft model grows a tree node by node.

    Attributes:
        draft: the draft model.
        length: decides by predicted acceptance and costs whether another node is drafted.
    """

    draft: ModelSpec
    length: Length

    def describe(self) -> str:
        return f"a tree of {self.draft.name}, which grows node by node"


@dataclass(frozen=True)
class Copies:
    """Tokens are copied from the text.

    Attributes:
        lookup: the settings of copies.
        length: ends the draft.
    """

    lookup: Lookup
    length: Length | WhilePaying

    def describe(self) -> str:
        return self.lookup.describe()


@dataclass(frozen=True)
class Mixed:
    """Each round drafts with the source that pays most: copies, the model, or copies that the model continues.

    Attributes:
        lookup: the settings of copies.
        model: the drafting of the model. A tree does not continue copies.
    """

    lookup: Lookup
    model: Chain | GrownTree

    def describe(self) -> str:
        return f"{self.model.describe()}, or {self.lookup.describe()}, whichever pays more"


@dataclass(frozen=True)
class Beams:
    """A draft model drafts the best of several beams (MTAD).

    Attributes:
        draft: the draft model.
        length: number of tokens of a draft.
        search: the settings of the beam search.
    """

    draft: ModelSpec
    length: int
    search: BeamSearch

    def describe(self) -> str:
        return f"the best of {self.search.width} beams of {self.draft.name}"


@dataclass(frozen=True)
class JointBeams:
    """The target chooses several tokens jointly by a search over beams, without a draft (MTJD).

    Attributes:
        length: number of tokens of a step.
        search: the settings of the beam search.
    """

    length: int
    search: BeamSearch

    def describe(self) -> str:
        if self.search.width == 1:
            return "nothing: the target samples each token"
        return f"nothing: the target chooses the best of {self.search.width} beams"


@dataclass(frozen=True)
class RoutedArm:
    """One arm of a router.

    Attributes:
        name: the arm's name.
        drafting: the source of drafts of texts for which the router chooses this arm.
    """

    name: str
    drafting: Autoregressive | Chain | Copies


@dataclass(frozen=True)
class Routed:
    """A router chooses an arm for each prompt.

    Attributes:
        router: a trained router by its name, or an object.
        arms: the arms in the router's order.
        sample: whether the arm is sampled from the router's policy; otherwise the most probable arm is chosen.
    """

    router: Name | Router
    arms: tuple[RoutedArm, ...]
    sample: bool

    def describe(self) -> str:
        router = type(self.router).__name__ if isinstance(self.router, Router) else self.router
        arms = ", ".join(arm.name for arm in self.arms)
        return f"the arm that the router {router} {'samples' if self.sample else 'chooses'} for each prompt: {arms}"


Drafting: TypeAlias = Autoregressive | Chain | Tree | GrownTree | Copies | Mixed | Beams | JointBeams | Routed
PARTS = (
    Autoregressive,
    Chain,
    Tree,
    GrownTree,
    Copies,
    Mixed,
    Beams,
    JointBeams,
    Routed,
    RoutedArm,
    NamedLength,
    Lookup,
)


@dataclass(frozen=True)
class VerifierSpec:
    """A verification rule.

    Attributes:
        name: the rule with its threshold if it has one, such as ``mtad:0.5``.
        rule: the rule without the threshold.
        reason: the reason for the choice of the rule, if the options leave it open.
        draft_exponent: the power of the draft's probabilities under the rule ``invariant``; None for those of the
            trained controllers, which are read when the controllers are loaded.
    """

    name: str
    rule: str
    reason: str = ""
    draft_exponent: float | None = 1.0

    @property
    def exact(self) -> bool:
        """Return true if the rule keeps the target's distribution."""
        return RULES[self.rule].lossless

    def describe(self, *, every_node: bool) -> str:
        """Return the rule in words; ``every_node`` is :attr:`Plan.verifies_every_node`."""
        place = " at every node" if every_node else ""
        reason = f"; {self.reason}" if self.reason else ""
        power = (
            ""
            if self.draft_exponent in (None, 1)
            else f"; the draft's probabilities to the power {self.draft_exponent:g}"
        )
        keeps = "keeps" if self.exact else "does not keep"
        return f"{self.name}{place}, which {keeps} the target's distribution{reason}{power}"


@dataclass(frozen=True)
class Plan:
    """All decisions about the decoding of requests; the result of :func:`resolve`.

    Attributes:
        target: the target model.
        drafting: the source of drafts, with the end of a draft.
        verifier: the verification rule.
        generation_config: ``follow`` takes sampling settings that a call leaves open from the target's
            ``generation_config``; ``ignore`` does not.
        pair_check: whether trained controllers must be made for exactly these models, or only for their tokenizer.
        max_running: maximum number of requests that are decoded together.
        max_columns: maximum number of tokens of a text; None for the models' limits.
    """

    target: TargetSpec
    drafting: Drafting
    verifier: VerifierSpec
    generation_config: Literal["follow", "ignore"]
    pair_check: Literal["exact", "tokenizer"]
    max_running: int
    max_columns: int | None = None

    @property
    def drafts(self) -> list[ModelSpec]:
        """The draft models to load; with a router, those of its arms in order."""
        return [part for part in _parts(self.drafting) if isinstance(part, ModelSpec)]

    @property
    def drafts_chains(self) -> bool:
        """Return true if drafts are chains."""
        return not isinstance(self._model_drafting, Tree | GrownTree)

    @property
    def verifies_every_node(self) -> bool:
        """Return true if a tree is verified token-wise at every node, with the node's candidates."""
        return isinstance(self._model_drafting, GrownTree) and self.verifier.rule != INVARIANT

    @property
    def _model_drafting(self) -> Drafting:
        """The drafting without copies beside it."""
        return self.drafting.model if isinstance(self.drafting, Mixed) else self.drafting

    @property
    def costs(self) -> CostSource:
        """The source of the costs that decide on drafting."""
        sources = [part.costs for part in _parts(self.drafting) if isinstance(part, NamedLength | Lookup)]
        return next((source for source in sources if not isinstance(source, NoCosts)), NoCosts())

    def loaded(self, target: LanguageModel, drafts: Sequence[LanguageModel]) -> Plan:
        """Return the same plan with the precision, the device and the forward of the loaded models."""
        loaded_specs = {id(spec): spec.loaded(model) for spec, model in zip(self.drafts, drafts, strict=True)}
        drafting = _replace_parts(self.drafting, lambda part: loaded_specs.get(id(part), part))
        return replace(self, target=self.target.loaded(target), drafting=drafting)

    def with_measured_costs(self, cost: CostModel) -> Plan:
        """Return the same plan with the measured costs ``cost`` in place of costs that were to be measured."""

        def measured(part: Any) -> Any:
            origin = "measured when the models were loaded"
            return PresetCosts(cost, origin, part.adapt) if isinstance(part, MeasuredCosts) else part

        return replace(self, drafting=_replace_parts(self.drafting, measured))

    def check_sampling(self, sampling: SamplingParams, vocab_size: int) -> None:
        """Check that the rule supports the sampling parameters; ``vocab_size`` is the target's V.

        Raises:
            InputError: optimal transport would have too many unknowns, or there are more beams than possible tokens.
        """
        proposals = prod(self.drafting.children) if isinstance(self.drafting, Tree) else 1
        tokens = min(sampling.support or vocab_size, vocab_size)
        if self.verifier.rule == "otm" and unknowns(tokens, proposals) > MAX_UNKNOWNS:
            raise InputError(
                f"verifier='otm' with {proposals} proposals over {tokens} tokens: too large a linear program; "
                "take a smaller top_k or tree"
            )
        if isinstance(self.drafting, Beams | JointBeams):
            self.drafting.search.check_sampling(sampling, vocab_size)

    def describe(self) -> str:
        """Return the plan in a few lines: models, forwards, source of drafts, end of a draft, rule, and costs."""
        lines = [f"target: {self.target.describe()}"]
        lines += [f"draft: {draft.describe()}" for draft in self.drafts]
        lines.append(f"drafts: {self.drafting.describe()}")
        if isinstance(self.drafting, Routed):
            for arm in self.drafting.arms:
                ends = "".join(f"; a draft ends {length.describe()}" for length in _lengths(arm.drafting))
                lines.append(f"arm {arm.name}: {arm.drafting.describe()}{ends}")
        elif isinstance(self.drafting, Beams | JointBeams):
            lines.append(f"tokens in a step: {self.drafting.length}")
        else:
            lines += [f"a draft ends: {length.describe()}" for length in _lengths(self.drafting)]
        lines.append(f"verification: {self.verifier.describe(every_node=self.verifies_every_node)}")
        if not isinstance(self.costs, NoCosts):
            lines.append(f"costs: {_describe_costs(self.costs)}")
        return "\n".join(lines)


def _parts(node: Any) -> Iterator[Any]:
    """Yield a part of a plan and, in order, all parts that it consists of."""
    yield node
    if isinstance(node, tuple):
        for item in node:
            yield from _parts(item)
    elif isinstance(node, PARTS):
        for entry in fields(node):
            yield from _parts(getattr(node, entry.name))


def _lengths(drafting: Drafting) -> list[Length | WhilePaying]:
    """Return the rules that end drafts; none if nothing drafts."""
    if isinstance(drafting, Autoregressive):
        return []
    return [part for part in _parts(drafting) if isinstance(part, NamedLength | ControllerLength | WhilePaying)]


def _replace_parts(node: T, change: Callable[[Any], Any]) -> T:
    """Return ``node`` with its parts replaced by ``change``, which returns a part itself to keep it."""
    changed = change(node)
    if changed is not node:
        return cast(T, changed)
    if isinstance(node, tuple):
        return cast(T, tuple(_replace_parts(item, change) for item in node))
    if isinstance(node, PARTS) and is_dataclass(node):
        return replace(
            node, **{entry.name: _replace_parts(getattr(node, entry.name), change) for entry in fields(node)}
        )
    return node


def _describe_costs(source: CostSource) -> str:
    """Return the source of costs as a phrase, with the cost of a draft step if it is known."""
    if not isinstance(source, PresetCosts):
        return source.describe()
    ratio = source.cost.t_draft / source.cost.verification(1)
    return f"a draft step takes {ratio:.2f} of a verification; {source.describe()}"


# From options to a plan


@dataclass(frozen=True, kw_only=True)
class LoadedOptions(DecodingOptions):
    """Options of a decoder whose models the caller has loaded.

    Attributes:
        target: the target model.
        draft: the draft model, or a tuple of it and the settings of n-gram drafts; None without a draft.
        beams: settings of the beam search.
    """

    target: Annotated[Any, Objects()]
    draft: Annotated[Any, Objects()] = None
    beams: Annotated[Any, Objects()] = None


@dataclass(frozen=True)
class Call:
    """The options of a decoder that a call replaces.

    Attributes:
        length: the length of this call, whose drafts are chains unless the length grows trees; None keeps the
            decoder's. The threshold and the costs of the decoder's length do not apply to it.
        verifier: the verification rule of this call; None keeps the decoder's.
    """

    length: Name | int | LengthController | None = None
    verifier: str | None = None

    def __post_init__(self) -> None:
        if self.length is not None:
            check_length(self.length)
        if self.verifier is not None and not isinstance(self.verifier, str):
            raise InputError(f"verifier={self.verifier!r}: give a rule's name, such as 'block'")


WHOLE = Call()  # replaces nothing


def resolve(options: DecodingOptions, call: Call = WHOLE, *, steady: bool = False, seeded: bool = False) -> Plan:
    """Return the plan of ``options``: resolve names, fill in defaults, and check combinations.

    The function loads no model; it reads only ``config.json`` of controllers.

    Args:
        options: the decoder's options, which may have objects instead of names.
        call: the options that a call replaces.
        steady: whether drafts must not depend on time. The default length is then ``LENGTH``.
        seeded: whether the caller passes a seed, and the temperature is above 0. If the options leave the rule open,
            the text then depends on nothing but the seed.

    Raises:
        InputError: an option is out of range, has no effect without another one, or two cannot be combined; or a
            controller or a file of costs cannot be read.
    """
    options = with_models(options)
    if call.verifier is not None:
        options = replace(options, verifier=call.verifier)
    if call.length is not None:
        options = _with_length(options, call.length)
    verifier = verifier_of(options, seeded=seeded)
    options = replace(options, verifier=verifier.name)
    if call.length is None:
        options = with_defaults(options, steady=steady)
    drafting = _routed(options, verifier) if options.router is not None else _drafting(options, verifier, call)
    return Plan(
        target=target_spec(options),
        drafting=drafting,
        verifier=verifier,
        generation_config=options.generation_config,
        pair_check=options.pair_check,
        max_running=options.max_running,
        max_columns=options.max_columns,
    )


def verifier_of(options: DecodingOptions, *, seeded: bool = False) -> VerifierSpec:
    """Return the verification rule of ``options``; ``seeded`` is as for :func:`resolve`.

    Raises:
        InputError: there is no such rule.
    """
    if options.verifier != AUTO:
        rule = parse_verifier(options.verifier)[0].name
        if rule != INVARIANT and options.draft_exponent is not None:
            raise InputError(
                f"draft_exponent={options.draft_exponent:g}: only for verifier={INVARIANT!r}; leave it out"
            )
        return VerifierSpec(options.verifier, rule, draft_exponent=options.draft_exponent if rule == INVARIANT else 1.0)
    if seeded:
        reason = "a seed is given, and its text does not depend on drafts"
        return VerifierSpec(INVARIANT, INVARIANT, reason, options.draft_exponent)
    rule = TOKEN_WISE if options.tree in (None, AUTO_TREE) else DISTINCT
    return VerifierSpec(rule, rule, f"with a seed and a temperature above 0 it is {INVARIANT}")


def with_models(options: D) -> D:
    """Return ``options`` with names of target and draft; open names are those in the trained controller of the options.

    Raises:
        InputError: a controller cannot be read, or a model that it names does not exist.
    """
    entries = {"length": options.length, "copies": options.copies, "router": options.router}
    names = {option: str(name) for option, name in entries.items() if isinstance(name, str | Path)}
    target, draft = options.target, options.draft
    copies_alone = "copies" in names and "length" not in names and options.router is None
    if _is_auto(draft) and copies_alone:
        draft = NGRAM
    if options.router is None:
        target, draft = named_pair(target, draft, names)
    else:
        target, _ = named_pair(target, None, names)
    target = TARGET if _is_auto(target) else target
    if _is_auto(draft):
        draftless = options.router is not None or (options.length == NONE and target != TARGET)
        draft = None if draftless else DRAFT_MODEL
    return replace(options, target=target, draft=draft)


def with_defaults(options: D, *, steady: bool = False) -> D:
    """Return ``options`` of :func:`with_models` with the default drafting, which needs no training, if it is open.

    The default stops by costs and confidences that are fitted while decoding, and copies from the text as well. The
    draft model has the precision with the fastest step on this machine. Drafts are chains, because trees were slower
    with the included pair.
    """
    length: Any = options.length
    settled = options.router is not None or length is not None or options.tree not in (None, AUTO_TREE)
    lossless = options.verifier == AUTO or parse_verifier(options.verifier)[0].lossless
    if settled or options.threshold is not None or not lossless:
        return options
    models, ngram = split_drafts(options.draft)
    if len(models) != 1:
        return options
    if steady:
        return options if options.cost is not None else replace(options, length=LENGTH)
    return replace(
        options,
        length=LEARNING,
        cost=AUTO if options.cost is None else options.cost,
        adapt=options.adapt is not False,
        draft=f"{models[0]}+{NGRAM}" if ngram is None else options.draft,
        draft_dtype=options.draft_dtype or "auto",
    )


def _with_length(options: D, length: Any) -> D:
    """Return ``options`` with the ``length`` of a call instead of the decoder's."""
    grows = options.tree == AUTO_TREE and isinstance(length, LengthController) and grows_trees(length)
    return replace(options, length=length, threshold=None, tree=AUTO_TREE if grows else None)


def target_spec(options: DecodingOptions) -> TargetSpec:
    """Return the specification of the target of ``options``."""
    target: Any = options.target
    if isinstance(target, LanguageModel):
        return TargetSpec.of(target)
    return TargetSpec(
        name=TARGET if target == AUTO else target,
        precision=CHECKPOINT if options.dtype == AUTO else options.dtype,
        device=ACCELERATOR if options.device == AUTO else options.device,
        trust_remote_code=options.trust_remote_code,
        graphs=options.graphs,
        tokenizer=options.tokenizer,
        revision=options.revision,
        device_map=options.device_map,
        offload_folder=options.offload_folder,
    )


def draft_spec(draft: Name | LanguageModel, options: DecodingOptions) -> ModelSpec:
    """Return the specification of the draft model ``draft``, which is loaded by ``options``."""
    if isinstance(draft, LanguageModel):
        return ModelSpec.of(draft)
    fastest = options.draft_dtype == AUTO
    precision = options.dtype if options.draft_dtype is None or fastest else options.draft_dtype
    return ModelSpec(
        name=draft,
        precision=CHECKPOINT if precision == AUTO else precision,
        device=ACCELERATOR if options.device == AUTO else options.device,
        trust_remote_code=options.trust_remote_code,
        graphs=options.graphs,
        fastest=fastest,
    )


def _drafting(options: DecodingOptions, verifier: VerifierSpec, call: Call) -> Drafting:
    """Return the drafting without a router."""
    if options.sample_arm:
        raise InputError("sample_arm: needs a router; name one")
    if isinstance(options.length, tuple | list):
        raise InputError("length: several lengths need a router with as many arms; give one length, or name a router")
    models, ngram = split_drafts(options.draft)
    draft = draft_spec(models[0], options) if models else None
    if draft is None and options.draft_exponent is not None and call == WHOLE:
        raise InputError(
            f"draft_exponent={options.draft_exponent:g}: there is no draft model; name one, or leave it out"
        )
    length = _length(options, verifier, call, draft, ngram)
    _check_tree(options, verifier, draft, length)
    search = _check_search(options, verifier, draft, length)
    if search is not None:
        tokens = _tokens(verifier, length)
        if ngram is not None:
            raise InputError(f"ngram: verifier={verifier.rule!r} drafts by beams; take another rule, or leave it out")
        if draft is not None:
            return Beams(draft, tokens, search)
        # A step of one token is sampled, since there is no joint choice (after Definition 3.1).
        return JointBeams(tokens, BeamSearch(1) if tokens == 1 else search)
    if (draft is None and ngram is None and length is None) or (length is not None and _drafts_nothing(length)):
        if not verifier.exact and (call == WHOLE or call.verifier is not None):
            raise InputError(
                f"verifier={verifier.name!r}: has no effect without drafts; leave it out, or name a draft and a length"
            )
        return Autoregressive(draft, None if length is None or _is_plain_fixed(length) else length)
    if ngram is not None:
        return _copying(options, ngram, draft, length, call)
    if draft is None:
        raise InputError("length: has no effect without a draft model; name one, or leave the length out")
    if isinstance(options.tree, str | tuple | list) and options.tree != AUTO_TREE:
        return Tree(draft, _children(options.tree), distinct=verifier.rule in (DISTINCT, INVARIANT))
    drafted = length or NamedLength(str(LENGTH), None, NoCosts())
    return GrownTree(draft, drafted) if options.tree == AUTO_TREE else Chain(draft, drafted)


def _length(
    options: DecodingOptions, verifier: VerifierSpec, call: Call, draft: ModelSpec | None, ngram: Ngram | None
) -> Length | None:
    """Return the length that ends a draft; None if the options leave it open."""
    length: Any = options.length
    if length is not None:
        check_length(length)
    named = length is not None and not isinstance(length, LengthController)
    if options.threshold is not None and not named:
        raise InputError(f"threshold={options.threshold}: belongs to a trained controller; name one as length")
    if options.cost is not None and call == WHOLE:
        copying = ngram is not None and not _holds_ngram(options.draft)
        if not copying and not (draft is not None and named):
            raise InputError("cost: would be ignored without a trained controller; name one as length, and a draft")
    elif options.adapt is True and call == WHOLE:
        raise InputError("adapt: corrects a cost while decoding, but cost is not set; give a cost, or cost='auto'")
    if options.copies is not None and ngram is None:
        raise InputError("copies: predicts n-gram drafts; name them, as in draft='ngram' or 'tiny-draft+ngram'")
    if options.draft_dtype is not None and draft is None:
        raise InputError(f"draft_dtype={options.draft_dtype!r}: there is no draft model; name one, or leave it out")
    if length is None or isinstance(length, LengthController):
        return None if length is None else ControllerLength(length)
    # The costs of a decoder apply to its own length and to copies.
    source = NoCosts() if call.length is not None else cost_source(options.cost, adapt=options.adapt)
    if ngram is not None and not takes_cost(str(length)):
        source = NoCosts()
    return named_length(length, options.threshold, source, draft is not None)


def named_length(length: Name | int, threshold: float | None, costs: CostSource, drafted: bool) -> NamedLength:
    """Return the specification of the length ``length``, after building a rule once to check its name.

    Args:
        length: the name, or a number of tokens.
        threshold: the stopping threshold, or None.
        costs: the source of costs.
        drafted: whether there is a draft model.
    """
    name = str(length)
    named = NamedLength(name, threshold, costs)
    rule = rule_of(named)
    if rule is not None and threshold is not None:
        raise InputError(
            f"threshold={threshold}: only for trained controllers, length={name!r} is a rule; leave it out"
        )
    if not isinstance(costs, NoCosts) and not takes_cost(name):
        raise InputError(
            f"cost: the rule {name!r} does not use costs; leave it out, or give a trained controller as length"
        )
    if rule is None and not drafted:
        raise InputError(f"length={name!r}: a trained controller needs a draft model; name one")
    return named


def rule_of(length: Length) -> LengthController | None:
    """Return a controller like that of ``length``, or the caller's; None for a trained one, which is not loaded.

    Raises:
        InputError: a rule's parameter is wrong, or a class cannot be imported or made.
    """
    if isinstance(length, ControllerLength):
        return length.controller
    costs = length.costs.cost if isinstance(length.costs, PresetCosts) else ASSUMED
    without_costs = isinstance(length.costs, NoCosts) or not takes_cost(length.name)
    return load_rule(length.name, None if without_costs else costs)


def grows_trees(length: LengthController | None) -> bool:
    """Return true if ``length`` predicts acceptance and has costs, which growing trees need."""
    if isinstance(length, RateOptimal):
        return not length.predictor.lag
    return isinstance(length, OnlineConfidence) and length.cost is not None


def check_growing(length: LengthController | None) -> None:
    """Check that ``length`` can grow trees.

    Raises:
        InputError: ``length`` predicts no acceptance, predicts it one token late, or has no costs.
    """
    if not grows_trees(length):
        raise InputError(
            "tree='auto': is grown by predicted acceptance and costs; give a lag-free or feature predictor or "
            "'online-confidence' as length, and cost"
        )


def _drafts_nothing(length: Length) -> bool:
    rule = rule_of(length)
    return isinstance(rule, Fixed) and rule.k == 0


def _is_plain_fixed(length: Length) -> bool:
    """Return true for a number of tokens, which observes nothing, and false for a user's class that derives from it."""
    return type(rule_of(length)) is Fixed


def _children(tree: Any) -> tuple[int, ...]:
    """Return the number of children at each level for ``"3x2x1"`` or (3, 2, 1)."""
    return parse_expansions(tree if isinstance(tree, str) else "x".join(map(str, tree)))


def _check_tree(
    options: DecodingOptions, verifier: VerifierSpec, draft: ModelSpec | None, length: Length | None
) -> None:
    if options.tree is None:
        return
    if options.tree == AUTO_TREE:
        if verifier.name not in (TOKEN_WISE, INVARIANT):
            raise InputError(
                f"verifier={verifier.name!r}: a tree='auto' is verified token-wise at every node, or by {INVARIANT}; "
                "leave the verifier out"
            )
        if draft is None:
            raise InputError("tree='auto': needs a draft model; name one, or give the tree's shape, as in '3x2x1'")
        rule = None if length is None else rule_of(length)
        # Whether trees can grow by a trained controller depends on its predictor's lag, which only the predictor has:
        # it is made of the weights and the draft's embedding, also of a user's kind. So `build` checks it.
        trained = isinstance(length, NamedLength) and rule is None and not isinstance(length.costs, NoCosts)
        if not trained:
            check_growing(rule)
        return
    _children(options.tree)
    if not RULES[verifier.rule].takes_trees:
        names = ", ".join(rule.name for rule in RULES.values() if rule.takes_trees)
        raise InputError(f"verifier={verifier.name!r}: verifies one chain; a tree needs one of {names}")
    if draft is None:
        raise InputError("tree: needs a draft model; name one, or leave the tree out")
    if length is not None:
        raise InputError("tree and length: a tree's levels are its length; give one of them")
    if split_drafts(options.draft)[1] is not None:
        raise InputError("ngram: n-gram drafts go with chains or tree='auto'; leave the tree out")


def _check_search(
    options: DecodingOptions, verifier: VerifierSpec, draft: ModelSpec | None, length: Length | None
) -> BeamSearch | None:
    """Return the settings of the beam search of a rule with beams; None for other rules."""
    beams: Any = options.beams
    if verifier.rule not in JOINT:
        if beams is not None or options.argmax:
            raise InputError(
                f"beams: only for {' and '.join(JOINT)}, not for verifier={verifier.rule!r}; leave them out"
            )
        return None
    if verifier.rule == "mtad" and draft is None:
        raise InputError("verifier='mtad': needs a draft model; name one, or take 'mtjd' without a draft")
    if verifier.rule == "mtjd" and draft is not None:
        raise InputError(
            "verifier='mtjd': the target decodes alone; leave the draft out (null), or take 'mtad' with it"
        )
    return beams if isinstance(beams, BeamSearch) else BeamSearch(beams or BeamSearch.width, options.argmax)


def _tokens(verifier: VerifierSpec, length: Length | None) -> int:
    """Return the number of tokens that a beam search chooses in a step."""
    if length is None:
        return LENGTH
    rule = rule_of(length)
    if not isinstance(rule, Fixed):
        raise InputError(f"length: verifier={verifier.rule!r} takes a number of tokens per step, not a stopping rule")
    if rule.k < 1:
        name = repr(length.name) if isinstance(length, NamedLength) and not length.name.isdecimal() else rule.k
        raise InputError(f"length={name}: verifier={verifier.rule!r} needs at least one token per step")
    return rule.k


def _copying(
    options: DecodingOptions, ngram: Ngram, draft: ModelSpec | None, length: Length | None, call: Call
) -> Copies | Mixed:
    """Return the drafting with copies from the text, with or without a draft model."""
    rule = None if length is None else rule_of(length)
    if isinstance(rule, Oracle):
        raise InputError("length='oracle': supports only draft models; leave the n-grams out")
    lookup = _lookup(ngram, options)
    if draft is None:
        if length is not None and lookup.predictor is not None:
            raise InputError("copies and length: both decide how many tokens are copied; give one of them")
        if isinstance(rule, AcceptanceLength | TrainedLength):
            raise InputError(
                "length: a trained controller needs a draft model's distributions, which n-gram drafts do not have; "
                "give a rule or a number of tokens, or leave it out to copy as many tokens as pay"
            )
        return Copies(lookup, length or WhilePaying())
    drafted = length or NamedLength(str(LENGTH), None, NoCosts())
    return Mixed(lookup, GrownTree(draft, drafted) if options.tree == AUTO_TREE else Chain(draft, drafted))


def _holds_ngram(draft: Any) -> bool:
    return isinstance(draft, tuple | list) and any(isinstance(entry, Ngram) for entry in draft)


def _lookup(ngram: Ngram, options: DecodingOptions) -> Lookup:
    """Return the settings of copies; an object that the caller passed has its own costs and predictor."""
    if _holds_ngram(options.draft):
        return _loaded_lookup(ngram)
    costs = NoCosts() if options.cost is None else cost_source(options.cost, adapt=options.adapt)
    return Lookup(ngram.longest, costs, options.copies)


def _loaded_lookup(ngram: Ngram) -> Lookup:
    costs: CostSource = NoCosts()
    if ngram.adapt or ngram.cost != ASSUMED:
        costs = PresetCosts(ngram.cost, "a cost model passed in Python", ngram.adapt)
    return Lookup(ngram.longest, costs, ngram.predictor)


def check_length(length: object) -> None:
    """Check that ``length`` is a number of tokens, a name or a length controller.

    Raises:
        InputError: ``length`` is something else.
    """
    if isinstance(length, bool | float):
        raise InputError(f"length={length!r}: give a number of tokens, a rule, or a controller")
    if not isinstance(length, str | Path | int | LengthController):
        raise InputError(f"length: of type {type(length).__name__}; give a number, a name, or a length controller")


# Routers


def _routed(options: DecodingOptions, verifier: VerifierSpec) -> Routed:
    """Return the drafting with a router and its arms."""
    if options.draft_dtype == AUTO:
        raise InputError(
            "draft_dtype='auto': supports a single draft; name a precision for the drafts of a router, or leave it out"
        )
    if options.tree is not None:
        raise InputError("tree and router: a router's arms draft chains; give one of them")
    if options.copies is not None:
        raise InputError("copies and router: a router's n-gram arm has no predictor; leave one of them out")
    if options.adapt is True or options.cost == AUTO:
        raise InputError(
            "adapt, cost='auto': not supported with a router, whose arms have different costs; give a cost file"
        )
    if verifier.rule in JOINT:
        raise InputError(f"verifier={verifier.name!r}: a router's arms draft chains; leave the router out")
    _check_search(options, verifier, None, None)
    router: Any = options.router
    if not isinstance(router, str | Path | Router):
        return _loaded_routing(router, options)
    if isinstance(router, Router) and options.sample_arm:
        raise InputError("sample_arm: has no effect on a router object; leave it out")
    names = _arm_names(router, options.draft)
    check_enough(names, "draft")
    kinds = [parse_arm(name)[0] for name in names]
    if options.draft_dtype is not None and DRAFT not in kinds:
        raise InputError(f"draft_dtype={options.draft_dtype!r}: no arm has a draft model; leave it out")
    length_option: Any = LENGTH if options.length is None else options.length
    lengths = length_option if isinstance(length_option, tuple | list) else (length_option,) * len(names)
    if len(lengths) != len(names):
        raise InputError(f"length: {len(lengths)} for {len(names)} arms; give one for all, or one for each")
    costs = cost_source(options.cost)
    arms = [
        RoutedArm(name, _arm(name, kind, length, costs, options))
        for name, kind, length in zip(names, kinds, lengths, strict=True)
    ]
    return Routed(router, tuple(arms), options.sample_arm)


def _arm(
    name: str, kind: str, length: Any, costs: CostSource, options: DecodingOptions
) -> Autoregressive | Chain | Copies:
    """Return the drafting of the arm ``name``; ``autoregressive`` and ``ngram`` accept no length."""
    if kind == AUTOREGRESSIVE:
        return Autoregressive()
    if kind == NGRAM_ARM:
        return Copies(Lookup(Ngram.longest, costs, None), WhilePaying())
    try:
        check_length(length)
        ends: Length
        if isinstance(length, LengthController):
            ends = ControllerLength(length)
        else:
            ends = named_length(length, options.threshold, costs, drafted=True)
        if isinstance(rule_of(ends), Oracle):
            raise InputError("length='oracle': not supported with a router; take another rule")
    except InputError as error:
        raise InputError(f"arm {name!r}: {error}") from error
    return Chain(draft_spec(name, options), ends)


def _arm_names(router: Name | Router, draft: Any) -> tuple[str, ...]:
    """Return the names of a router's arms: those in the option ``draft``, or those that it was trained with."""
    names = None if draft is None else tuple(map(str, draft)) if isinstance(draft, tuple | list) else (str(draft),)
    if isinstance(router, Router):
        if names is None:
            raise InputError("draft: a router object has no names of arms; give the drafts in the order of its arms")
        return names
    with naming("router", router):
        config = read_config(locate(router, option="router"))
    if not isinstance(config, RouterConfig):
        raise InputError(
            f"router={str(router)!r}: is of kind {config.kind!r}, which chooses no arm; give it as {config.option}"
        )
    if names is not None:
        return names
    # For a local model the checkpoint has the folder's name, which may be here or beside the checkpoint.
    sibling_folders = {arm.name: Path(router).expanduser().parent / arm.name for arm in config.arms}
    keeps_name = {name: Path(name).exists() or not path.is_dir() for name, path in sibling_folders.items()}
    return tuple(name if keeps_name[name] else str(path) for name, path in sibling_folders.items())


def _loaded_routing(routing: Routing, options: DecodingOptions) -> Routed:
    """Return the drafting with a router and arms that the caller has loaded."""
    if options.draft is not None or options.length is not None:
        raise InputError("routing: the arms have their own drafts and lengths; leave draft, length and tree out")
    arms: list[RoutedArm] = []
    for arm in routing.arms:
        length = ControllerLength(arm.length)
        drafting: Autoregressive | Chain | Copies = Autoregressive(None, None if _is_plain_fixed(length) else length)
        if arm.ngram is not None:
            drafting = Copies(_loaded_lookup(arm.ngram), WhilePaying())
        elif arm.model is not None:
            drafting = Chain(ModelSpec.of(arm.model), length)
        arms.append(RoutedArm(arm.name, drafting))
    return Routed(routing.router, tuple(arms), sample=False)


def _is_auto(name: object) -> bool:
    return isinstance(name, str) and name == AUTO
