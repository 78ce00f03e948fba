"""Length controllers replayed over recorded outputs of the target: counters of decoding, without the clock.

An output is generated and traced once (:mod:`specpilot.simulate.trace`). Any number of controllers are then replayed
over it with the same random draws; the counters have the distribution of those of decoding with the controller.

A *rule* is a family of controllers with one parameter: a fixed length, a threshold on confidence, or a trained
controller with its threshold. A *setting* is a rule with a value of its parameter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from ..common.console import progress_bar
from ..common.errors import InputError
from ..common.record import Identity
from ..controllers.checkpoints.provenance import TOKEN_WISE
from ..controllers.length import MAX_DRAFT, LengthController, Step
from ..controllers.length.cost_model import CostModel
from ..controllers.sampling import SamplingParams
from ..data_gen.dataset import rule_identity
from ..data_gen.prompts import PromptRow
from ..data_gen.rollout import can_read, roll_out
from ..infer.core import Stats
from ..infer.decoder import SpeculativeDecoder
from ..infer.options import Auto
from ..infer.prompting import uses_template
from ..infer.random_source import RandomSource, drawn_for, text_seed
from ..simulate.replay import ReplayStats, replay
from ..simulate.trace import END, Trace, trace
from .interval import Interval, interval
from .store import Store

BATCH = 20  # prompts rolled out and stored together
TURNS = 4  # iterations of the informed bound's rate, which then no longer changes
INFORMED = "informed"
GREEDY = SamplingParams(0.0, None, 1.0)

Array = NDArray[np.float64]
Setting = tuple[str, float]  # rule, parameter
MakeController = Callable[[int, float], LengthController]  # (index of a trace, parameter) → controller


class Counts(NamedTuple):
    """The counters of one replayed output.

    Attributes:
        generated: number of tokens, the prefill's token included.
        accepted: number of drafted tokens that were accepted.
        rounds: number of rounds with 0, 1, … ``MAX_DRAFT`` drafted tokens; the prefill is not a round.
    """

    generated: int
    accepted: int
    rounds: Sequence[int]

    @classmethod
    def of(cls, stats: ReplayStats) -> Counts:
        return cls(stats.n_generated, stats.n_accepted, stats.rounds)


@dataclass(frozen=True)
class Rule:
    """A family of controllers, one for each of ``parameters``.

    Attributes:
        name: name of the rule.
        parameters: values of the parameter.
        identity: all settings on which decisions depend besides the parameter.
        make: takes the traces of a batch and returns a function that makes their controllers.
    """

    name: str
    parameters: tuple[float, ...]
    identity: Identity
    make: Callable[[Sequence[Trace]], MakeController]

    @classmethod
    def untrained(cls, name: str, parameters: Sequence[float], make: Callable[[float], LengthController]) -> Rule:
        """Return a rule whose controllers depend only on the parameter.

        The prompts of a batch share a controller. A controller that learns therefore learns from the whole batch.
        """

        def of_batch(traces: Sequence[Trace]) -> MakeController:
            cached = cache(make)
            return lambda index, x: cached(x)

        return cls(name, tuple(parameters), {"rule": name}, of_batch)


@dataclass(frozen=True)
class Tracer:
    """Generates the target's outputs and traces the draft's proposals along them.

    Attributes:
        decoder: holds the pair.
        seed: determines every random draw, together with a prompt's id.
        verifier: the rule that verifies drafts.
        chat, system, day: arguments of :func:`.encode_prompt` for the prompts.
        greedy_drafts: whether the draft takes its most probable token instead of sampling.
        outputs: generated tokens by prompt id; tracers that are copies with another rule share them.
    """

    decoder: SpeculativeDecoder
    sampling: SamplingParams
    max_new_tokens: int
    seed: int
    chat: bool | Auto = "auto"
    system: str | None = None
    day: str | None = None
    verifier: str = TOKEN_WISE
    greedy_drafts: bool = False
    outputs: dict[str, list[int]] = field(default_factory=dict, compare=False)

    @property
    def identity(self) -> Identity:
        """The settings that traces depend on besides the prompts."""
        return {
            "version": version("specpilot"),
            "pair": self.decoder.fingerprint.to_dict(),
            "sampling": self.sampling.to_dict(),
            "max_new_tokens": self.max_new_tokens,
            "seed": self.seed,
            "chat": uses_template(self.decoder.tokenizer, self.chat),
            "system": self.system,
            "device": self.decoder.target.device.type,
            **rule_identity(self.verifier),
            **({"greedy_drafts": True} if self.greedy_drafts else {}),
        }

    def traces(self, rows: Sequence[PromptRow]) -> list[Trace]:
        """Generate and trace the target's outputs, up to the first token outside the draft's vocabulary.

        Raises:
            InputError: a token of a prompt is outside the draft's vocabulary.
        """
        decoder, budget = self.decoder, self.max_new_tokens
        (draft,) = decoder.drafts
        encoding: dict[str, Any] = {
            "chat": self.chat,
            "system": self.system,
            "day": self.day,
            "context": decoder.context,
        }
        prompts = [row.encode(decoder.tokenizer, **encoding) for row in rows]
        for row, prompt in zip(rows, prompts, strict=True):
            if not can_read(prompt, draft.vocab_size):
                raise InputError(
                    f"prompt {row.id!r}: token {max(prompt)} is outside the draft's vocabulary of {draft.vocab_size}; "
                    "choose a draft with the target's whole vocabulary, or other prompts"
                )
        stops = frozenset(decoder.stop_tokens)
        if not all(row.id in self.outputs for row in rows):
            uniforms = [drawn_for(self.seed, "x", row.id, count=budget) for row in rows]
            rollouts = roll_out(decoder.target, prompts, uniforms, self.sampling, stops, batch_size=len(prompts))
            self.outputs.update({row.id: rollout.tokens for row, rollout in zip(rows, rollouts, strict=True)})
        return [
            trace(
                decoder.target, draft, prompt, self.outputs[row.id], budget, self.sampling,
                RandomSource(text_seed(self.seed, "y", row.id, signed=True)), stops, verifier=self.verifier,
                draft_sampling=GREEDY if self.greedy_drafts else None,
            )
            for row, prompt in zip(rows, prompts, strict=True)
        ]  # fmt: skip


@dataclass(frozen=True)
class Measure:
    """A computation on the traces of a batch.

    Attributes:
        identity: all settings on which the result depends besides the traces.
        of: takes the traces and returns a JSON value.
    """

    identity: Identity
    of: Callable[[Sequence[Trace]], Any]


def replayed_by(tracer: Tracer, rule: Rule) -> Measure:
    """Return the measure of a rule's counters, by parameter and trace."""
    identity = {**rule.identity, "parameters": list(rule.parameters), "counters": list(Counts._fields)}
    return Measure(identity, lambda traces: replay_rule(traces, rule, tracer.decoder.stop_tokens))


