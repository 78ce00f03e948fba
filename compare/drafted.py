"""Drafted tokens as columns: acceptance by group, quality of predictions, and drift between two datasets.

The drafted tokens come from a dataset (:mod:`.labelled`), or from a replay in which every draft ends with a rejected
token. All tokens of the round before a drafted token were accepted, so that the target decides on it. Shapes: M tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..common.record import Identity
from ..controllers.acceptance.metrics import measured
from ..controllers.acceptance.predictor import AcceptancePredictor
from ..controllers.checkpoints.card import judgement
from ..controllers.length import LengthController, Step
from ..data_gen.prompts import PromptRow
from ..simulate.replay import TracedStep, replay
from ..simulate.trace import Trace
from .drift import Array, Drift, drifts, mean_interval, sums_of
from .interval import ENOUGH
from .recorded import Measure
from .results import GroupAcceptance, PredictorQuality

ALL = "all"
UNKNOWN = ""  # the group of tokens without a group
DRAFT_CONFIDENCE = "the draft's own confidence"
DEPTHS = range(8)  # tokens of a round; all later tokens are a single group
FEW = 30  # number of tokens below which a metric is noise

Labels = NDArray[np.str_]


@dataclass(frozen=True)
class Drafted:
    """M drafted tokens.

    Attributes:
        prompts: the prompt of each token (M,).
        accept: the acceptance probability of each token (M,).
        groups: labels (M,) by grouping, such as ``domain``; predictors are evaluated by the first grouping.
        predictions: predicted acceptance (M,) by predictor, ``DRAFT_CONFIDENCE`` first; NaN without a prediction.
    """

    prompts: Labels
    accept: Array
    groups: Mapping[str, Labels]
    predictions: Mapping[str, Array]

    @property
    def place_grouping(self) -> str:
        """The first grouping of the tokens: ``depth`` in the round or ``position`` in the text."""
        return next(iter(self.groups))

    def masks(self) -> dict[tuple[str, str], NDArray[np.bool_]]:
        """Return membership (M,) by (grouping, group), with the group of all tokens first.

        Groupings with one group are left out.
        """
        members = {(ALL, ALL): np.ones(len(self.accept), bool)}
        for grouping, labels in self.groups.items():
            names = _names(labels)
            if len(names) > 1:
                members |= {(grouping, name): labels == name for name in names}
        return members

    def acceptance(self) -> dict[str, dict[str, GroupAcceptance]]:
        """Return the mean acceptance by grouping and group, with 95 % intervals if there are enough prompts."""
        return self._acceptance(self.masks())

    def lines(self) -> dict[str, dict[str, GroupAcceptance]]:
        """Return acceptance by position: of all tokens, and of each domain, or without domains of each temperature."""
        masks, places = self.masks(), self.groups[self.place_grouping]
        groupings = {grouping for grouping, _ in masks}
        split = next((grouping for grouping in ("domain", "temperature") if grouping in groupings), ALL)
        return self._acceptance(
            {
                (group, position): mask & (places == position)
                for (grouping, group), mask in masks.items()
                if grouping in (ALL, split)
                for position in _names(places)
            }
        )

    def _acceptance(self, masks: Mapping[tuple[str, str], NDArray[np.bool_]]) -> dict[str, dict[str, GroupAcceptance]]:
        results: dict[str, dict[str, GroupAcceptance]] = {}
        if not masks:
            return results
        _, sums = sums_of(self.prompts, self.accept, [*masks.values()])
        for (grouping, group), mean, low, high, drafted in zip(
            masks, *mean_interval(sums), sums.drafted.T, strict=True
        ):
            prompts, tokens = int((drafted > 0).sum()), int(drafted.sum())
            if tokens:
                bounds = (float(low), float(high)) if prompts >= ENOUGH else (None, None)
                results.setdefault(grouping, {})[group] = GroupAcceptance(float(mean), tokens, prompts, *bounds)
        return results

    def quality(self) -> dict[str, dict[str, PredictorQuality]]:
        """Return the quality of each predictor, on all tokens (``ALL``) and on each group of ``FEW`` tokens or more."""
        labels = self.groups[self.place_grouping]
        results: dict[str, dict[str, PredictorQuality]] = {}
        for name, values in self.predictions.items():
            predicted = ~np.isnan(values)
            groups = {ALL: predicted, **{group: predicted & (labels == group) for group in _names(labels)}}
            for group, mask in groups.items():
                if mask.sum() >= FEW:
                    results.setdefault(name, {})[group] = _quality(values[mask], self.accept[mask])
        return results


def _quality(predicted: Array, accept: Array) -> PredictorQuality:
    """Return the quality of predictions (M,) of the acceptance probabilities ``accept`` (M,)."""
    metrics = measured(predicted, accept)
    values = metrics.compute() | {"brier_constant": float(np.var(accept))}
    finite = {name: value if np.isfinite(value) else None for name, value in values.items()}
    return PredictorQuality(**finite, tokens=len(accept), reliability=metrics.reliability())


def drift_of(first: Drafted, second: Drafted) -> dict[str, dict[str, Drift]]:
    """Return the drift of each group that both datasets have, by grouping and group; see :func:`.drifts`."""
    masks, second_masks = first.masks(), second.masks()
    common = [
        (grouping, group) for grouping, labels in first.groups.items() for group in _names(labels)
        if group in second.groups.get(grouping, ())
        and ((grouping, group) in masks or (grouping, group) in second_masks)
    ]  # fmt: skip
    groups = [(ALL, ALL), *common]
    first_sums, second_sums = (
        sums_of(
            drafted.prompts,
            drafted.accept,
            [grouping == ALL or drafted.groups[grouping] == group for grouping, group in groups],
        )
        for drafted in (first, second)
    )
    results: dict[str, dict[str, Drift]] = {}
    for (grouping, group), drift in zip(groups, drifts(first_sums, second_sums), strict=True):
        results.setdefault(grouping, {})[group] = drift
    return results


def judgements(predictors: Mapping[str, Mapping[str, PredictorQuality]]) -> list[str]:
    """Return a sentence about each predictor that is worse than a constant or than the draft's own confidence."""
    confidence = predictors[DRAFT_CONFIDENCE][ALL].auroc if ALL in predictors.get(DRAFT_CONFIDENCE, {}) else None
    phrases = {
        name: _judgement(groups[ALL], confidence) for name, groups in predictors.items() if name != DRAFT_CONFIDENCE
    }  # fmt: skip
    return [f"{name} {phrase}." for name, phrase in phrases.items() if phrase]


