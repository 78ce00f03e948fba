"""Does drafting pay? Decoders on the same prompts, by replay at measured costs and by the clock.

*Replay* (:mod:`.recorded`) gives the counters of a length controller on recorded outputs; with the costs measured on
this machine they are a speed-up over decoding without drafts (SpecDec++ eq. 2.3). *The clock* decodes every prompt with
every decoder in turn. Rules without training are tuned on one half of the prompts and judged on the other, both halves
in turn, so that the best of a grid owes nothing to luck. Everything is stored as soon as it is measured: an interrupted
comparison goes on, and a finished one is only read again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from ..common.console import stderr_console
from ..common.errors import InputError, Misspelt, counted
from ..common.machine import machine, versions
from ..controllers.checkpoints.checkpoint import locate, read_config
from ..controllers.checkpoints.config import ControllerConfig
from ..controllers.checkpoints.provenance import prompt_digest
from ..controllers.length import (
    AcceptanceLength,
    AcceptancePredictor,
    RateOptimal,
    names_class,
    names_rule,
)
from ..controllers.length.cost_model import CostModel
from ..controllers.sampling import SamplingParams
from ..data_gen.prompts import PromptRow
from ..infer.decoder import SpeculativeDecoder
from ..infer.drafters.ngram import split_drafts
from ..infer.generation import Stats
from ..infer.options import AUTO
from ..infer.prompting import day_of
from ..infer.text_stream import COPY, DRAFT, TextStream, written
from ..models import CausalLM
from .cost import bench_cost, decision_seconds, with_decisions
from .decoders import NONE, ComparedDecoder, Generate, Loader
from .drafted import OWN, Check, drafted_of, observing
from .findings import fastest, over
from .interval import Interval
from .recorded import (
    INFORMED,
    Counts,
    Measure,
    Rule,
    Tracer,
    by_setting,
    figures_of,
    informed_rule,
    measure_all,
    replayed_by,
    speed_of,
)
from .runner import Meter, Timed, interleave_stored
from .settings import (
    AS_MEASURED,
    FAMILIES,
    FIXED,
    at_ratio,
    by_length,
    crossed,
    ratio_of,
    rule_of,
    title,
    tuned,
    word_of,
)
from .store import Store

MEASURED = "the costs measured here"
CHECKS = "checks of "  # and a predictor
SHOWN = 96  # tokens of the mosaics
COST_PROMPTS, COST_TOKENS, COST_REPEATS = 3, 48, 2
LEAST, MOST_PASSES, MOST_REPLAYED = 2, 3, 200
MEASURES = (
    "replay", "clock", "tokens_per_second", "processor", "joules", "tokens_per_forward", "accepted",
)  # fmt: skip
TRACED = 0.5  # recording an output takes this many decodings of it
MARGIN = 1.2  # prefills, and what rounds take beyond their costs

Report = dict[str, Any]  # JSON values


@dataclass(frozen=True)
class Task:
    """What is decoded.

    Attributes:
        seed: of every random number.
    """

    sampling: SamplingParams
    max_new_tokens: int
    chat: bool = True
    system: str | None = None
    seed: int = 0

    def as_dict(self) -> dict[str, Any]:
        return vars(self) | {"sampling": self.sampling.as_dict()}


def compare(
    decoders: Sequence[ComparedDecoder],
    rows: Sequence[PromptRow],
    loader: Loader,
    task: Task,
    folder: Path,
    *,
    clock: bool = True,
    rules: bool = True,
    minutes: float | None = None,
    cost: CostModel | Mapping[str, CostModel] | None = None,
    priced: str = MEASURED,
    console: Console | None = None,
) -> Report:
    """Compare decoders on prompts, beside decoding without drafts.

    Args:
        decoders: the configurations; ``"none"`` is always one.
        rows: the prompts.
        loader: loads the target and its drafts; without a draft nothing is replayed, and no rules are added.
        folder: keeps the results as they are measured.
        clock: also decode by the clock; otherwise replay alone.
        rules: add the best fixed length and the best threshold on cumulative confidence.
        minutes: decides how many of the prompts are used and how often; None: all, once.
        cost: instead of measured ones: costs, also by name of a decoder.
        priced: whose these are, in words.

    Returns:
        What ``report.json`` holds, without the conclusions of :mod:`.findings`. ``decoders``: rows by name, ``"none"``
        first, whose figures are None where they were not measured: ``spec`` (of a tuned family with the value that is
        best on all prompts), the ``family``, ``trained`` whether anything of it was; speed-ups over no drafts by
        ``replay`` at measured costs, by the ``clock``, and by ``processor`` seconds; ``tokens_per_second``, ``joules``
        per token, ``tokens_per_forward``, and the ``accepted`` share of drafted tokens. ``costs``: by the same names,
        with the time of a trained predictor. ``timed``: records of the clock by name and prompt. ``informed``: speed-up
        by replay of what knew every token's acceptance probability. ``reading``: t_v(3) / t_v(1). ``lengths``: speeds
        by draft length. ``along`` to ``predictors``: of :meth:`.Drafted.figures`.
        ``mosaic``: a ``prompt`` and its ``texts`` by decoder, of :func:`.written`.
        ``trained_on``: ids of the prompts that a decoder's controllers were trained on, by its name. ``refused``: why
        decoders were left out, by name.

    Raises:
        InputError: the target or the pair cannot be loaded, a decoder's name, model or controller does not exist or is
            given twice, or nothing is left to compare.
    """
    console = console or stderr_console()
    with Store(folder) as store:
        return _Comparing(decoders, rows, loader, task, store, console, rules).run(clock, minutes, cost, priced)


class _Comparing:
    """The steps of :func:`compare`."""

    def __init__(
        self,
        decoders: Sequence[ComparedDecoder],
        rows: Sequence[PromptRow],
        loader: Loader,
        task: Task,
        store: Store,
        console: Console,
        rules: bool,
    ) -> None:
        self.rows, self.loader, self.task, self.store, self.console = rows, loader, task, store, console
        loader.base = self._settled(ComparedDecoder.of(loader.base, NONE))
        self.specs = {NONE: ComparedDecoder.parse(NONE, loader.base)}
        self._generate(self.specs[NONE], None)
        self.refused: dict[str, str] = {}  # why, by name
        for spec in decoders:  # before anything is measured
            if spec.name in {*self.specs, *self.refused} - {NONE}:
                raise InputError(f"decoders: the name {spec.name!r} is given twice; give each another")
            try:
                settled = self._settled(spec)
                self._generate(settled, at_ratio(0.2))
                self.specs.setdefault(spec.name, settled)
            except Misspelt as error:
                raise InputError(f"decoder {spec.name!r}: {error}") from error
            except InputError as error:
                self.refused[spec.name] = str(error)
        self.drafting = None if loader.base.draft is None else ComparedDecoder.of(loader.base, NONE, length=1)
        self.costs: dict[str, CostModel] = {}
        self.replayed: dict[tuple[str, float], list[Counts]] = {}  # counters by decoder, or rule and parameter
        self.checks: dict[str, list[list[Check]]] = {}  # of predictors, by prompt
        self.pair = None if self.drafting is None else loader.decoder(self.drafting)
        self.families = FAMILIES if rules and self.pair is not None else {}
        for name in self.families:
            if name in {*self.specs, *self.refused}:
                raise InputError(f"decoders: the name {name!r} is that of a rule that is added; give another")
        self.identity = {
            "version": version("specpilot"), "base": ComparedDecoder.of(loader.base, NONE).as_dict(),
            "pair": None if self.pair is None else self.pair.fingerprint.as_dict(), **task.as_dict(),
        }  # fmt: skip
        said = [f"decoder {name!r} is left out: {reason}" for name, reason in self.refused.items()]
        if said and len(self.specs) == 1 and not self.families:
            raise InputError(f"{said[0]}; nothing else is left to compare")
        for line in said:
            console.print(line, soft_wrap=True, highlight=False, markup=False)

    def _settled(self, spec: ComparedDecoder) -> ComparedDecoder:
        """``spec`` with the draft's precision that was the fastest when the comparison was begun, if it is "auto"."""
        if spec.draft_dtype != AUTO or not isinstance(spec.drafts, str):
            return spec
        name = str(split_drafts(spec.drafts)[0][0])
        key = {"draft_dtype": name, "target": spec.target, "loading": spec.loading}
        found = self.store.compute(key, lambda: self.loader.draft(name, spec).precision)
        return replace(spec, draft_dtype=None if found == spec.dtype else found)

    def run(
        self, clock: bool, minutes: float | None, cost: CostModel | Mapping[str, CostModel] | None, priced: str
    ) -> Report:
        measured = {} if cost is not None else self._measure_costs()
        if isinstance(cost, CostModel):
            self.costs = {name: cost for name, spec in self.specs.items() if spec.uses_costs or name == NONE}
        else:
            self.costs = dict(cost or {name: CostModel(**result["cost"]) for name, result in measured.items()})
        # Costs that are given may be those of another machine, and need not be seconds.
        count, passes = self._plan({} if isinstance(cost, CostModel) else self.costs, clock, minutes)
        self.rows = self.rows[:count]
        self.replayed = self._replay()
        if not clock and not self.replayed:
            raise InputError("clock=False: this pair cannot be replayed; leave it out")
        families = {name: tuned(x.values, name, self.replayed, self.costs[NONE]) for name, x in self.families.items()}
        timed = self._clock(families, passes) if clock else {}
        specs = self.specs | {name: self._of_family(name, chosen[2]) for name, chosen in families.items()}
        rows = {}
        for name, spec in specs.items():
            both = families.get(name)
            counts = self.replayed.get((name, AS_MEASURED)) if both is None else crossed(name, both, self.replayed)
            rows[name] = self._row(spec, counts) | (by_clock(timed[name], timed[NONE]) if timed else {})
        bound = self.replayed.get((INFORMED, AS_MEASURED))
        informed = 0.0 if bound is None else speed_of(bound, self.costs[NONE]).value
        reached = max((row["replay"]["value"] for row in rows.values() if row["replay"] is not None), default=1.0)
        forward = measured.get(NONE, {}).get("forward", {}).get("t_v", {})
        return {
            "target": self.loader.base.target, "draft": self.loader.base.draft, "task": self.task.as_dict(),
            "prompts": count, "passes": passes, "decoders": rows,
            "informed": informed if informed >= reached else None,  # below by the luck of few drafts: no bound
            "reading": forward["3"] / forward["1"] if forward else None,
            "priced": priced, "ratio": ratio_of(self.costs[NONE]) if NONE in self.costs else None,
            "costs": {name: cost.as_dict() for name, cost in self.costs.items()},
            "timed": {name: [dict(run) for run in runs] for name, runs in timed.items()},
            **self._figures(specs, rows), "machine": machine(), "versions": versions(),
        }  # fmt: skip

    def _measure_costs(self) -> dict[str, dict[str, Any]]:
        """Costs of decoders that use them or predict, and have one draft model; ``"none"`` has those of the pair."""
        rows = self.rows[-COST_PROMPTS:]
        budget = min(COST_TOKENS, self.task.max_new_tokens)
        sampling = self.task.sampling.as_dict() | {"max_new_tokens": budget}
        found: dict[str, dict[str, Any]] = {}
        alone = {} if self.drafting is None else {NONE: self.drafting}
        for name, spec in (alone | {n: s for n, s in self.specs.items() if s.uses_costs or s.trained}).items():
            decoder = self.loader.decoder(spec, at_ratio(0.2))
            if len(decoder.drafts) != 1:
                continue
            plain, prompts = SpeculativeDecoder(decoder.target, decoder.drafts, decoder.tokenizer), self._encoded(rows)
            key = {**self.identity, "prompts": _digest(rows)}
            measure = partial(
                bench_cost, plain, prompts, self.console, repeats=COST_REPEATS, sampling=sampling, quick=True
            )
            found[name] = self.store.compute(key | {"costs": _models(spec)}, measure)
            if spec.trained:
                # Added to the pair's costs: measured anew, they would differ by noise from those of other decoders.
                decide = partial(decision_seconds, plain, prompts, decoder.length, sampling)
                taken = self.store.compute(key | {"decision": spec.identity}, decide)
                cost = with_decisions(CostModel(**found[name]["cost"]), taken)
                found[name] = found[name] | {"cost": cost.as_dict()}
        return found

    def _plan(self, costs: Mapping[str, CostModel], clock: bool, minutes: float | None) -> tuple[int, int]:
        """How many prompts, and how often each is decoded by the clock."""
        available = len(self.rows)
        if minutes is None:
            return available, 1

        def plan() -> list[float]:
            second = MARGIN * self.task.max_new_tokens * self._seconds_per_token(costs)
            decodings = (len(self.specs) + len(self.families)) * clock
            count = int(minutes * 60 / (second * (decodings + TRACED)))
            most = available if clock else min(available, MOST_REPLAYED)
            passes = max(1, min(MOST_PASSES, count // most)) if clock else 1
            return [max(min(LEAST, most), min(most, count)), passes, round(second * (decodings * passes + TRACED), 3)]

        key = {**self.identity, "plan": [*self.specs], "minutes": minutes, "clock": clock, "all": _digest(self.rows)}
        count, passes, seconds = self.store.compute(key, plan)
        self.console.print(
            f"{count} of {counted(available, 'prompt')}, {counted(len(self.specs) + len(self.families), 'decoder')}"
            + (f", {passes} passes by the clock" if passes > 1 else "")
            + f": at most some {max(1, round(count * seconds / 60))} min"
        )
        return int(count), int(passes)

    def _seconds_per_token(self, costs: Mapping[str, CostModel]) -> float:
        if NONE in costs:
            return costs[NONE].round(0)
        generate = self.loader.generate(self.specs[NONE], self.task.sampling, COST_TOKENS)
        stats = generate(self._encoded(self.rows[:1])[0], 0)
        return (stats.seconds + stats.prefill_seconds) / stats.n_generated

    def _encoded(self, rows: Sequence[PromptRow]) -> list[list[int]]:
        pair, task = self.loader.target(), self.task
        how: dict[str, Any] = {"chat": task.chat, "system": task.system, "day": self._day()}
        return [row.encode(pair.tokenizer, **how, context=pair.target.context) for row in rows]

    def _day(self) -> str | None:
        """The date for chat templates that write today's: that on which the comparison was begun."""
        today = day_of(self.loader.target().tokenizer)
        return None if today is None else str(self.store.compute(self.identity | {"day": "begun"}, lambda: today))

    # replay

    def _replay(self) -> dict[tuple[str, float], list[Counts]]:
        """Counters by decoder, or rule and parameter; empty where the pair cannot be replayed."""
        if self.pair is None or NONE not in self.costs or not _traceable(self.pair):
            return {}
        tracer = Tracer(
            self.pair, self.task.sampling, self.task.max_new_tokens, self.task.seed, self.task.chat, self.task.system,
            self._day(),
        )  # fmt: skip
        rules = [informed_rule(self.costs[NONE]), *map(rule_of, self.families)]
        rules += [self._rule(spec) for name, spec in self.specs.items() if name != NONE and self._replayable(spec)]
        measures: dict[str, Measure] = {rule.name: replayed_by(tracer, rule) for rule in rules}
        measures |= {
            CHECKS + name: observing(predictor, identity, frozenset(self.pair.stop_tokens))
            for name, (predictor, identity) in self._predictors().items()
        }
        measured = measure_all(tracer, self.rows, measures, self.store, self.console)
        self.checks = {
            name.removeprefix(CHECKS): [[Check(*check) for check in of_prompt] for batch in of for of_prompt in batch]
            for name, of in measured.items()
            if name.startswith(CHECKS)
        }
        return by_setting(rules, measured)

    def _replayable(self, spec: ComparedDecoder) -> bool:
        """Whether it drafts chains of the traced draft model, and nothing decides but its length.

        A class of the user's may ask for more of a step than a trace holds.
        """
        if names_class(str(spec.length)):
            return False
        plain = replace(spec, length=None, threshold=None, cost=None)
        return plain == ComparedDecoder.of(self.loader.base, spec.name) and spec.cost != AUTO

    def _rule(self, spec: ComparedDecoder) -> Rule:
        """The rule of the decoder's length controller."""
        cost = self.costs.get(spec.name)
        length = self.loader.decoder(spec, cost).length
        identity = {"spec": spec.identity, "costs": None if cost is None else cost.as_dict()}
        return Rule(spec.name, (AS_MEASURED,), identity, lambda traces: lambda index, x: length)

    def _predictors(self) -> dict[str, tuple[AcceptancePredictor | None, dict[str, Any]]]:
        """What predicts acceptance in the replay, and its identity: the draft's confidence, and trained predictors."""
        found: dict[str, tuple[AcceptancePredictor | None, dict[str, Any]]] = {OWN: (None, {"predictor": None})}
        for name, spec in self.specs.items():
            predictor = predictor_of(self.loader.decoder(spec, at_ratio(0.2)), spec) if spec.trained else None
            if predictor is not None and self._replayable(spec) and name not in found:
                found[name] = predictor, {"predictor": spec.identity}
        return found

    # clock

    def _clock(
        self, families: Mapping[str, tuple[float, float, float]], passes: int
    ) -> dict[str, list[dict[str, float]]]:
        """Records by name and prompt, summed over the passes; item i is prompt ``i % prompts`` with the seed i."""
        prompts = self._encoded(self.rows)
        specs: dict[str, tuple[ComparedDecoder, ...]] = {name: (spec,) for name, spec in self.specs.items()}
        specs |= {name: tuple(self._of_family(name, x) for x in chosen[:2]) for name, chosen in families.items()}
        decoding = {name: [self._generate(spec, self.costs.get(name)) for spec in both] for name, both in specs.items()}

        def decode(name: str, item: int, repeat: int) -> Stats:
            index = item % len(prompts)
            return decoding[name][index % len(specs[name])](prompts[index], self.task.seed + item)

        def identity(name: str, item: int) -> dict[str, Any]:
            index, both = item % len(prompts), specs[name]
            what = {"item": item, "prompts": len(prompts), "clock": name}
            return self._identity(both[index % len(both)], self.rows[index : index + 1]) | what

        found = interleave_stored(
            {name: partial(decode, name) for name in specs}, len(prompts) * passes, self.console,
            store=self.store, identity=identity, record=lambda name, item, timed: record(timed),
            meter=Meter.find(self.loader.target().target.device.type),
        )  # fmt: skip
        return {name: [_total(items[i :: len(prompts)]) for i in range(len(prompts))] for name, items in found.items()}

    def _identity(self, spec: ComparedDecoder, rows: Sequence[PromptRow]) -> dict[str, Any]:
        """Everything that the decoding of prompts depends on."""
        cost = self.costs.get(spec.name) if spec.uses_costs else None
        priced = None if cost is None else cost.as_dict()
        return {**self.identity, "spec": spec.identity, "costs": priced, "prompt": _digest(rows)}

    def _of_family(self, family: str, value: float) -> ComparedDecoder:
        return ComparedDecoder.of(self.loader.base, family, length=word_of(family, value))

    def _generate(self, spec: ComparedDecoder, cost: CostModel | None) -> Generate:
        if spec.uses_costs and cost is None:
            spec = replace(spec, cost=AUTO)
        return self.loader.generate(spec, self.task.sampling, self.task.max_new_tokens, cost)

    # results

    def _figures(self, specs: Mapping[str, ComparedDecoder], rows: Mapping[str, Report]) -> Report:
        figures: Report = {"refused": self.refused, "trained_on": trained_on(self.specs, self.rows)}
        if self.replayed:
            figures |= {
                "lengths": by_length(self.replayed, FIXED, self.costs[NONE]),
                **drafted_of(self.checks, self.rows).figures(),
            }
        own = [name for name, spec in specs.items() if name != NONE and spec.engine is None and spec.router is None]
        if found := fastest(rows, own):
            texts = {name: self._mosaic(specs[name]) for name in found[:2]}
            figures["mosaic"] = {"prompt": self.rows[0].text, "texts": texts}
        return {name: value for name, value in figures.items() if value}

    def _mosaic(self, spec: ComparedDecoder) -> list[dict[str, str]]:
        def decode() -> list[dict[str, str]]:
            decoder = self.loader.decoder(spec, self.costs.get(spec.name))
            budget = min(SHOWN, self.task.max_new_tokens)
            drawn: dict[str, Any] = self.task.sampling.as_dict() | {"max_new_tokens": budget, "seed": self.task.seed}
            assert decoder.tokenizer is not None
            rounds = decoder.generate(self._encoded(self.rows[:1])[0], **drawn).rounds
            pieces = written(rounds, TextStream(decoder.tokenizer))
            by = {DRAFT: DRAFT if decoder.drafts else COPY}
            return [{"by": by.get(who, who), "text": text} for who, text in pieces if text]

        key = self._identity(spec, self.rows[:1]) | {"mosaic": spec.name}
        return self.store.compute(key, decode)  # type: ignore[no-any-return]

    def _row(self, spec: ComparedDecoder, counts: Sequence[Counts] | None) -> Report:
        row = dict.fromkeys(MEASURES) | {
            "title": title(spec), "family": spec.name if spec.name in FAMILIES else None, "spec": spec.as_dict(),
            "trained": spec.trained or spec.copies is not None or spec.router is not None,
        }  # fmt: skip
        if counts is not None:
            row |= figures_of(counts, self.costs.get(spec.name, self.costs[NONE]))
        elif spec.name == NONE and self.replayed:
            row["replay"] = Interval(1.0, 1.0, 1.0).as_dict()
        return row


def predictor_of(decoder: SpeculativeDecoder, spec: ComparedDecoder) -> AcceptancePredictor | None:
    """The trained predictor of a decoder's length controller."""
    length = decoder.length if spec.length is not None else None
    return length.predictor if isinstance(length, RateOptimal | AcceptanceLength) else None


def trained_on(specs: Mapping[str, ComparedDecoder], rows: Sequence[PromptRow]) -> dict[str, list[str]]:
    """Ids of the prompts that a decoder's controllers were trained on, by its name, where there are any."""
    found = {}
    for name, spec in specs.items():
        known = {digest for each in controllers_of(spec) for digest in each.provenance.prompts}
        if ids := [row.id for row in rows if prompt_digest(row.text) in known]:
            found[name] = ids
    return found


def controllers_of(spec: ComparedDecoder) -> list[ControllerConfig]:
    """The configurations of what was trained of a decoder."""
    lengths = spec.length if isinstance(spec.length, tuple) else (spec.length,)
    given = [] if spec.engine is not None else [str(name) for name in lengths if name is not None]
    names = [name for name in given if not names_rule(name)]
    return [read_config(locate(name)) for name in [*names, spec.copies, spec.router] if name is not None]


def _traceable(decoder: SpeculativeDecoder) -> bool:
    """Whether outputs of the pair can be recorded: two causal models, of which neither reads the other's states."""
    models = [decoder.target, *decoder.drafts]
    return all(type(model) is CausalLM and not model.reads_states for model in models)


def _models(spec: ComparedDecoder) -> dict[str, Any]:
    """What the costs of a decoder without a predictor depend on."""
    return {"draft": split_drafts(spec.draft)[0], "dtype": spec.dtype, "draft_dtype": spec.draft_dtype}


def _digest(rows: Sequence[PromptRow]) -> str:
    return hashlib.sha256(json.dumps([[row.id, row.prompt] for row in rows]).encode()).hexdigest()[:20]


def record(timed: Timed[Stats]) -> dict[str, float]:
    """What is stored of a decoding."""
    stats = timed.value
    return {
        "generated": stats.n_generated, "drafted": stats.n_drafted, "accepted": stats.n_accepted,
        "target_forwards": stats.n_target_forwards, "seconds": timed.seconds,
        "processor_seconds": timed.processor_seconds, **({} if timed.joules is None else {"joules": timed.joules}),
    }  # fmt: skip


def _total(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: sum(run[key] for run in runs) for key in runs[0]}


def by_clock(runs: Sequence[Mapping[str, float]], plain: Sequence[Mapping[str, float]]) -> Report:
    """What the records of a decoder, and of no drafts, say of it."""
    total = _total(runs)
    by_processor = [sum(run["generated"] for run in each) / sum(run["processor_seconds"] for run in each)
                    for each in (runs, plain)]  # fmt: skip
    own: Report = {} if not total["target_forwards"] else {
        "tokens_per_forward": total["generated"] / total["target_forwards"],
        "accepted": total["accepted"] / total["drafted"] if total["drafted"] else None,
    }  # fmt: skip
    return {
        "clock": over(runs, plain).as_dict(), "processor": by_processor[0] / by_processor[1],
        "tokens_per_second": total["generated"] / total["seconds"],
        "joules": total["joules"] / total["generated"] if "joules" in total else None, **own,
    }  # fmt: skip