def by_setting(rules: Sequence[Rule], measured: Mapping[str, Sequence[Any]]) -> dict[Setting, list[Counts]]:
    """Return the counters of every prompt from the results of :func:`measure_all`, by batch and parameter."""
    return {
        (rule.name, x): [Counts(*counts) for batch in measured[rule.name] for counts in batch[index]]
        for rule in rules
        for index, x in enumerate(rule.parameters)
    }


def measure_all(
    tracer: Tracer, rows: Sequence[PromptRow], measures: Mapping[str, Measure], store: Store, console: Console
) -> dict[str, list[Any]]:
    """Return all measures of every batch of ``BATCH`` prompts. Results in ``store`` are reused."""
    results: dict[str, list[Any]] = {name: [] for name in measures}
    batches = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
    identity = tracer.identity
    with progress_bar(console, f"batches of {BATCH} prompts replayed", len(batches)) as advance:
        for batch in batches:
            digest = hashlib.sha256("\0".join(row.text for row in batch).encode()).hexdigest()
            of_batch = {**identity, "prompts": [row.id for row in batch], "texts": digest}
            keys = {name: {**of_batch, **measure.identity} for name, measure in measures.items()}
            missing = any(store.get(key) is None for key in keys.values())
            traces = tracer.traces(batch) if missing else []
            for name, key in keys.items():
                results[name].append(store.compute(key, partial(measures[name].of, traces)))
            advance()
    return results


def replay_rule(traces: Sequence[Trace], rule: Rule, stop_tokens: frozenset[int]) -> list[list[Counts]]:
    """Return counters by parameter and trace."""
    make = rule.make(traces)
    return [replay_counts(traces, lambda index, x=x: make(index, x), stop_tokens) for x in rule.parameters]  # type: ignore[misc]


def replay_counts(
    traces: Sequence[Trace], controller: Callable[[int], LengthController], stop_tokens: frozenset[int]
) -> list[Counts]:
    """Return counters of decoding each of ``traces`` with the controller for its index."""
    return [Counts.of(replay(t, controller(i), stop_tokens)) for i, t in enumerate(traces)]


def columns(counts: Sequence[Counts]) -> tuple[Array, Array, Array, Array]:
    """Return generated, drafted and accepted tokens, and target forwards, (prompts,) each."""
    generated, accepted = (np.array([count[i] for count in counts], dtype=float) for i in range(2))
    rounds = rounds_of(counts)
    return generated, rounds @ np.arange(MAX_DRAFT + 1), accepted, rounds.sum(1) + 1


def rounds_of(counts: Sequence[Counts]) -> Array:
    """Return the number of rounds by prompt and number of drafted tokens, (prompts, MAX_DRAFT + 1)."""
    return np.array([count.rounds for count in counts], dtype=float).reshape(-1, MAX_DRAFT + 1)


