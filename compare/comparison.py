"""Comparison of decoders on the same prompts, by replay at measured costs and by the clock.

*Replay* (:mod:`.recorded`) gives the counters of a length controller on recorded outputs; with the costs measured on
this machine they are a speed-up over decoding without drafts (SpecDec++ eq. 2.3). *The clock* decodes every prompt with
every decoder in turn. Rules without training are tuned on one half of the prompts and evaluated on the other half, in
both directions. Every result is stored as soon as it is measured: an interrupted comparison continues, and a finished
comparison is only read again.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ..common.console import progress_bar, stderr_console
from ..common.errors import InputError, Misspelt, counted
from ..common.json_file import build
from ..common.machine import machine, versions
from ..common.options import AUTO
from ..common.record import Identity
from ..controllers.checkpoints.checkpoint import locate, read_config
from ..controllers.checkpoints.config import ControllerConfig
from ..controllers.checkpoints.provenance import INVARIANT, TOKEN_WISE, differ_in_acceptance, prompt_digest
from ..controllers.length import (
    AcceptanceLength,
    AcceptancePredictor,
    RateOptimal,
    names_class,
    names_rule,
)
from ..controllers.length.cost_model import CostModel
from ..controllers.length.cost_source import CostSource, PresetCosts, cost_source
from ..controllers.router import policy
from ..controllers.sampling import SamplingParams
from ..data_gen.on_policy import rounds_of
from ..data_gen.prompts import PromptRow
from ..infer.authors import COPY, DRAFT, pieces_by_author
from ..infer.core import Generation
from ..infer.decoder import SpeculativeDecoder
from ..infer.drafters.ngram import split_drafts
from ..infer.options import SamplingKeywords
from ..infer.plan import Plan, verifier_of
from ..infer.prompting import day_of, uses_template
from ..infer.text_stream import TextStream
from ..models import CausalLM
from .assisted import assisted_costs, can_assist
from .chains import COPY_GRID, GRID, LENGTHS, LoggedChains, ReplayedChains, chains_measure, copies_measure
from .cost import bench_cost, decision_seconds, with_decisions
from .decoders import NONE, ComparedDecoder, Generate, Loader
from .drafted import DRAFT_CONFIDENCE, Check, drafted_of, observing
from .engine_settings import Drafting, EngineCosts, settings_of
from .findings import fastest, speed_ratio
from .gains import PricedCounts, possible_gains
from .interval import Interval
from .recorded import (
    INFORMED,
    Counts,
    Measure,
    Rule,
    Tracer,
    by_setting,
    informed_rule,
    measure_all,
    rates,
    replayed_by,
    speed_of,
)
from .results import ComparisonReport, DecoderResult, Piece, PossibleGain, Sample, Task, TimedDecoding
from .runner import Meter, interleave_stored
from .settings import (
    AS_MEASURED,
    FAMILIES,
    FIXED,
    Tuned,
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
CHAINS, COPIES = "chains of other engines", "copies of other engines"  # names of measures
ROUNDS = "rounds for other engines"  # name of the decoder whose rounds are logged
CHECKS = "checks of "  # beginning of a measure's name, followed by a predictor
SHOWN = 96  # number of tokens of the texts that a report shows
COST_PROMPTS, COST_TOKENS, COST_REPEATS = 3, 48, 2
ASSISTED_PROMPTS = 2  # prompts from which the costs of transformers' rounds are measured
LEAST, MOST_PASSES, MOST_REPLAYED = 2, 3, 200  # least prompts, most passes by the clock, most prompts of a replay
TRACED = 0.5  # time of recording an output, in decodings
RETRACED = 0.25  # time of recording the drafts of another engine along an output that exists, in decodings
LOGGED = 2.0  # time of decoding with the longest drafts, whose rounds are logged, in decodings
DECODING = 0.5  # share of the minutes that is left for decoding, however long loading and measuring took
MARGIN = 1.2  # factor for prefills and for the time of rounds beyond their costs


def compare_decoders(
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
    cost_description: str = MEASURED,
    engine_costs: EngineCosts | None = None,
    engines: bool = True,
    console: Console | None = None,
    began: float | None = None,
) -> ComparisonReport:
    """Compare decoders on prompts, beside decoding without drafts.

    Args:
        decoders: the configurations; ``"none"`` is always one.
        rows: the prompts.
        loader: loads the target and its drafts; without a draft nothing is replayed, and no rules are added.
        task: sampling parameters, maximum number of new tokens, seed and chat settings.
        folder: folder in which each result is stored after its measurement.
        clock: also measure the time of decoding; otherwise all speeds are replayed.
        rules: add the best fixed length and the best threshold on cumulative confidence.
        minutes: duration of the comparison, which limits the number of prompts and of passes over them. None: all
            prompts, one pass.
        cost: costs to use instead of measured ones, for all decoders or by name.
        cost_description: source of the costs in words.
        engine_costs: costs of another engine, for its settings; None for the costs of the pair.
        engines: replay the drafts of other engines too, for their settings.
        console: the console that shows the progress. Default: standard error.
        began: value of ``time.perf_counter`` from which the minutes count. Default: now.

    Returns:
        The report without the conclusions of :mod:`.findings`.

    Raises:
        InputError: the target or the pair cannot be loaded, a decoder's name is misspelt, occurs twice or is that of an
            added rule, no decoder can be loaded, or ``clock`` is false for a pair that cannot be replayed.
    """
    console = console or stderr_console()
    began = time.perf_counter() if began is None else began
    with Store(folder) as store:
        comparing = _Comparing(decoders, rows, loader, task, store, console, rules, engines, began)
        return comparing.run(clock, minutes, cost, cost_description, engine_costs)


class _Comparing:
    """The steps of :func:`compare_decoders`."""

    def __init__(
        self,
        decoders: Sequence[ComparedDecoder],
        rows: Sequence[PromptRow],
        loader: Loader,
        task: Task,
        store: Store,
        console: Console,
        rules: bool,
        engines: bool,
        began: float,
    ) -> None:
        self.began, self.engines = began, engines
        self.rows, self.loader, self.store, self.console = rows, loader, store, console
        loader.base = self._settled(ComparedDecoder.of(loader.base, NONE))
        self.task = replace(task, chat=uses_template(loader.tokenizer, task.chat))
        self.specs = {NONE: ComparedDecoder.parse(NONE, loader.base)}
        self._generate(self.specs[NONE], None)
        self.refused: dict[str, str] = {}  # reason by name of a refused decoder
        for spec in decoders:  # checked before any measurement
            if spec.name in {*self.specs, *self.refused} - {NONE}:
                raise InputError(f"decoders: the name {spec.name!r} occurs twice; give each decoder a name of its own")
            try:
                settled = self._settled(spec)
                self._generate(settled, cost_source(0.2))
                self.specs.setdefault(spec.name, settled)
            except Misspelt as error:
                raise InputError(f"decoder {spec.name!r}: {error}") from error
            except InputError as error:
                self.refused[spec.name] = str(error)
        self.drafting = None if loader.base.draft is None else ComparedDecoder.of(loader.base, NONE, length=1)
        self.costs: dict[str, CostModel] = {}
        self.replayed: dict[tuple[str, float], list[Counts]] = {}  # counters by decoder, or rule and parameter
        self.checks: dict[str, list[list[Check]]] = {}  # of predictors, by prompt
        self.engine_drafting: Drafting | None = None  # chains that other engines draft; None if not replayed
        self.pair = None if self.drafting is None else loader.decoder(self.drafting)
        self.verifier = "" if self.pair is None else self._plan_of(self.pair).verifier.rule
        self.families = FAMILIES if rules and self.pair is not None else {}
        for name in self.families:
            if name in {*self.specs, *self.refused}:
                raise InputError(
                    f"decoders: the name {name!r} is taken by a rule that the comparison adds; choose another name, or "
                    "pass --no-rules"
                )
        self.identity = {
            "version": version("specpilot"), "base": ComparedDecoder.of(loader.base, NONE).to_dict(),
            "pair": None if self.pair is None else self.pair.fingerprint.to_dict(), **self.task.to_dict(),
        }  # fmt: skip
        refusals = [f"decoder {name!r} is left out: {reason}" for name, reason in self.refused.items()]
        if refusals and len(self.specs) == 1 and not self.families:
            raise InputError(f"{refusals[0]}; no other decoder is left to compare")
        for line in refusals:
            console.print(line, soft_wrap=True, highlight=False, markup=False)

    def _settled(self, spec: ComparedDecoder) -> ComparedDecoder:
        """Return ``spec`` with the fastest precision of the draft at the comparison's start in place of "auto"."""
        if spec.draft_dtype != AUTO or not isinstance(spec.draft, str):
            return spec
        name = str(split_drafts(spec.draft)[0][0])
        key = {"draft_dtype": name, "target": spec.target, "loading": spec.loading}
        precision = self.store.compute(key, lambda: self.loader.draft(name, spec).precision)
        return replace(spec, draft_dtype=None if precision == spec.dtype else precision)

    def run(
        self,
        clock: bool,
        minutes: float | None,
        cost: CostModel | Mapping[str, CostModel] | None,
        cost_description: str,
        engine_costs: EngineCosts | None,
    ) -> ComparisonReport:
        measured = {} if cost is not None else self._measure_costs()
        transformers = self._transformers_costs() if cost is None and engine_costs is None else None
        if isinstance(cost, CostModel):
            self.costs = {name: cost for name, spec in self.specs.items() if spec.uses_costs or name == NONE}
        else:
            read = {name: build(CostModel, result["cost"], "cost") for name, result in measured.items()}
            self.costs = dict(cost or read)
        self.sources = {name: PresetCosts(cost_model, cost_description) for name, cost_model in self.costs.items()}
        self._describe()
        # Costs that are given may be those of another machine, and need not be seconds.
        count, passes = self._plan({} if isinstance(cost, CostModel) else self.costs, clock, minutes)
        self.rows = self.rows[:count]
        self.replayed = self._replay()
        if self.engines and self._drafts_by_states() and NONE in self.costs:
            self.engine_drafting = self._logged()
        if not clock and not self.replayed:
            raise InputError("clock=False: this pair cannot be replayed; leave --no-clock out to decode by the clock")
        families = {name: tuned(x.values, name, self.replayed, self.costs[NONE]) for name, x in self.families.items()}
        timed = self._clock(families, passes) if clock else {}
        specs = self.specs | {name: self._of_family(name, values.best) for name, values in families.items()}
        decoders = {name: self._result(spec, families.get(name), timed) for name, spec in specs.items()}
        bound = self.replayed.get((INFORMED, AS_MEASURED))
        informed = 0.0 if bound is None else speed_of(bound, self.costs[NONE]).value
        replayed = max((row.replay.value for row in decoders.values() if row.replay is not None), default=1.0)
        forward = measured.get(NONE, {}).get("forward", {}).get("t_v", {})
        report = ComparisonReport(
            target=self.loader.base.target,
            draft=self.loader.base.draft,
            task=self.task,
            prompts=count,
            passes=passes,
            verifier=self.verifier,
            decoders=decoders,
            informed=informed if informed >= replayed else None,  # too few drafts for a bound
            reading=forward["3"] / forward["1"] if forward else None,
            cost_description=cost_description,
            ratio=ratio_of(self.costs[NONE]) if NONE in self.costs else None,
            costs=self.costs,
            timed=timed,
            refused=self.refused,
            trained_on=trained_on(self.specs, self.rows),
            trained_for=trained_for(self.specs, self.verifier) if self.task.sampling.temperature > 0 else {},
            mosaic=self._samples(specs, decoders),
            machine=machine(),
            versions=versions(),
        )
        if self.engine_drafting is not None:
            domains = np.array([row.domain for row in self.rows])
            groups = {"domain": {str(name): domains == name for name in dict.fromkeys(domains.tolist())}}
            costs = engine_costs or EngineCosts(self.costs[NONE], cost_description)
            drafting = replace(self.engine_drafting, is_trimmed=self._is_trimmed())
            settings = settings_of(drafting, costs, str(self.loader.base.draft), groups, transformers)
            report = replace(report, engine_settings=settings)
        return self._with_replay(report, families) if self.replayed else report

    def _with_replay(self, report: ComparisonReport, families: Mapping[str, Tuned]) -> ComparisonReport:
        """Return the report with the figures that only a replay has."""
        drafted = drafted_of(self.checks, self.rows)
        return replace(
            report,
            gains={} if report.informed is None else self._gains(report.decoders, families),
            lengths=by_length(self.replayed, FIXED, self.costs[NONE]),
            place_grouping=drafted.place_grouping,
            acceptance=drafted.acceptance(),
            lines=drafted.lines(),
            predictors=drafted.quality(),
        )

    def _gains(self, decoders: Mapping[str, DecoderResult], families: Mapping[str, Tuned]) -> dict[str, PossibleGain]:
        """Return the shares of the possible gain that the trained decoders reach, by domain of the prompts."""
        trained, rules = dict[str, PricedCounts](), dict[str, PricedCounts]()
        for name, result in decoders.items():
            counts = self._counts(name, families.get(name))
            if counts is not None:
                (trained if result.trained else rules)[result.title] = counts, self._cost_of(name)
        informed = self.replayed[INFORMED, AS_MEASURED], self.costs[NONE]
        return possible_gains([row.domain for row in self.rows], rules, trained, informed)

    def _counts(self, name: str, values: Tuned | None) -> list[Counts] | None:
        """Return the replayed counters of a decoder, or with ``values`` of a tuned family; None without a replay."""
        if values is None:
            return self.replayed.get((name, AS_MEASURED))
        return crossed(name, values, self.replayed)

    def _cost_of(self, name: str) -> CostModel:
        """Return the costs of a decoder, those of the pair if it has none of its own."""
        return self.costs.get(name, self.costs[NONE])

    def _plan_of(self, decoder: SpeculativeDecoder) -> Plan:
        """Return the plan of ``decoder`` for the task's texts, which all have a seed."""
        return decoder.setup_for(seed=self.task.seed, temperature=self.task.sampling.temperature).plan

    def _describe(self) -> None:
        """Print the plans of the decoders: the lines that all plans share, then the other lines of each decoder."""
        plans: dict[str, list[str]] = {}
        for name, spec in self.specs.items():
            if spec.engine is None:
                cost = self.sources.get(name) if spec.uses_costs else None
                decoder = self.loader.decoder(spec if cost or not spec.uses_costs else replace(spec, cost=AUTO), cost)
                plan = self._plan_of(decoder)
                if self.task.sampling.temperature == 0:  # the reason names the rule of other temperatures
                    plan = replace(plan, verifier=replace(plan.verifier, reason=""))
                plans[name] = plan.describe().splitlines()
        first = next(iter(plans.values()))
        common = [line for line in first if all(line in lines for lines in plans.values())]
        lines = list(common)
        for name, plan_lines in plans.items():
            lines += [f"decoder {name}:", *(f"  {line}" for line in plan_lines if line not in common)]
        for line in lines:
            self.console.print(line, highlight=False, markup=False)

    def _measure_costs(self) -> dict[str, dict[str, Any]]:
        """Return the costs of decoders with one draft that use costs or predict; ``"none"`` has the pair's."""
        rows = self.rows[-COST_PROMPTS:]
        budget = min(COST_TOKENS, self.task.max_new_tokens)
        rule = self.task.sampling
        sampling: SamplingKeywords = {
            "temperature": rule.temperature, "top_k": rule.top_k, "top_p": rule.top_p, "max_new_tokens": budget
        }  # fmt: skip
        measured: dict[str, dict[str, Any]] = {}
        pair = {} if self.drafting is None else {NONE: self.drafting}
        for name, spec in (pair | {n: s for n, s in self.specs.items() if s.uses_costs or s.trained}).items():
            decoder = self.loader.decoder(spec, at_ratio(0.2))
            if len(decoder.drafts) != 1:
                continue
            plain, prompts = SpeculativeDecoder(decoder.target, decoder.drafts, decoder.tokenizer), self._encoded(rows)
            key = {**self.identity, "prompts": _digest(rows)}
            measure = partial(self._bench_cost, plain, prompts, sampling)
            measured[name] = self.store.compute(key | {"costs": _models(spec)}, measure)
            if spec.trained:
                # Added to the pair's costs, because new measurements would differ from other decoders' costs by noise.
                decide = partial(decision_seconds, plain, prompts, decoder.length, sampling)
                seconds = self.store.compute(key | {"decision": spec.identity}, decide)
                cost = with_decisions(build(CostModel, measured[name]["cost"], "cost"), seconds)
                measured[name] = measured[name] | {"cost": cost.to_dict()}
        return measured

    def _transformers_costs(self) -> CostModel | None:
        """Return the measured costs of transformers' rounds; None if there are no settings for transformers."""
        pair = self.pair
        if not self.engines or pair is None or len(pair.drafts) != 1 or not can_assist(pair.target, pair.drafts[0]):
            return None
        rows = self.rows[-ASSISTED_PROMPTS:]

        def measure() -> dict[str, Any]:
            tokens = min(COST_TOKENS, self.task.max_new_tokens)
            prompts, sampling = self._encoded(rows), self.task.sampling
            return assisted_costs(pair.target, pair.drafts[0], prompts, sampling, tokens, self.console).to_dict()

        key = {**self.identity, "prompts": _digest(rows), "costs": "transformers"}
        return build(CostModel, self.store.compute(key, measure), "cost")

    def _bench_cost(
        self, decoder: SpeculativeDecoder, prompts: list[list[int]], sampling: SamplingKeywords
    ) -> dict[str, Any]:
        """Return the measured costs of a pair as JSON values, which are stored."""
        measured = bench_cost(decoder, prompts, self.console, repeats=COST_REPEATS, sampling=sampling, quick=True)
        return measured.to_dict()

    def _plan(self, costs: Mapping[str, CostModel], clock: bool, minutes: float | None) -> tuple[int, int]:
        """Return the number of prompts, and the number of timed passes over them, that fit the remaining ``minutes``.

        A line on the console reports both numbers. It also reports that the comparison will take longer than
        ``minutes`` because loading models and measuring costs took too long.
        """
        available = len(self.rows)
        if minutes is None:
            return available, 1
        spent = time.perf_counter() - self.began

        def plan() -> list[float]:
            second = MARGIN * self.task.max_new_tokens * self._seconds_per_token(costs)
            decodings = (len(self.specs) + len(self.families)) * clock
            remaining_seconds = max(minutes * 60 - spent, minutes * 60 * DECODING)
            retraced = 2 if self.engines and self.task.sampling.temperature > 0 else 0
            traced = LOGGED * self.engines if self._drafts_by_states() else TRACED + RETRACED * retraced
            count = int(remaining_seconds / (second * (decodings + traced)))
            most = available if clock else min(available, MOST_REPLAYED)
            passes = max(1, min(MOST_PASSES, count // most)) if clock else 1
            return [max(min(LEAST, most), min(most, count)), passes, round(second * (decodings * passes + traced), 3)]

        key = {**self.identity, "plan": [*self.specs], "minutes": minutes, "clock": clock, "all": _digest(self.rows)}
        count, passes, seconds = self.store.compute(key, plan)
        overrun = f" after {spent / 60:.1f} min of loading and measuring, longer than minutes={minutes:g}"
        self.console.print(
            f"comparing {counted(len(self.specs) + len(self.families), 'decoder')} on {count} of "
            f"{counted(available, 'prompt')}"
            + (f", {passes} passes by the clock" if passes > 1 else "")
            + f": about {max(1, round(count * seconds / 60))} min at most"
            + (overrun if spent + count * seconds > minutes * 60 else "")
        )
        return int(count), int(passes)

    def _seconds_per_token(self, costs: Mapping[str, CostModel]) -> float:
        if NONE in costs:
            return costs[NONE].round(0)
        generate = self.loader.generate(self.specs[NONE], self.task.sampling, COST_TOKENS)
        stats = generate(self._encoded(self.rows[:1])[0], 0).stats
        return (stats.seconds + stats.prefill_seconds) / stats.n_generated

    def _encoded(self, rows: Sequence[PromptRow]) -> list[list[int]]:
        pair, task = self.loader.target(), self.task
        day, context = self._day(), pair.target.context
        return [
            row.encode(
                self.loader.tokenizer,
                chat=task.chat,
                system=task.system,
                day=day,
                context=context,
                encoder=pair.target.encodes_prompts,
            )
            for row in rows
        ]

    def _day(self) -> str | None:
        """Return the date of the comparison's start, for chat templates with a date; None for others."""
        today = day_of(self.loader.tokenizer)
        return None if today is None else str(self.store.compute(self.identity | {"day": "begun"}, lambda: today))

    # replay

    def _replay(self) -> dict[tuple[str, float], list[Counts]]:
        """Return counters by decoder, or rule and parameter; empty if the pair cannot be replayed."""
        if self.pair is None or NONE not in self.costs or not _traceable(self.pair):
            return {}
        tracer = Tracer(
            self.pair, self.task.sampling, self.task.max_new_tokens, self.task.seed, self.task.chat, self.task.system,
            self._day(), self.verifier,
        )  # fmt: skip
        rules = [informed_rule(self.costs[NONE]), *map(rule_of, self.families)]
        rules += [self._rule(spec) for name, spec in self.specs.items() if name != NONE and self._replayable(spec)]
        measures: dict[str, Measure] = {rule.name: replayed_by(tracer, rule) for rule in rules}
        measures |= {
            CHECKS + name: observing(predictor, identity, frozenset(self.pair.stop_tokens))
            for name, (predictor, identity) in self._predictors().items()
        }
        if self.engines:
            measures |= {COPIES: copies_measure(), CHAINS: chains_measure()}
        measured = measure_all(tracer, self.rows, measures, self.store, self.console)
        self.engine_drafting = self._chains(tracer, measured) if self.engines else None
        self.checks = {
            name.removeprefix(CHECKS): [[Check(*check) for check in of_prompt] for batch in of for of_prompt in batch]
            for name, of in measured.items()
            if name.startswith(CHECKS)
        }
        return by_setting(rules, measured)

    def _chains(self, tracer: Tracer, measured: Mapping[str, Sequence[Any]]) -> Drafting:
        """Return the chains of other engines, which verify token by token and draft greedily or by sampling.

        Args:
            tracer: records the drafts of the comparison's own rule.
            measured: its measures.
        """

        def chains(other: Tracer) -> ReplayedChains:
            batches = measure_all(other, self.rows, {CHAINS: chains_measure()}, self.store, self.console)
            return ReplayedChains.of(GRID, batches[CHAINS])

        replayed, copies = ReplayedChains.of(GRID, measured[CHAINS]), ReplayedChains.of(COPY_GRID, measured[COPIES])
        if self.task.sampling.temperature == 0:  # all rules and drafts are greedy
            acceptance = "Acceptance is that of greedy decoding in the recorded texts."
            return Drafting(greedy=replayed, sampled=replayed, copies=copies, acceptance=acceptance)
        sampled = replayed if tracer.verifier == TOKEN_WISE else chains(replace(tracer, verifier=TOKEN_WISE))
        greedy = chains(replace(tracer, verifier=TOKEN_WISE, greedy_drafts=True))
        return Drafting(
            greedy=greedy,
            sampled=sampled,
            copies=copies,
            acceptance="Acceptance is that of token-wise verification in the recorded texts. Drafts are sampled in "
            "transformers, and in vLLM with draft_sample_method; in the other engines they are greedy.",
        )

    def _drafts_by_states(self) -> bool:
        """Return true if the draft reads the target's states, as an EAGLE-3 draft does. It has no replay."""
        return self.pair is not None and any(draft.reads_states for draft in self.pair.drafts)

    def _is_trimmed(self) -> bool:
        """Return true if the draft's folder has only a part of the vocabulary, in a format of specpilot."""
        return self.pair is not None and any(
            draft.kept_tokens is not None and not draft.reads_states for draft in self.pair.drafts
        )

    def _logged(self) -> Drafting:
        """Return the chains of a draft that reads the target's states, from rounds with drafts of the longest length.

        The draft's distribution depends on the beginning of the round, so that a recorded text has none for it.
        """
        spec = ComparedDecoder.of(self.loader.base, ROUNDS, length=LENGTHS[-1], verifier=TOKEN_WISE)
        decoder, sampling = self.loader.decoder(spec), self.task.sampling
        prompts = self._encoded(self.rows)

        def decode(index: int) -> list[list[float]]:
            generation = decoder.generate(
                prompts[index], max_new_tokens=self.task.max_new_tokens, temperature=sampling.temperature,
                top_k=sampling.top_k, top_p=sampling.top_p, seed=self.task.seed + index,
            )  # fmt: skip
            return rounds_of(generation)[2]

        rounds = []
        with progress_bar(self.console, "prompts decoded for other engines", len(prompts)) as advance:
            for index, row in enumerate(self.rows):
                key = self._identity(spec, [row]) | {"rounds": index}
                rounds.append(self.store.compute(key, partial(decode, index)))
                advance()
        chains = LoggedChains.of(rounds)
        decoding = "greedy decoding" if sampling.temperature == 0 else "token-wise verification of sampled drafts"
        acceptance = f"Acceptance is that of {decoding}, in rounds with drafts of {LENGTHS[-1]} tokens."
        if sampling.temperature > 0:
            acceptance += " An engine that drafts greedily has another acceptance."
        return Drafting(greedy=chains, sampled=chains, acceptance=acceptance, is_eagle3=True)

    def _replayable(self, spec: ComparedDecoder) -> bool:
        """Return whether a decoder drafts chains of the traced draft model that its length controller ends.

        A class of the user may read more of a step than a trace contains. The traced drafts have exponent 1.
        """
        plain = replace(spec, length=None, threshold=None, cost=None)
        if plain != ComparedDecoder.of(self.loader.base, spec.name) or spec.cost == AUTO:
            return False
        if names_class(str(spec.length)):
            return False
        return self._plan_of(self.loader.decoder(spec, self.sources.get(spec.name))).verifier.draft_exponent == 1

    def _rule(self, spec: ComparedDecoder) -> Rule:
        """Return the rule of the decoder's length controller."""
        cost = self.costs.get(spec.name)
        length = self.loader.decoder(spec, self.sources.get(spec.name)).length
        identity = {"spec": spec.identity, "costs": None if cost is None else cost.to_dict()}
        return Rule(spec.name, (AS_MEASURED,), identity, lambda traces: lambda index, x: length)

    def _predictors(self) -> dict[str, tuple[AcceptancePredictor | None, Identity]]:
        """Return the replayed predictors of acceptance with their identities; None is the draft's confidence."""
        predictors: dict[str, tuple[AcceptancePredictor | None, Identity]] = {
            DRAFT_CONFIDENCE: (None, {"predictor": None})
        }
        for name, spec in self.specs.items():
            predictor = predictor_of(self.loader.decoder(spec, at_ratio(0.2)), spec) if spec.trained else None
            if predictor is not None and self._replayable(spec) and name not in predictors:
                predictors[name] = predictor, {"predictor": spec.identity}
        return predictors

    # clock

    def _clock(self, families: Mapping[str, Tuned], passes: int) -> dict[str, list[TimedDecoding]]:
        """Return decodings by name and prompt, summed over the passes.

        Item i of a decoder is prompt ``i % prompts`` with the seed i.
        """
        prompts = self._encoded(self.rows)
        specs: dict[str, tuple[ComparedDecoder, ...]] = {name: (spec,) for name, spec in self.specs.items()}
        specs |= {
            name: (self._of_family(name, values.even), self._of_family(name, values.odd))
            for name, values in families.items()
        }
        decoding = {
            name: [self._generate(spec, self.sources.get(name)) for spec in decoder_specs]
            for name, decoder_specs in specs.items()
        }

        def decode(name: str, item: int, repeat: int) -> Generation:
            index = item % len(prompts)
            return decoding[name][index % len(specs[name])](prompts[index], self.task.seed + item)

        def identity(name: str, item: int) -> Identity:
            index, decoder_specs = item % len(prompts), specs[name]
            run = {"item": item, "prompts": len(prompts), "clock": name}
            return self._identity(decoder_specs[index % len(decoder_specs)], self.rows[index : index + 1]) | run

        records = interleave_stored(
            {name: partial(decode, name) for name in specs}, len(prompts) * passes, self.console,
            store=self.store, identity=identity,
            record=lambda name, item, timed: TimedDecoding.of(timed).to_dict(),
            meter=Meter.find(self.loader.target().target.device.type),
        )  # fmt: skip
        items = {name: [*map(TimedDecoding.from_dict, decodings)] for name, decodings in records.items()}
        return {
            name: [total(decodings[i :: len(prompts)]) for i in range(len(prompts))]
            for name, decodings in items.items()
        }

    def _identity(self, spec: ComparedDecoder, rows: Sequence[PromptRow]) -> dict[str, object]:
        """Return all settings on which the decoding of prompts depends."""
        cost = self.costs.get(spec.name) if spec.uses_costs else None
        costs = None if cost is None else cost.to_dict()
        return {**self.identity, "spec": spec.identity, "costs": costs, "prompt": _digest(rows)}

    def _of_family(self, family: str, value: float) -> ComparedDecoder:
        return ComparedDecoder.of(self.loader.base, family, length=word_of(family, value))

    def _generate(self, spec: ComparedDecoder, cost: CostSource | None) -> Generate:
        if spec.uses_costs and cost is None:
            spec = replace(spec, cost=AUTO)
        return self.loader.generate(spec, self.task.sampling, self.task.max_new_tokens, cost)

    # results

    def _result(
        self, spec: ComparedDecoder, values: Tuned | None, timed: Mapping[str, Sequence[TimedDecoding]]
    ) -> DecoderResult:
        """Return the figures of a decoder, or with ``values`` those of a tuned family."""
        result = DecoderResult(
            title=title(spec),
            family=spec.name if spec.name in FAMILIES else None,
            spec=spec,
            trained=spec.trained or spec.copies is not None or spec.router is not None,
        )
        counts = self._counts(spec.name, values)
        if counts is not None:
            speed = speed_of(counts, self._cost_of(spec.name))
            per_forward, accepted = rates(counts)
            result = replace(result, replay=speed, tokens_per_forward=per_forward, accepted=accepted)
        elif spec.name == NONE and self.replayed:
            result = replace(result, replay=Interval(1.0, 1.0, 1.0))
        if not timed:
            return result
        result = by_clock(result, timed[spec.name], timed[NONE])
        if not keeps_texts(spec, self.task.sampling):
            return result
        return replace(result, same_texts=same_texts(timed[spec.name], timed[NONE]))

    def _samples(self, specs: Mapping[str, ComparedDecoder], decoders: Mapping[str, DecoderResult]) -> Sample | None:
        """Return the first prompt, decoded with the two fastest decoders of this engine; None without such decoders."""
        names = [name for name, spec in specs.items() if name != NONE and spec.engine is None and spec.router is None]
        texts = {name: self._pieces(specs[name]) for name in fastest(decoders, names)[:2]}
        return Sample(self.rows[0].text, texts) if texts else None

    def _pieces(self, spec: ComparedDecoder) -> list[Piece]:
        """Return a text of a decoder in pieces with the source of each."""

        def decode() -> list[dict[str, str]]:
            decoder = self.loader.decoder(spec, self.sources.get(spec.name))
            assert decoder.tokenizer is not None
            sampling, budget = self.task.sampling, min(SHOWN, self.task.max_new_tokens)
            generation = decoder.generate(
                self._encoded(self.rows[:1])[0], max_new_tokens=budget, temperature=sampling.temperature,
                top_k=sampling.top_k, top_p=sampling.top_p, seed=self.task.seed,
            )  # fmt: skip
            pieces = pieces_by_author(generation.rounds, TextStream(decoder.tokenizer))
            names = {DRAFT: DRAFT if decoder.drafts else COPY}
            return [{"by": names.get(author, author), "text": text} for author, text in pieces if text]

        key = self._identity(spec, self.rows[:1]) | {"mosaic": spec.name}
        return [*map(Piece.from_dict, self.store.compute(key, decode))]


def predictor_of(decoder: SpeculativeDecoder, spec: ComparedDecoder) -> AcceptancePredictor | None:
    """Return the trained predictor of a decoder's length controller; None without one."""
    length = decoder.length if spec.length is not None else None
    return length.predictor if isinstance(length, RateOptimal | AcceptanceLength) else None


def trained_on(specs: Mapping[str, ComparedDecoder], rows: Sequence[PromptRow]) -> dict[str, list[str]]:
    """Return the ids of prompts that are in the training data of a decoder's controllers, by name of the decoder.

    Decoders without such prompts are left out.
    """
    trained = {}
    for name, spec in specs.items():
        digests = {digest for controller in controllers_of(spec) for digest in controller.provenance.prompts}
        if ids := [row.id for row in rows if prompt_digest(row.text) in digests]:
            trained[name] = ids
    return trained


def trained_for(specs: Mapping[str, ComparedDecoder], verifier: str) -> dict[str, str]:
    """Return the decoders whose controller was trained for another verification rule than ``verifier``.

    The result maps the name of a decoder to the rule of the training. It leaves out decoders with similar acceptance
    rates under both rules, length controllers that stop by costs, because they correct their predictions by the
    accepted tokens, and routers whose reward does not depend on a rule.
    """
    rules = {
        name: controller.verifier if isinstance(controller, policy.Config) else controller.provenance.verifier
        for name, spec in specs.items()
        if spec.verifier == AUTO
        for controller in controllers_of(spec)
        if controller.option == "router" or (controller.option == "length" and spec.threshold is not None)
    }
    return {name: rule for name, rule in rules.items() if rule is not None and differ_in_acceptance(rule, verifier)}


def controllers_of(spec: ComparedDecoder) -> list[ControllerConfig]:
    """Return the configurations of a decoder's trained controllers."""
    lengths = spec.length if isinstance(spec.length, tuple) else (spec.length,)
    named = [] if spec.engine is not None else [str(name) for name in lengths if name is not None]
    names = [name for name in named if not names_rule(name)]
    return [read_config(locate(name)) for name in [*names, spec.copies, spec.router] if name is not None]


def _traceable(decoder: SpeculativeDecoder) -> bool:
    """Return whether outputs of the pair can be recorded: two causal models that do not read each other's states."""
    models = [decoder.target, *decoder.drafts]
    return all(type(model) is CausalLM and not model.reads_states for model in models)


def _models(spec: ComparedDecoder) -> dict[str, object]:
    """Return all settings on which the costs of a decoder without a predictor depend."""
    return {"draft": split_drafts(spec.draft)[0], "dtype": spec.dtype, "draft_dtype": spec.draft_dtype}


def _digest(rows: Sequence[PromptRow]) -> str:
    return hashlib.sha256(json.dumps([[row.id, row.prompt] for row in rows]).encode()).hexdigest()[:20]


def total(runs: Sequence[TimedDecoding]) -> TimedDecoding:
    """Return the sums over one or more decodings."""
    return sum(runs[1:], runs[0])


def keeps_texts(spec: ComparedDecoder, sampling: SamplingParams) -> bool:
    """Return true if a decoder with drafts must write the same texts as one without, token for token."""
    if spec.name == NONE or spec.engine is not None:
        return False
    if sampling.temperature == 0:
        return verifier_of(spec).exact
    return verifier_of(spec, seeded=True).rule == INVARIANT


def same_texts(runs: Sequence[TimedDecoding], without_drafts: Sequence[TimedDecoding]) -> int | None:
    """Return the number of texts that are equal with and without drafts, token for token.

    The function compares the digests in :attr:`.TimedDecoding.texts`.

    Args:
        runs: the decodings with drafts.
        without_drafts: the decodings without drafts, of the same prompts in the same order.

    Returns:
        The number of equal texts. None if a decoding has no digests, or if two decodings of the same prompt have
        different numbers of texts.
    """
    equal = 0
    for run, baseline in zip(runs, without_drafts, strict=True):
        if not run.texts or len(run.texts) != len(baseline.texts):
            return None
        equal += sum(digest == expected for digest, expected in zip(run.texts, baseline.texts, strict=True))
    return equal


def by_clock(
    result: DecoderResult, runs: Sequence[TimedDecoding], without_drafts: Sequence[TimedDecoding]
) -> DecoderResult:
    """Return ``result`` with the figures of timed decodings.

    Args:
        result: the other figures of the decoder.
        runs: the decodings of the decoder, by prompt.
        without_drafts: the decodings without drafts, of the same prompts in the same order.
    """
    run, baseline = total(runs), total(without_drafts)
    per_second, baseline_per_second = (decoding.generated / decoding.processor_seconds for decoding in (run, baseline))
    result = replace(
        result,
        clock=speed_ratio(runs, without_drafts),
        processor=per_second / baseline_per_second,
        tokens_per_second=run.generated / run.seconds,
        joules=None if run.joules is None else run.joules / run.generated,
    )
    if not run.target_forwards:  # another engine, which does not count forwards
        return result
    stats = run.stats
    accepted = stats.acceptance_rate if run.drafted else None
    return replace(result, tokens_per_forward=stats.tokens_per_forward, accepted=accepted)
