"""``specpilot bench clock``: a trained controller against every rule of stopping, by the clock.

All configurations decode the same held-out prompts in one process, in turn, in several passes. Rules with a parameter
have all values of a grid, and the best of them on the very prompts they are compared on, or on the other half of them
(``tuned_elsewhere``); the trained controller goes by measured costs and has no parameter. With costs that adapt to the
rounds' times it is another configuration. Tokens per second include the prefill. A run that was cut short is continued.

Beside the wall time, the processor time of the process is recorded: on a machine that does other work as well the two
differ, and with one thread the second is what the first would be without that work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
from rich.console import Console
from specpilot.compare.cost import bench_cost, trained_predictor
from specpilot.compare.held_out import held_out, in_domain
from specpilot.compare.interval import ratio_interval, show
from specpilot.compare.replay import groups_of
from specpilot.compare.runner import Run, Timed, interleave_stored
from specpilot.compare.store import Store
from specpilot.compare.table import Table
from specpilot.controllers.checkpoints.checkpoint import controller_digest
from specpilot.controllers.length import LengthController, RateOptimal, parse_rule
from specpilot.controllers.length.cost_model import CostModel
from specpilot.data_gen.prompts import PromptRow, load_prompts
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.generation import Generation
from specpilot.infer.prompting import encode_prompt

from ..options import ClockBenchOptions
from .decode import Times

FIXED = tuple(str(k) for k in range(1, 6))
CONFIDENCES = (0.2, 0.3, 0.4, 0.5, 0.6)
CONFIDENCE_RULES = tuple(f"{rule}:{x}" for rule in ("confidence", "cumulative-confidence") for x in CONFIDENCES)
LEARNING = ("online-confidence", "bandit", "adaptive-length")
OURS, ADAPTING, AUTOREGRESSIVE = "ours", "ours, adapting costs", "none"
LABELS = {"in_domain": "in-domain", "left_out": "left-out", "misfit": "a draft that fits badly"}
GRIDS = {"best_confidence": CONFIDENCE_RULES, "best_fixed": FIXED, "best_learning": LEARNING}
MISFIT_RULES = ("1", "2", "cumulative-confidence:0.4")
COST_PROMPTS, COST_REPEATS = 4, 3

Generate = Callable[..., Generation]
Clocks = dict[str, dict[str, Times]]  # by clock and configuration
Record = dict[str, float]  # tokens, wall and processor seconds of a generation
WALL, PROCESSOR = "seconds", "processor_seconds"


def bench_clock(options: ClockBenchOptions, console: Console) -> dict[str, Any]:
    """Measure what is not in the folder yet, and sum up.

    Raises:
        InputError: a model or controller is missing or does not fit, there are too few prompts, or another process
            measures in the folder.
    """
    decoder = SpeculativeDecoder.from_pretrained(options.target, options.draft, device=options.device)
    batches = held_out(options)
    domains = in_domain(options, batches)
    prompts = [row for batch in batches for row in batch.prompts]
    with Store(options.folder) as store:
        identity = {"version": version("specpilot"), "pair": [options.target, options.draft], **options.sampling}
        cost = _cost(options, decoder, store, identity, console)
        identity |= {"costs": cost.as_dict()}
        pair = _Clock(options, store, console, identity)
        times = pair.run(decoder, options.controller, [*FIXED, *CONFIDENCE_RULES, *LEARNING], prompts, cost)
        misfit = None
        if options.misfit is not None:
            assert options.misfit_controller is not None, "the options demand both"
            other = SpeculativeDecoder.from_pretrained(options.target, options.misfit, device=options.device)
            rows = [row for row in prompts if row.domain == options.misfit_domain]
            misfit = pair.run(other, options.misfit_controller, MISFIT_RULES, rows, cost)
    groups = groups_of([batch.domain for batch in batches], domains)
    labels = [row.domain for row in prompts]
    by_clock = {
        clock: summary(times[clock], labels, groups, None if misfit is None else misfit[clock])
        for clock in (WALL, PROCESSOR)
    }
    return {"cost": cost.as_dict(), **by_clock[WALL], "by_processor_time": by_clock[PROCESSOR]}


def _cost(
    options: ClockBenchOptions,
    decoder: SpeculativeDecoder,
    store: Store,
    identity: Mapping[str, Any],
    console: Console,
) -> CostModel:
    if options.cost is not None:
        return CostModel.load(options.cost)
    key = {**identity, "cost": controller_digest(options.controller)}
    return CostModel(**store.compute(key, lambda: measured_cost(options, decoder, console)))


def measured_cost(options: ClockBenchOptions, decoder: SpeculativeDecoder, console: Console) -> dict[str, float]:
    """Costs of the pair's loop with the controller's predictions in it, on prompts of the training split."""
    rows = load_prompts(options.prompts, column=options.column, split="train", limit=COST_PROMPTS)
    result = bench_cost(
        decoder, _encoded(decoder, rows, options), console,
        repeats=COST_REPEATS, sampling=options.sampling, predictor=trained_predictor(decoder, options.controller),
    )  # fmt: skip
    cost: dict[str, float] = result["cost"]
    return cost


def _load(decoder: SpeculativeDecoder, spec: str, cost: CostModel) -> LengthController:
    return parse_rule(spec, cost) or decoder.load_length(spec, cost=cost)


def _encoded(decoder: SpeculativeDecoder, rows: Sequence[PromptRow], options: ClockBenchOptions) -> list[list[int]]:
    return [encode_prompt(decoder.tokenizer, row.prompt, chat=options.chat, system=options.system) for row in rows]


class _Clock:
    """Times configurations of a pair, or takes their times from the store."""

    def __init__(self, options: ClockBenchOptions, store: Store, console: Console, identity: Mapping[str, Any]) -> None:
        self.options, self.store, self.console, self.identity = options, store, console, identity

    def run(
        self,
        decoder: SpeculativeDecoder,
        controller: str,
        rules: Sequence[str],
        rows: Sequence[PromptRow],
        cost: CostModel,
    ) -> Clocks:
        """Times of ``rules``, of the trained controller with and without adapting costs, and of no draft."""
        plain = SpeculativeDecoder(decoder.target, None, decoder.tokenizer)
        decoders: dict[str, Generate] = {AUTOREGRESSIVE: plain.generate}
        trained = _load(decoder, controller, cost)
        assert isinstance(trained, RateOptimal), "given costs, it goes by them"
        decoders[OURS] = partial(decoder.generate, length=trained)
        decoders[ADAPTING] = partial(decoder.generate, length=RateOptimal(trained.predictor, cost, adapt=True))
        decoders |= {rule: partial(decoder.generate, length=_load(decoder, rule, cost)) for rule in rules}
        prompts, passes = _encoded(decoder, rows, self.options), self.options.repeats
        of = {**self.identity, "controller": controller_digest(controller)}

        def runs(generate: Generate) -> Run[Generation]:
            return lambda item, repeat: generate(prompts[item % len(prompts)], seed=item, **self.options.sampling)

        def identify(name: str, item: int) -> dict[str, Any]:
            row = rows[item % len(rows)]
            return {**of, "name": name, "prompt": [row.id, row.prompt], "seed": item}

        found = interleave_stored(
            {name: runs(generate) for name, generate in decoders.items()}, passes * len(rows), self.console,
            store=self.store, identity=identify, record=_record,
        )  # fmt: skip
        return {
            clock: {name: _times(records, len(rows), clock) for name, records in found.items()}
            for clock in (WALL, PROCESSOR)
        }


def _record(name: str, item: int, timed: Timed[Generation]) -> Record:
    return {"tokens": len(timed.value.tokens), WALL: timed.seconds, PROCESSOR: timed.processor_seconds}


def _times(records: Sequence[Record], prompts: int, clock: str) -> Times:
    """Of records pass after pass, by one of the clocks."""

    def by_prompt(key: str) -> list[list[Any]]:
        return [[record[key] for record in records[row::prompts]] for row in range(prompts)]

    return Times(by_prompt("tokens"), by_prompt(clock))


def _part(times: Times, rows: Sequence[int]) -> Times:
    return Times([times.tokens[row] for row in rows], [times.seconds[row] for row in rows])


def summary(
    times: Mapping[str, Times],
    domains: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    misfit: Mapping[str, Times] | None,
) -> dict[str, Any]:
    """Rates and ratios of each group of domains, and of the pair that fits badly.

    Args:
        times: by configuration, of all prompts.
        domains: (prompts,) the domain of each.
        misfit: of a draft that fits badly.
    """
    result: dict[str, Any] = {}
    for group, members in groups.items():
        rows = [row for row, domain in enumerate(domains) if domain in members]
        result[group] = _compare({name: _part(of_name, rows) for name, of_name in times.items()})
    if misfit is not None:
        result["misfit"] = _compare(misfit)
    worst = min(result[group]["over_autoregressive"]["ratio"] for group in result)
    return result | {"worst_over_autoregressive": worst}


def _compare(times: Mapping[str, Times]) -> dict[str, Any]:
    """Tokens per second of ours and of the best of each grid, and ours over each of them."""
    ours, rates = times[OURS], {name: of_name.rate for name, of_name in times.items()}
    grids = {kind: [name for name in grid if name in times] for kind, grid in GRIDS.items()}
    best = {kind: max(grid, key=rates.__getitem__) for kind, grid in grids.items() if grid}
    result: dict[str, Any] = {"ours": rates[OURS]}
    result |= {kind: rates[name] for kind, name in best.items()}
    result |= {"autoregressive": rates[AUTOREGRESSIVE], "names": best}
    for kind, name in {**best, "autoregressive": AUTOREGRESSIVE}.items():
        result[f"over_{kind}"] = ratio_interval(*ours.totals, *times[name].totals).as_dict("ratio")
    for kind in best:
        other = ratio_interval(*ours.totals, *tuned_elsewhere(times, grids[kind]))
        result[f"over_{kind}_tuned_elsewhere"] = other.as_dict("ratio")
    return result | {"tokens_per_second": rates}


def tuned_elsewhere(times: Mapping[str, Times], grid: Sequence[str]) -> tuple[Any, Any]:
    """Tokens and seconds (prompts,) of a rule whose parameter is chosen on the other half of the prompts."""
    count = len(times[grid[0]].tokens)
    tokens, seconds = np.zeros(count), np.zeros(count)
    for half in range(min(2, count)):
        rows, others = [*range(half, count, 2)], [*range(1 - half, count, 2)] or [0]
        best = max(grid, key=lambda name: _part(times[name], others).rate)
        tokens[rows], seconds[rows] = _part(times[best], rows).totals
    return tokens, seconds


def as_table(result: Mapping[str, Any]) -> Table:
    """A row for each group of domains."""
    rows = []
    for group, found in result.items():
        if not isinstance(found, dict) or OURS not in found:
            continue
        row = {"prompts": LABELS.get(group, group), "ours, tokens/s": f"{found[OURS]:.0f}"}
        kinds = [kind for kind in (*GRIDS, "autoregressive") if kind in found]
        for kind in kinds:
            name = found["names"].get(kind)
            label = kind.replace("_", " ")
            row[label] = f"{found[kind]:.0f}" + (f" ({name})" if name else "")
            row[f"over {label}"] = show(found[f"over_{kind}"], "ratio", 3)
            if kind == "best_confidence":
                row["over confidence tuned elsewhere"] = show(found[f"over_{kind}_tuned_elsewhere"], "ratio", 3)
        rows.append(row)
    return Table("tokens per second", rows)
