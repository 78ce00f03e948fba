"""Drafted tokens as columns: how many are accepted, how well that is predicted, and where it drifted.

They are those of a dataset (:mod:`.labelled`), or of a replay in which drafts go on until a token is rejected. Each
follows accepted ones, so that the target decides on it. Shapes: M tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..controllers.acceptance.predictor import AcceptancePredictor
from ..controllers.checkpoints.card import shortcomings
from ..controllers.length import LengthController, Step
from ..data_gen.prompts import PromptRow
from ..simulate.replay import TracedStep, replay
from ..simulate.trace import Trace
from ..train.metrics import measured
from .drift import Array, drifts, mean_interval, sums_of
from .interval import ENOUGH
from .recorded import Measure

ALL = "all"
UNKNOWN = ""  # the group of a token that is in none
OWN = "the draft's own confidence"
DEPTHS = range(8)  # tokens of a round; those after the last are one group
FEW = 30  # tokens below which a metric is noise

Groups = dict[str, dict[str, Any]]  # figures by group
Labels = NDArray[np.str_]


@dataclass(frozen=True)
class Drafted:
    """M drafted tokens.

    Attributes:
        prompts: (M,) the prompt of each.
        accept: (M,) its acceptance probability.
        groups: (M,) labels by each way to group them; by the first one, predictors are judged.
        predictions: (M,) by predictor, with ``OWN`` first; NaN where it was not asked.
    """

    prompts: Labels
    accept: Array
    groups: Mapping[str, Labels]
    predictions: Mapping[str, Array]

    @property
    def along(self) -> str:
        """The first way to group them, by a place."""
        return next(iter(self.groups))

    def masks(self) -> dict[tuple[str, str], NDArray[np.bool_]]:
        """(M,) whether each is in a group, by (way, group), all of them first; a way with one group is left out."""
        found = {(ALL, ALL): np.ones(len(self.accept), bool)}
        for way, labels in self.groups.items():
            names = _names(labels)
            if len(names) > 1:
                found |= {(way, name): labels == name for name in names}
        return found

    def acceptance(self) -> dict[str, Groups]:
        """Mean acceptance by way and group, with 95 % intervals over prompts where there are enough."""
        return self._acceptance(self.masks())

    def lines(self) -> dict[str, Groups]:
        """Acceptance along the draft, or the text: of all tokens, and of each domain, or else temperature."""
        masks, places = self.masks(), self.groups[self.along]
        ways = {way for way, _ in masks}
        split = next((way for way in ("domain", "temperature") if way in ways), ALL)
        return self._acceptance(
            {
                (group, place): mask & (places == place)
                for (way, group), mask in masks.items()
                if way in (ALL, split)
                for place in _names(places)
            }
        )

    def _acceptance(self, masks: Mapping[tuple[str, str], NDArray[np.bool_]]) -> dict[str, Groups]:
        found: dict[str, Groups] = {}
        if not masks:
            return found
        _, sums = sums_of(self.prompts, self.accept, [*masks.values()])
        for (way, group), mean, low, high, drafted in zip(masks, *mean_interval(sums), sums.drafted.T, strict=True):
            prompts, tokens = int((drafted > 0).sum()), int(drafted.sum())
            if tokens:
                bounds = {"low": float(low), "high": float(high)} if prompts >= ENOUGH else {}
                counts = {"tokens": tokens, "prompts": prompts}
                found.setdefault(way, {})[group] = {"acceptance": float(mean), **bounds, **counts}
        return found

    def quality(self) -> dict[str, Groups]:
        """Metrics and reliability of each predictor (:mod:`..train.metrics`), of all tokens and by place if not few.

        ``brier_constant`` is the Brier score of the best constant, the mean. AUROC is None if all labels are 0 or 1.
        """
        labels, found = self.groups[self.along], dict[str, Groups]()
        for name, values in self.predictions.items():
            known = ~np.isnan(values)
            groups = {ALL: known, **{group: known & (labels == group) for group in _names(labels)}}
            for group, mask in groups.items():
                if mask.sum() >= FEW:
                    metrics = measured(values[mask], self.accept[mask])
                    numbers = metrics.compute() | {"brier_constant": float(np.var(self.accept[mask]))}
                    finite = {key: value if np.isfinite(value) else None for key, value in numbers.items()}
                    table = [vars(row) for row in metrics.reliability()]
                    found.setdefault(name, {})[group] = {**finite, "tokens": int(mask.sum()), "reliability": table}
        return found

    def figures(self) -> dict[str, Any]:
        """What a report shows of them, as JSON values."""
        return {
            "along": self.along,
            "acceptance": self.acceptance(),
            "lines": self.lines(),
            "predictors": self.quality(),
        }


def drift_of(first: Drafted, second: Drafted) -> dict[str, Groups]:
    """The drift of each group that both have, by way and group; see :func:`.drifts`."""
    masks, others = first.masks(), second.masks()
    common = [
        (way, group) for way, labels in first.groups.items() for group in _names(labels)
        if group in second.groups.get(way, ()) and ((way, group) in masks or (way, group) in others)
    ]  # fmt: skip
    groups = [(ALL, ALL), *common]
    one, other = (
        sums_of(each.prompts, each.accept, [way == ALL or each.groups[way] == group for way, group in groups])
        for each in (first, second)
    )
    found: dict[str, Groups] = {}
    for (way, group), drift in zip(groups, drifts(one, other), strict=True):
        found.setdefault(way, {})[group] = drift._asdict() | {"difference": drift.difference, "found": drift.found}
    return found


def judgements(predictors: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Which predictors are worse than a constant or than the draft's own confidence."""
    own = predictors.get(OWN, {}).get(ALL, {}).get("auroc")
    return [
        f"What {name} predicts is {words}."
        for name, groups in predictors.items() if name != OWN
        for words in shortcomings({**groups[ALL], "auroc_draft": own})
    ]  # fmt: skip


