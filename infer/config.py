"""The decoder's configuration, and all checks of combinations.

:func:`check_options` checks the options before anything is loaded, :class:`DecoderConfig` what has been loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, TypeVar

from ..common.errors import InputError
from ..controllers.length import (
    MAX_DRAFT,
    AcceptanceLength,
    Fixed,
    LengthController,
    OnlineConfidence,
    Oracle,
    RateOptimal,
    TrainedLength,
)
from ..controllers.length.online_confidence_tree import OnlineConfidenceTree
from ..controllers.length.rate_optimal_tree import RateOptimalTree
from ..controllers.sampling import SamplingParams
from .core import Verifier
from .drafters.beams import Beams
from .drafters.ngram import NGRAM, Ngram, split_drafts
from .drafters.tree import AUTO_TREE, TreeShape, parse_expansions
from .options import AUTO, DecodingOptions
from .verify import LOSSY, SELECTIONS, candidates, parse_verifier
from .verify.otm import MOST, unknowns

JOINT = ("mtad", "mtjd")  # rules that search by beams
LENGTH = 4  # draft length of a decoder that is made of models, and where texts must not depend on time
LEARNING = "online-confidence"

D = TypeVar("D", bound=DecodingOptions)


def leaves_drafts_open(options: DecodingOptions) -> bool:
    """Whether one model drafts under a lossless rule, and nothing says how long."""
    length: Any = options.length
    if options.router is not None or length is not None or options.tree not in (None, AUTO_TREE):
        return False
    names, _ = split_drafts(options.drafts)
    return len(names) == 1 and parse_verifier(options.verifier)[0] not in LOSSY


def with_default_drafts(options: D) -> D:
    """``options`` with a configuration without training, where they leave open how to draft.

    Stopping by costs and confidences that are fitted while decoding, copies beside the model's draft, which is in the
    precision whose step is fastest here. Chains: trees were slower with the included pair.
    """
    if not leaves_drafts_open(options) or options.threshold is not None:
        return options
    (name,), ngram = split_drafts(options.drafts)
    return replace(
        options,
        length=LEARNING,
        cost=AUTO if options.cost is None else options.cost,
        adapt=True,
        draft=f"{name}+{NGRAM}" if ngram is None else options.draft,
        draft_dtype=options.draft_dtype or "auto",
    )


def check_options(options: DecodingOptions) -> None:
    """Check combinations of options, before anything is loaded.

    Raises:
        InputError: an option has no effect without another one, or two cannot be combined.
    """
    length: Any = options.length
    cost: Any = options.cost
    if options.router is not None:
        if options.draft_dtype == AUTO:
            raise InputError("draft_dtype='auto': times one draft; name a precision for a router's, or leave it out")
        if options.tree is not None:
            raise InputError("tree and router: a router's arms draft chains; give one of them")
        if options.copies is not None:
            raise InputError("copies and router: a router's n-gram arm has no predictor; leave one of them out")
        if options.adapt or cost == AUTO:
            raise InputError("adapt, cost='auto': arms differ in what they cost; give a router a cost file")
        return
    if options.sample_arm:
        raise InputError("sample_arm: needs a router; name one")
    if not isinstance(length, str | Path | int | LengthController | None):
        raise InputError("length: several are for the arms of a router; give one, or name a router")
    named = length is not None and not isinstance(length, LengthController)
    if options.threshold is not None and not named:
        raise InputError(f"threshold={options.threshold}: belongs to a trained controller; name one as length")
    drafts, ngram = split_drafts(options.drafts)
    if cost is not None and ngram is None and not (drafts and named):
        raise InputError("cost: tells a trained controller when to stop; name one as length, and a draft")
    if options.adapt and cost is None:
        raise InputError("adapt: corrects what a token costs; give the cost to begin with, or cost='auto'")
    if options.copies is not None and ngram is None:
        raise InputError("copies: predicts n-gram drafts; name them, as in draft='ngram' or 'tiny-draft+ngram'")
    if options.draft_dtype is not None and not drafts:
        raise InputError(f"draft_dtype={options.draft_dtype!r}: there is no draft model; name one, or leave it out")


def grows_trees(length: LengthController | None) -> bool:
    """Whether ``length`` predicts acceptance and knows costs, as a tree that grows by them needs."""
    if isinstance(length, RateOptimal):
        return not length.predictor.lag
    return isinstance(length, OnlineConfidence) and length.cost is not None


@dataclass(frozen=True)
class DecoderConfig:
    """The configuration of a decoder.

    Attributes:
        drafts: number of draft models, 0 or 1; 0 with a router, whose arms have their own.
        length: length controller of chains. Default: four tokens; for n-gram drafts as many tokens as pay; nothing
            without a draft.
        verifier: the verification rule, with its threshold if it has one.
        beams: beam search of MTAD and MTJD. Default: four beams, drawn.
        tree: number of children at each level of a tree draft, or ``"auto"`` for a tree grown by predicted acceptance
            and costs; None drafts chains.
        routed: whether a router chooses between arms for each prompt.
        ngram: settings of n-gram drafts, before or instead of the draft model; None for no n-gram drafts.

    Raises:
        InputError: settings cannot be combined, or one is out of range.
    """

    drafts: int = 0
    length: LengthController | None = None
    verifier: str = "token-wise"
    beams: Beams | None = None
    tree: TreeShape | None = None
    routed: bool = False
    ngram: Ngram | None = None

    def __post_init__(self) -> None:
        if self.drafts > 1:
            raise InputError(f"draft: {self.drafts} drafts, which only a router's arms can be; give one, or a router")
        if self.tree == AUTO_TREE:
            self._check_auto_tree()
        elif self.tree is not None:
            parse_expansions("x".join(map(str, self.tree)))
        if self.tree is not None and self.tree != AUTO_TREE and self.rule not in SELECTIONS:
            raise InputError(
                f"verifier={self.verifier!r}: verifies one chain; a tree needs one of {', '.join(SELECTIONS)}"
            )
        if self.routed:
            self._check_routed()
        elif self.tree is not None and self.tree != AUTO_TREE:
            self._check_tree()
        self._check_joint()
        if self.ngram is not None:
            self._check_ngram(self.ngram)
        drafted = self.drafts or self.ngram is not None
        nothing_to_stop = not (drafted or self.routed or self.rule == "mtjd" or self.length is None)
        if nothing_to_stop and not self.autoregressive:
            raise InputError("length: has no effect without a draft model; name one, or leave the length out")

    def _check_routed(self) -> None:
        if self.drafts or self.length is not None or self.tree is not None:
            raise InputError("routing: the arms have their own drafts and lengths; leave draft, length and tree out")
        if self.rule in JOINT:
            raise InputError(f"verifier={self.verifier!r}: a router's arms draft chains; leave the router out")

    def _check_auto_tree(self) -> None:
        if self.verifier != "token-wise":
            raise InputError(
                f"verifier={self.verifier!r}: a tree='auto' has a rule of its own, token-wise at every node; leave the "
                "verifier out"
            )
        if not self.drafts:
            raise InputError("tree='auto': needs a draft model; name one, or give the tree's shape, as in '3x2x1'")
        if not grows_trees(self.length):
            raise InputError(
                "tree='auto': is grown by predicted acceptance and costs; give a lag-free or feature predictor or "
                "'online-confidence' as length, and cost"
            )

    def _check_tree(self) -> None:
        if not self.drafts:
            raise InputError("tree: needs a draft model; name one, or leave the tree out")
        if self.length is not None:
            raise InputError("tree and length: a tree's levels are its length; give one of them")

    def _check_ngram(self, ngram: Ngram) -> None:
        if self.routed:
            raise InputError("ngram: with a router, name 'ngram' as one of the arms")
        if self.tree not in (None, AUTO_TREE):
            raise InputError("ngram: n-gram drafts go with chains or tree='auto'; leave the tree out")
        if self.rule in JOINT:
            raise InputError(f"ngram: verifier={self.rule!r} drafts by beams; take another rule, or leave it out")
        if isinstance(self.length, Oracle):
            raise InputError("length='oracle': supports only draft models; leave the n-grams out")
        if not self.drafts and self.length is not None and ngram.predictor is not None:
            raise InputError("copies and length: both decide how many tokens are copied; give one of them")
        if not self.drafts and isinstance(self.length, AcceptanceLength | TrainedLength):
            raise InputError(
                "length: a trained controller needs a draft model's distributions, which n-gram drafts do not have; "
                "give a rule or a number of tokens, or leave it out to copy as many tokens as pay"
            )

    def _check_joint(self) -> None:
        if self.rule not in JOINT:
            if self.beams is not None:
                raise InputError(
                    f"beams: only for {' and '.join(JOINT)}, not for verifier={self.rule!r}; leave them out"
                )
            return
        if self.rule == "mtad" and not self.drafts:
            raise InputError("verifier='mtad': needs a draft model; name one, or take 'mtjd' without a draft")
        if self.rule == "mtjd" and self.drafts:
            raise InputError(
                "verifier='mtjd': the target decodes alone; leave the draft out (null), or take 'mtad' with it"
            )
        if self.length is not None and not isinstance(self.length, Fixed):
            raise InputError(f"length: verifier={self.rule!r} takes a number of tokens per step, not a stopping rule")
        if self.length is not None and self.length.k < 1:
            raise InputError(f"length={self.length.k}: verifier={self.rule!r} needs at least one token per step")

    @property
    def autoregressive(self) -> bool:
        """Whether the length says that nothing is drafted, and so nothing copied either."""
        return isinstance(self.length, Fixed) and self.length.k == 0

    @cached_property
    def rule(self) -> str:
        """The verifier's name without its threshold."""
        return parse_verifier(self.verifier)[0]

    @property
    def verify(self) -> Verifier:
        return candidates if self.tree == AUTO_TREE else parse_verifier(self.verifier)[1]

    @cached_property
    def stopping(self) -> LengthController:
        """``length``, or its default."""
        if self.tree == AUTO_TREE and isinstance(self.length, RateOptimal):
            return RateOptimalTree.of(self.length)
        if self.tree == AUTO_TREE and isinstance(self.length, OnlineConfidence):
            return OnlineConfidenceTree(self.length)
        if self.length is not None:
            return self.length
        if self.ngram is not None and not self.drafts:
            return Fixed(MAX_DRAFT)  # the drafter decides
        return Fixed(LENGTH if self.drafts or self.rule in JOINT else 0)

    @cached_property
    def search(self) -> Beams | None:
        """Settings of the beam search; None if the rule does not search."""
        return (self.beams or Beams()) if self.rule in JOINT else None

    @property
    def joint_length(self) -> int:
        """γ of MTAD, K of MTJD."""
        assert isinstance(self.stopping, Fixed)
        return self.stopping.k

    @property
    def oracle(self) -> bool:
        return isinstance(self.stopping, Oracle)

    def check_sampling(self, sampling: SamplingParams, vocab_size: int) -> None:
        """Check that the rule supports the sampling parameters; ``vocab_size`` is the target's V.

        Raises:
            InputError: optimal transport would have too many unknowns, or there are more beams than possible tokens.
        """
        proposals = prod(self.tree) if isinstance(self.tree, tuple) else 1
        tokens = min(sampling.support or vocab_size, vocab_size)
        if self.rule == "otm" and unknowns(tokens, proposals) > MOST:
            raise InputError(
                f"verifier='otm' with {proposals} proposals over {tokens} tokens: too large a linear program; "
                "take a smaller top_k or tree"
            )
        if self.search is not None:
            self.search.check_sampling(sampling, vocab_size)
