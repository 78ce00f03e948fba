"""Length controllers by name, for a pair that is loaded."""

from __future__ import annotations

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..controllers.checkpoints.content import controller_digest
from ..controllers.checkpoints.fingerprint import PairFingerprint
from ..controllers.errors import InputError
from ..controllers.length import LengthController, load_trained, names_rule, parse_rule, takes_cost
from ..controllers.length.cost_model import CostModel
from ..controllers.sampling import SamplingParams
from .devices import input_device
from .models import language_model
from .step_times import step_times

AUTO = "auto"  # a cost that is measured when the decoder is made
QUICK = 15  # times that it is measured


def load_length(
    spec: str,
    target: PreTrainedModel,
    draft: PreTrainedModel | None,
    tokenizer: PreTrainedTokenizerBase | None,
    threshold: float | None = None,
    cost: CostModel | None = None,
) -> LengthController:
    """The length controller ``spec`` names: a rule, or a trained one (shipped, local or on the hub).

    Raises:
        InputError: no such rule or controller, or it was trained for another pair, or it does not go by cost.
    """
    rule = parse_rule(spec, cost)
    if rule is not None and threshold is not None:
        raise InputError(f"threshold={threshold}: only a trained head has one; length={spec!r} names its own")
    if cost is not None and not takes_cost(spec):
        raise InputError(
            f"cost: the rule {spec!r} does not ask what a token costs; give a trained controller as length"
        )
    if rule is not None:
        return rule
    if draft is None:
        raise InputError(f"length={spec!r}: without a draft model there is nothing to judge; name one")
    if tokenizer is None:
        raise InputError(f"length={spec!r}: a trained controller is checked against the tokenizer; pass one")
    return load_trained(
        spec,
        PairFingerprint.of(target, draft, tokenizer),
        input_device(target),
        draft.get_output_embeddings().weight,
        threshold=threshold,
        cost=cost,
    )


def length_digest(length: str | int | None) -> str | None:
    """The digest of the trained controller that ``length`` names; None for a number, a rule and None."""
    if length is None or names_rule(str(length)):
        return None
    return controller_digest(str(length))


def quick_costs(target: PreTrainedModel, draft: PreTrainedModel | None) -> CostModel:
    """Costs of a pair, or of a target alone, measured in a second or so: a beginning for a controller that adapts."""
    drafts = [] if draft is None else [language_model(draft)]
    # The text does not matter, nor does what follows it; under a sampling that keeps few tokens, as is usual.
    return step_times(language_model(target), drafts, [0] * 32, SamplingParams(1.0, 50), QUICK)[0]