def between(edges: Sequence[int], values: Sequence[int]) -> Labels:
    """(M,) the interval of whole numbers that each of ``values`` (M,) is in, counted from 1."""
    starts = [edge + 1 for edge in edges]
    names = [str(low) if low + 1 == end else f"{low}–{end - 1}" for low, end in pairwise(starts)]
    return np.array([*names, f"{starts[-1]} and more"])[np.searchsorted(edges, values, side="right") - 1]


def start_of(group: str) -> float:
    """The number that a group's name begins with; infinite for other names."""
    try:
        return float(group.partition("–")[0].partition(" ")[0])
    except ValueError:
        return float("inf")


def _names(labels: Labels) -> list[str]:
    """The groups among labels, by number or name."""
    return sorted({*labels.tolist()} - {UNKNOWN}, key=lambda name: (start_of(name), name))


# of a replay

DIGITS = 5


class Check(NamedTuple):
    """The token's place in the trace, its position in the draft (from 1), predicted and true acceptance probability."""

    node: int
    position: int
    predicted: float
    accept: float


class Observer(LengthController):
    """Drafts until a token is rejected, and asks ``predictor`` for every token that is checked.

    Args:
        predictor: None for the draft's own confidence.

    Attributes:
        checks: those of all rounds.
    """

    def __init__(self, trace: Trace, predictor: AcceptancePredictor | None) -> None:
        self.trace, self.predictor = trace, predictor
        self.lag = 0 if predictor is None else predictor.lag
        self.checks: list[Check] = []
        self.nodes: list[int] = []

    def start_round(self) -> bool:
        self.nodes = []
        return True

    def observe(self, step: Step) -> bool:
        assert isinstance(step, TracedStep)
        self.nodes.append(step.node)
        if step.index <= self.lag:
            return True
        node = self.nodes[-1 - self.lag]
        predicted = step.confidence() if self.predictor is None else self.predictor.predict(step)
        accept = self.trace.accept[node]
        self.checks.append(Check(node, step.index - self.lag, round(predicted, DIGITS), round(accept, DIGITS)))
        return self.trace.kept[node]


def observing(
    predictor: AcceptancePredictor | None, identity: Mapping[str, Any], stop_tokens: frozenset[int]
) -> Measure:
    """The checks of each trace."""

    def of(traces: Sequence[Trace]) -> list[list[Check]]:
        observers = [Observer(traced, predictor) for traced in traces]
        for observer in observers:
            replay(observer.trace, observer, stop_tokens)
        return [observer.checks for observer in observers]

    return Measure({"checks": dict(identity), "fields": list(Check._fields)}, of)


def drafted_of(checks: Mapping[str, Sequence[Sequence[Check]]], rows: Sequence[PromptRow]) -> Drafted:
    """The checks of every prompt as columns, by predictor: ``OWN`` has all of them, one that lags not the last ones."""
    found = [(index, check) for index, of in enumerate(checks[OWN]) for check in of]
    by_place = {
        name: {(index, check.node): check.predicted for index, of in enumerate(each) for check in of}
        for name, each in checks.items()
    }
    groups = {
        "depth": between(DEPTHS, [check.position - 1 for _, check in found]),
        "domain": np.array([rows[index].domain for index, _ in found]),
    }
    predictions = {
        name: np.array([predicted.get((index, check.node), np.nan) for index, check in found])
        for name, predicted in by_place.items()
    }
    accept = np.array([check.accept for _, check in found])
    return Drafted(np.array([str(index) for index, _ in found]), accept, groups, predictions)