def decoded(counts: Sequence[Counts], cost: CostModel) -> tuple[Array, ...]:
    """Return the arguments of :meth:`.CostModel.throughput` at ``cost``, (prompts,) each, without the prefill's token.

    They are generated and drafted tokens, target forwards, drafts and the deviation of verifications from a line.
    """
    generated, drafted, _, forwards = columns(counts)
    rounds = rounds_of(counts)
    return generated - 1, drafted, forwards - 1, rounds[:, 1:].sum(1), cost.deviation(rounds.T)


def speedup(*sums: Any, cost: CostModel) -> Any:
    """Return the throughput relative to decoding without drafts (SpecDec++ eq. 2.3).

    Args:
        sums: the sum of each array of :func:`decoded`, as numbers or as arrays.
        cost: the costs.
    """
    return cost.throughput(*sums) * cost.round(0)


def speed_of(counts: Sequence[Counts], cost: CostModel) -> Interval:
    """Return the speed-up over no drafts by replay; 0 if all outputs only have the prefill's token."""
    values = decoded(counts, cost)
    if not values[2].sum():
        return Interval(0.0, 0.0, 0.0)
    return interval(partial(speedup, cost=cost), *values)


def speed_ratio_of(counts: Sequence[Counts], baseline: Sequence[Counts], cost: CostModel) -> Interval:
    """Return the ratio of a decoder's speed by replay to another decoder's speed, with its 95 % interval.

    Args:
        counts: the counters of the decoder, by prompt.
        baseline: the other decoder's counters of the same prompts, in the same order.
        cost: the costs of both.
    """
    speed = partial(speedup, cost=cost)
    values, baseline_values = decoded(counts, cost), decoded(baseline, cost)
    split = len(values)
    return interval(lambda *sums: speed(*sums[:split]) / speed(*sums[split:]), *values, *baseline_values)


def rates(counts: Sequence[Counts]) -> tuple[float, float | None]:
    """Return two rates of some outputs: generated tokens per target forward, and the share of accepted tokens.

    The second rate is None if nothing was drafted.
    """
    generated, drafted, accepted, forwards = (int(values.sum()) for values in columns(counts))
    stats = Stats(n_generated=generated, n_drafted=drafted, n_accepted=accepted, n_target_forwards=forwards)
    return stats.tokens_per_forward, stats.acceptance_rate if drafted else None


class Informed(LengthController):
    """Drafts the number of tokens that gains most at a rate, from the known acceptance probability of each token.

    A draft of k tokens gains 1 + Σ_{j ≤ k} Π_{i ≤ j} a_i tokens in ``cost.round(k)`` seconds; at the rate λ of tokens a
    second the best k maximizes gain - λ·time. At the rate that this controller reaches, no predictor of acceptance
    gains more in a round.

    Args:
        lengths: number of tokens to draft in a round that starts after each number of tokens of the text.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = lengths
        self.start_text()

    @classmethod
    def of(cls, traced: Trace, cost: CostModel, rate: float) -> Informed:
        """Return the controller of a trace at ``rate``, in tokens per second."""
        return cls([_best_length(traced, node, cost, rate) for node in range(len(traced.text))])

    def start_text(self) -> None:
        self.position, self.moved = 0, 1

    def start_round(self) -> bool:
        self.position, self.moved = self.position + self.moved, 1
        return self.lengths[self.position] > 0

    def observe(self, step: Step) -> bool:
        return step.index < self.lengths[self.position]

    def end_round(self, drafted: int, accepted: int) -> None:
        self.moved = accepted + 1


def _best_length(traced: Trace, node: int, cost: CostModel, rate: float) -> int:
    best, value, gain, survival = 0, 1.0 - rate * cost.round(0), 1.0, 1.0
    length = 0
    while node != END and length < MAX_DRAFT:
        length, survival = length + 1, survival * traced.accept[node]
        gain += survival
        if gain - rate * cost.round(length) > value:
            best, value = length, gain - rate * cost.round(length)
        node = traced.after[node]
    return best


def informed_rule(cost: CostModel) -> Rule:
    """Return the rule of the informed bound at ``cost``, with the rate that it reaches on a batch."""

    def of_batch(traces: Sequence[Trace]) -> MakeController:
        rate = 1.0 / cost.round(0)
        controllers = [Informed.of(t, cost, rate) for t in traces]
        for _ in range(TURNS):
            replays = zip(traces, controllers, strict=True)
            counts = [Counts.of(replay(t, controller, frozenset())) for t, controller in replays]
            sums = [values.sum() for values in decoded(counts, cost)]
            if not sums[2]:
                break
            rate = float(cost.throughput(*sums))
            controllers = [Informed.of(t, cost, rate) for t in traces]
        return lambda index, unused: controllers[index]

    return Rule(INFORMED, (0.0,), {"rule": "informed", "costs": cost.to_dict()}, of_batch)
