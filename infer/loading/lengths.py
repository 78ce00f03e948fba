"""Loads length controllers by name for a loaded pair."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from ...common.errors import InputError
from ...controllers.checkpoints.content import controller_digest
from ...controllers.checkpoints.fingerprint import PairFingerprint
from ...controllers.checkpoints.provenance import EXACT
from ...controllers.length import LengthController, load_trained, names_rule, parse_rule, takes_cost
from ...controllers.length.cost_model import CostModel
from ...controllers.sampling import SamplingParams
from ..models import GgufModel, LanguageModel, LoadedModel, output_embedding
from ..models.devices import input_device
from ..step_times import step_times

AUTO = "auto"  # measure the cost when the decoder is made
QUICK = 15  # repetitions of that measurement


def load_length(
    spec: str,
    target: LoadedModel,
    draft: LoadedModel | None,
    tokenizer: PreTrainedTokenizerBase | None,
    threshold: float | None = None,
    cost: CostModel | None = None,
    pair_check: str = EXACT,
) -> LengthController:
    """The length controller named ``spec``: a rule, or a trained one (shipped, local or on the hub).

    Raises:
        InputError: there is no such rule or controller, it was trained for another pair, or it cannot use ``cost``.
    """
    rule = parse_rule(spec, cost)
    if rule is not None and threshold is not None:
        raise InputError(
            f"threshold={threshold}: only for trained controllers, length={spec!r} is a rule; leave it out"
        )
    if cost is not None and not takes_cost(spec):
        raise InputError(
            f"cost: the rule {spec!r} does not use costs; leave it out, or give a trained controller as length"
        )
    if rule is not None:
        return rule
    if draft is None:
        raise InputError(f"length={spec!r}: a trained controller needs a draft model; name one")
    if tokenizer is None:
        raise InputError(f"length={spec!r}: a trained controller is checked against the tokenizer; pass one")
    return load_trained(
        spec,
        PairFingerprint.of(target, draft, tokenizer),
        target.device if isinstance(target, GgufModel) else input_device(target),
        output_embedding(draft),
        threshold=threshold,
        cost=cost,
        pair_check=pair_check,
    )


def length_digest(length: str | int | None) -> str | None:
    """The digest of the trained controller named by ``length``; None for a number, a rule or None."""
    if length is None or names_rule(str(length)):
        return None
    return controller_digest(str(length))


def quick_costs(target: LanguageModel, draft: LanguageModel | None) -> CostModel:
    """Rough costs of a pair, or of a target alone, measured in about a second: initial costs for adaptation."""
    # Any text will do. The sampling parameters are typical ones that keep few tokens.
    return step_times(target, [] if draft is None else [draft], [0] * 32, SamplingParams(1.0, 50), QUICK)[0]
