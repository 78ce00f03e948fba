"""Replays length controllers over held-out traces and collects counters by domain.

A *rule* is a family of controllers with one parameter: fixed K, cumulative confidence, or a trained controller with its
threshold. A *setting* is a rule with a value of its parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from ..common.console import progress_bar
from ..controllers.length import LengthController
from ..infer.generation import Stats
from ..simulate.replay import replay
from ..simulate.trace import Trace
from .held_out import PromptBatch, Tracer
from .store import Store

Array = NDArray[np.float64]
Setting = tuple[str, float]  # rule, parameter
MakeController = Callable[[int, float], LengthController]  # (index of a trace, parameter) → controller


class Counts(NamedTuple):
    """The counters of one decoded output."""

    generated: int
    drafted: int
    accepted: int
    target_forwards: int

    @classmethod
    def of(cls, stats: Stats) -> Counts:
        return cls(stats.n_generated, stats.n_drafted, stats.n_accepted, stats.n_target_forwards)


DomainCounts = Mapping[str, Sequence[Counts]]  # by domain, one for each prompt


@dataclass(frozen=True)
class Rule:
    """A family of controllers, one for each of ``parameters``.

    Attributes:
        identity: everything its decisions depend on besides the parameter.
        make: takes the traces of a batch and returns a function that makes their controllers.
    """

    name: str
    parameters: tuple[float, ...]
    identity: dict[str, Any]
    make: Callable[[Sequence[Trace]], MakeController]

    @classmethod
    def untrained(cls, name: str, parameters: Sequence[float], make: Callable[[float], LengthController]) -> Rule:
        """A rule whose controllers depend only on the parameter."""
        return cls(name, tuple(parameters), {"rule": name}, lambda traces: lambda index, x: make(x))


def replay_all(
    tracer: Tracer, batches: Sequence[PromptBatch], rules: Sequence[Rule], store: Store, console: Console
) -> dict[Setting, dict[str, list[Counts]]]:
    """Counters of every setting on every prompt; counters in ``store`` are reused."""
    found: dict[Setting, dict[str, list[Counts]]] = {(rule.name, x): {} for rule in rules for x in rule.parameters}
    identity = tracer.identity
    with progress_bar(console, "batches of prompts", len(batches)) as advance:
        for batch in batches:
            keys = [
                {**identity, **batch.identity, **rule.identity, "parameters": list(rule.parameters)} for rule in rules
            ]
            missing = any(store.get(key) is None for key in keys)
            traces = tracer.traces(batch) if missing else []
            for rule, key in zip(rules, keys, strict=True):
                counts = store.compute(key, partial(replay_rule, tracer, traces, rule))
                for x, of_batch in zip(rule.parameters, counts, strict=True):
                    found[rule.name, x].setdefault(batch.domain, []).extend(Counts(*c) for c in of_batch)
            advance()
    return found


def replay_rule(tracer: Tracer, traces: Sequence[Trace], rule: Rule) -> list[list[Counts]]:
    """Counters by parameter and trace."""
    make = rule.make(traces)
    return [replay_counts(tracer, traces, partial(_with_parameter, make, x)) for x in rule.parameters]


def _with_parameter(make: MakeController, parameter: float, index: int) -> LengthController:
    return make(index, parameter)


def replay_counts(
    tracer: Tracer, traces: Sequence[Trace], controller: Callable[[int], LengthController]
) -> list[Counts]:
    """Counters of decoding each of ``traces`` with the controller made for its index."""
    return [Counts.of(replay(t, controller(i), tracer.decoder.stop_tokens)) for i, t in enumerate(traces)]


def groups_of(domains: Sequence[str], in_domain: Sequence[str]) -> dict[str, list[str]]:
    """Sets of domains by name: all in-domain domains, all left-out domains, and each domain alone."""
    groups = {
        "in_domain": [domain for domain in domains if domain in in_domain],
        "left_out": [domain for domain in domains if domain not in in_domain],
    }
    groups |= {domain: [domain] for domain in domains}
    return {name: members for name, members in groups.items() if members}


def columns(counts: DomainCounts, domains: Sequence[str]) -> tuple[Array, Array, Array, Array]:
    """(prompts,) each, over several domains: generated, drafted, accepted, target forwards."""
    table = np.array([c for domain in domains for c in counts[domain]], dtype=float)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3]


def rates_of(generated: Array, drafted: Array, accepted: Array, target_forwards: Array) -> dict[str, float]:
    """Discarded draft tokens and target forwards per generated token, over all prompts (SpecDec++ eq. 2.3)."""
    total = generated.sum()
    return {
        "discard_rate": float((drafted - accepted).sum() / total),
        "verification_rate": float(target_forwards.sum() / total),
    }
