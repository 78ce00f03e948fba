"""Tuned values of replayed rules, and speeds by draft length.

Rules without training are tuned on one half of the prompts and evaluated on the other half, in both directions, so that
no value is selected on the prompts that it is evaluated on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..controllers.length import CumulativeConfidence, Fixed, LengthController
from ..controllers.length.cost_model import CostModel
from .decoders import ComparedDecoder
from .recorded import Counts, Rule, Setting, speed_of
from .results import LengthSpeed

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
    """Return the rule whose parameters are the values of a family."""
    return Rule.untrained(family, FAMILIES[family].values, FAMILIES[family].make)


def word_of(family: str, value: float) -> str:
    """Return the rule of a value of a family as a word of ``--length``."""
    return FAMILIES[family].word.format(value)


def title(spec: ComparedDecoder) -> str:
    """Return the decoder's name, with the value of a tuned rule."""
    return f"{spec.name} {str(spec.length).rpartition(':')[2]}" if spec.name in FAMILIES else spec.name


class Tuned(NamedTuple):
    """The values of a family that are the fastest by replay.

    Attributes:
        even: for the prompts of even index; it is the best on the odd ones.
        odd: for the prompts of odd index; it is the best on the even ones.
        best: the best on all prompts.
    """

    even: float
    odd: float
    best: float


def tuned(values: Sequence[float], family: str, replayed: Replayed, cost: CostModel) -> Tuned:
    """Return the best ``values`` of a family; the untuned value if a half of the prompts generated nothing."""

    def speed(x: float, first: int, step: int) -> float:
        return speed_of(replayed[family, x][first::step], cost).value

    halves = ((1, 2), (0, 2), (0, 1))
    if (family, values[0]) not in replayed or not all(speed(values[0], *half) for half in halves):
        return Tuned(*(FAMILIES[family].untuned,) * 3)
    return Tuned(*(max(values, key=lambda x: speed(x, *half)) for half in halves))


def crossed(family: str, values: Tuned, replayed: Replayed) -> list[Counts] | None:
    """Return counters of a tuned family, each prompt with the value of the other half; None without a replay."""
    if (family, values.even) not in replayed:
        return None
    halves = [replayed[family, values.even], replayed[family, values.odd]]
    return [halves[index % 2][index] for index in range(len(halves[0]))]


def at_ratio(ratio: float) -> CostModel:
    """Return costs with which a drafted token takes ``ratio`` target forwards."""
    return CostModel(ratio, 1.0, 0.0)


def ratio_of(cost: CostModel) -> float:
    """Return the time of a drafted token over that of a round without drafts."""
    return cost.per_token / cost.round(0)


def by_length(replayed: Replayed, family: str, cost: CostModel) -> list[LengthSpeed]:
    """Return the speed-up of each draft length of a family of fixed lengths."""
    lengths = sorted(x for name, x in replayed if name == family)
    speeds = ((x, speed_of(replayed[family, x], cost)) for x in lengths)
    return [LengthSpeed(x, speed.value, speed.low, speed.high) for x, speed in speeds]
