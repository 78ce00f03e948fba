"""Results of replayed settings: the best value of a rule, and speeds by draft length.

Rules without training are tuned on one half of the prompts and judged on the other, both halves in turn, so that the
best of a grid owes nothing to luck.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..controllers.length import CumulativeConfidence, Fixed, LengthController
from ..controllers.length.cost_model import CostModel
from .decoders import ComparedDecoder
from .recorded import Counts, Rule, Setting, speed_of

FIXED, CONFIDENCE = "fixed length", "cumulative confidence"
AS_MEASURED = 0.0  # the parameter of a decoder at the costs that were measured

Replayed = Mapping[Setting, Sequence[Counts]]


class Family(NamedTuple):
    """A rule with a grid of values.

    Attributes:
        untuned: the value where nothing can be replayed.
        word: the rule of a value as for ``--length``.
        make: its controller.
    """

    values: Sequence[float]
    untuned: float
    word: str
    make: Callable[[float], LengthController]


FAMILIES: Mapping[str, Family] = {
    FIXED: Family((1, 2, 3, 4, 5, 6, 8, 10), 3, "{:g}", lambda k: Fixed(int(k))),
    CONFIDENCE: Family(
        (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8), 0.4, "cumulative-confidence:{:g}", CumulativeConfidence
    ),
}


def rule_of(family: str) -> Rule:
    """The rule whose parameters are the values of a family."""
    return Rule.untrained(family, FAMILIES[family].values, FAMILIES[family].make)


def word_of(family: str, value: float) -> str:
    """The rule of a value of a family as for ``--length``."""
    return FAMILIES[family].word.format(value)


def title(spec: ComparedDecoder) -> str:
    """The decoder's name, with the length of a tuned rule."""
    return f"{spec.name} {str(spec.length).rpartition(':')[2]}" if spec.name in FAMILIES else spec.name


def tuned(values: Sequence[float], family: str, replayed: Replayed, cost: CostModel) -> tuple[float, float, float]:
    """The value of a family for the even prompts, for the odd ones, and the best on all of them.

    The first is the best on the odd prompts, and the second on the even ones. Where one half says nothing, as of a
    single prompt, all three are the untuned value.
    """

    def speed(x: float, first: int, step: int) -> float:
        return speed_of(replayed[family, x][first::step], cost).value

    halves = ((1, 2), (0, 2), (0, 1))
    if (family, values[0]) not in replayed or not all(speed(values[0], *half) for half in halves):
        return (FAMILIES[family].untuned,) * 3
    odd, even, both = (max(values, key=lambda x: speed(x, *half)) for half in halves)
    return odd, even, both


def crossed(family: str, chosen: tuple[float, float, float], replayed: Replayed) -> list[Counts] | None:
    """Counters of a tuned family, each prompt's at the value tuned on the other half; None without a replay."""
    if (family, chosen[0]) not in replayed:
        return None
    both = [replayed[family, x] for x in chosen[:2]]
    return [both[index % 2][index] for index in range(len(both[0]))]


def at_ratio(ratio: float) -> CostModel:
    """Costs with which a drafted token takes ``ratio`` target forwards."""
    return CostModel(ratio, 1.0, 0.0)


def ratio_of(cost: CostModel) -> float:
    """The time of a drafted token to that of a round without drafts."""
    return cost.per_token / cost.round(0)


def by_length(replayed: Replayed, family: str, cost: CostModel) -> list[dict[str, float]]:
    """The speed-up, and its interval, of each draft length of a family of fixed lengths."""
    lengths = sorted(x for name, x in replayed if name == family)
    return [{"length": x, **speed_of(replayed[family, x], cost).as_dict()} for x in lengths]
