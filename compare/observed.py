"""What a report shows beside the speeds: acceptance by position, predictors' calibration, and who wrote a text.

A *check* is a drafted token whose earlier ones were all accepted, so that the target decides on it: its position in the
draft (from 1), its predicted and its true acceptance probability. Checks are those of drafts that go on until a token
is rejected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isnan
from typing import Any

import torch

from ..controllers.acceptance.predictor import AcceptancePredictor
from ..controllers.length import LengthController, Step
from ..infer.decoder import SpeculativeDecoder
from ..infer.generation import Generation
from ..infer.text_stream import TextStream, decode
from ..simulate.replay import TracedStep, replay
from ..simulate.trace import Trace
from ..train.metrics import StreamedMetrics, metrics_of
from .recorded import Measure

Check = tuple[int, float, float]  # position, predicted, acceptance probability

FEW = 20  # checks below which a mean or a metric is noise
DEEP = 5  # positions from which on metrics are taken together
ALL = "all"  # checks of every domain
DIGITS = 5
TARGET, DRAFT, COPY, REJECTED = "target", "draft", "copy", "rejected"  # who wrote a piece of a text


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
        self.checks.append((step.index - self.lag, round(predicted, DIGITS), round(accept, DIGITS)))
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

    return Measure({"checks": dict(identity)}, of)


def acceptance_by_position(
    checks: Sequence[Sequence[Check]], domains: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """For each domain and position the number of checks and the accepted share; few are left out.

    Args:
        checks: of every prompt.
        domains: of every prompt; with more than one, ``"all"`` comes first.
    """
    several = [ALL] if len({*domains}) != 1 else []
    found = {}
    for domain in [*several, *sorted({*domains})]:
        of_domain = [of for own, of in zip(domains, checks, strict=True) if domain in (ALL, own)]
        found[domain] = _positions([check for of in of_domain for check in of])
    return {domain: positions for domain, positions in found.items() if positions}


def _positions(checks: Sequence[Check]) -> list[dict[str, Any]]:
    found = []
    for position in range(1, max((check[0] for check in checks), default=0) + 1):
        accepted = [accept for at, _, accept in checks if at == position]
        if len(accepted) < FEW:
            break
        found.append({"position": position, "count": len(accepted), "accepted": sum(accepted) / len(accepted)})
    return found


def calibration(checks: Sequence[Check]) -> dict[str, Any] | None:
    """Metrics of all checks and by position, and the reliability table; None where there are too few.

    Metrics are those of :mod:`..train.metrics`; ``brier_constant`` is the Brier score of the best constant.
    """
    depths = {str(depth): [check for check in checks if check[0] == depth] for depth in range(1, DEEP)}
    depths[f"{DEEP}+"] = [check for check in checks if check[0] >= DEEP]
    total = _metrics(checks)
    if total is None:
        return None
    by_depth = [{"position": depth, **metrics} for depth, of in depths.items() if (metrics := _metrics(of)) is not None]
    return total | {"reliability": [asdict(row) for row in _streamed(checks).reliability()], "positions": by_depth}


def _metrics(checks: Sequence[Check]) -> dict[str, Any] | None:
    if len(checks) < FEW:
        return None
    found = _streamed(checks).compute()
    accept = torch.tensor([check[2] for check in checks], dtype=torch.float64)
    shown = {name: None if isnan(found[name]) else found[name] for name in ("brier", "ece", "auroc")}
    return {"count": len(checks), **shown, "brier_constant": float(accept.var(correction=0))}


def _streamed(checks: Sequence[Check]) -> StreamedMetrics:
    _, predicted, accept = torch.tensor(checks, dtype=torch.float64).T
    return metrics_of(torch.logit(predicted, eps=1e-7), accept)


def token_mosaic(generation: Generation, decoder: SpeculativeDecoder) -> list[dict[str, str]]:
    """Pieces of a text in order, each with who wrote it: ``target``, ``draft``, ``copy``, or ``rejected`` drafts."""
    tokenizer = decoder.tokenizer
    assert tokenizer is not None
    stream = TextStream(tokenizer)
    found = []
    for round_ in generation.rounds:
        lost = [token for node, token in enumerate(round_.drafted) if node not in round_.path]
        for index, token in enumerate(round_.emitted):
            if index == round_.accepted and lost:
                found.append({"by": REJECTED, "text": decode(tokenizer, lost)})
            drafted = index < round_.accepted
            copied = drafted and (not decoder.drafts or round_.path[index] < round_.copied)
            found.append({"by": COPY if copied else DRAFT if drafted else TARGET, "text": stream.push([token])})
    found.append({"by": TARGET, "text": stream.flush()})
    return [piece for piece in found if piece["text"]]