def _judgement(quality: PredictorQuality, confidence: float | None) -> str:
    """Return a phrase with the strengths and weaknesses of a predictor; empty if it has no weakness.

    Args:
        confidence: the AUROC of the draft's own confidence; None if it is not known.
    """
    return judgement(
        {
            "kl": quality.kl, "kl_constant": quality.kl_constant, "brier": quality.brier,
            "brier_constant": quality.brier_constant, "auroc": quality.auroc, "auroc_draft": confidence,
        }
    )  # fmt: skip


def between(edges: Sequence[int], values: Sequence[int]) -> Labels:
    """Return the name (M,) of the interval that each of ``values`` (M,) is in, such as ``"3–4"`` or ``"9 and more"``.

    Args:
        edges: the smallest value of each interval, ascending; the last interval has no end.
        values: whole numbers from ``edges[0]`` on. Names count from 1: the value 0 is called 1.
    """
    starts = [edge + 1 for edge in edges]
    names = [str(low) if low + 1 == end else f"{low}–{end - 1}" for low, end in pairwise(starts)]
    return np.array([*names, f"{starts[-1]} and more"])[np.searchsorted(edges, values, side="right") - 1]


def start_of(group: str) -> float:
    """Return the number at the beginning of a group's name; infinite for other names."""
    try:
        return float(group.partition("–")[0].partition(" ")[0])
    except ValueError:
        return float("inf")


def _names(labels: Labels) -> list[str]:
    """Return the groups among labels, sorted by number or name."""
    return sorted({*labels.tolist()} - {UNKNOWN}, key=lambda name: (start_of(name), name))


# of a replay

DIGITS = 5


class Check(NamedTuple):
    """A drafted token that was verified, with its predicted and its true acceptance probability.

    Attributes:
        node: index of the token in the trace.
        position: position in the draft, from 1.
        predicted, accept: predicted and true probability that the token is accepted.
    """

    node: int
    position: int
    predicted: float
    accept: float


class Observer(LengthController):
    """A length controller that drafts until a token is rejected, and records predictions of acceptance.

    Args:
        predictor: predicts acceptance; None for the draft's own confidence.

    Attributes:
        checks: the checked tokens of all rounds.
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


def observing(predictor: AcceptancePredictor | None, identity: Identity, stop_tokens: frozenset[int]) -> Measure:
    """Return a measure of the checks of each trace, for a predictor with ``identity``."""

    def of(traces: Sequence[Trace]) -> list[list[Check]]:
        observers = [Observer(traced, predictor) for traced in traces]
        for observer in observers:
            replay(observer.trace, observer, stop_tokens)
        return [observer.checks for observer in observers]

    return Measure({"checks": dict(identity), "fields": list(Check._fields)}, of)


def drafted_of(checks: Mapping[str, Sequence[Sequence[Check]]], rows: Sequence[PromptRow]) -> Drafted:
    """Return the checks of every prompt as columns.

    Args:
        checks: checks by predictor and prompt. ``DRAFT_CONFIDENCE`` has every checked token; a predictor with a lag
            lacks the last tokens.
        rows: the prompts.
    """
    tokens = [(index, check) for index, of_prompt in enumerate(checks[DRAFT_CONFIDENCE]) for check in of_prompt]
    by_place = {
        name: {(index, check.node): check.predicted for index, of_prompt in enumerate(prompts) for check in of_prompt}
        for name, prompts in checks.items()
    }
    groups = {
        "depth": between(DEPTHS, [check.position - 1 for _, check in tokens]),
        "domain": np.array([rows[index].domain for index, _ in tokens]),
    }
    predictions = {
        name: np.array([predicted.get((index, check.node), np.nan) for index, check in tokens])
        for name, predicted in by_place.items()
    }
    accept = np.array([check.accept for _, check in tokens])
    return Drafted(np.array([str(index) for index, _ in tokens]), accept, groups, predictions)
