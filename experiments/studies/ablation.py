"""``python -m experiments ablation``: gain of each step from SpecDec++'s head to ours, by replay on held-out prompts.

Throughput is that of eq. 2.3 (Huang et al. 2024) relative to autoregressive decoding. All rules are replayed over the
same outputs with the same random draws. The parameter of an untrained rule is the best on the prompts it is evaluated
on; ours has no parameter. The *informed bound* is the best threshold on the product of the drafted tokens' true
acceptance probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from rich.console import Console
from specpilot.commands.measuring import begin, finish
from specpilot.common.errors import InputError
from specpilot.common.options import Count, Folder, Names, SeedOptions, Several
from specpilot.compare.interval import interval, show
from specpilot.compare.recorded import MakeController, Rule, Setting, Tracer, speedup
from specpilot.compare.store import Store
from specpilot.compare.table import Table
from specpilot.controllers.checkpoints.checkpoint import controller_digest
from specpilot.controllers.checkpoints.fingerprint import PairFingerprint
from specpilot.controllers.length import (
    AcceptanceLength,
    AcceptancePredictor,
    AdaptiveLength,
    Bandit,
    Confidence,
    CumulativeConfidence,
    Fixed,
    LengthController,
    OnlineConfidence,
    Oracle,
    RateOptimal,
)
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.length.trained import load_predictor
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.models import output_embedding
from specpilot.infer.options import DeviceOptions, PairOptions, SamplingOptions
from specpilot.simulate.replay import PrecomputedPredictor
from specpilot.simulate.trace import Trace

from .held_out import (
    Counted,
    DomainCounts,
    HeldOutOptions,
    StudyFolderOptions,
    columns,
    groups_of,
    held_out,
    in_domain,
    rates_of,
    replay_domains,
)

THRESHOLD, RATE_OPTIMAL = ", best threshold", ", rate-optimal"
INFORMED = "informed bound"
CONFIDENCE_RULES = ("confidence", "cumulative confidence")
ADAPTIVE, BANDIT, ONLINE = "adaptive length", "bandit", "online confidence"
UNTRAINED = ("fixed", *CONFIDENCE_RULES, ADAPTIVE, BANDIT, ONLINE + THRESHOLD, ONLINE + RATE_OPTIMAL)
MEASURED = ("best_fixed", "best_confidence", "best_untrained")  # baselines
LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14)
CONFIDENCES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
# Thresholds on the product of acceptance probabilities; SpecDec++'s h is 1 minus this.
SURVIVALS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

PredictAll = Callable[[Trace], list[float]]  # trace → predictions for all its nodes


@dataclass(frozen=True, kw_only=True)
class AblationOptions(PairOptions, HeldOutOptions, SamplingOptions, SeedOptions, DeviceOptions, StudyFolderOptions):
    """Study.

    Attributes:
        controllers: Trained controllers as name=PATH, in the order of the table.
        ours: Name of the controller that is compared with the rules. Default: the last.
        costs: Cost models: ratios t_draft / t_verify, or files of `specpilot bench cost --output`.
    """

    controllers: Names
    ours: str | None = None
    costs: Annotated[tuple[float | str, ...], Several()] = (0.21, 0.05)
    per_domain: Count = 300
    max_new_tokens: Count = 64
    folder: Folder = Path("runs/ablation")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "costs", tuple(map(str, self.costs)))
        names = [controller.partition("=")[0] for controller in self.controllers]
        for controller, name in zip(self.controllers, names, strict=True):
            if not name or "=" not in controller:
                raise InputError(f"controllers: {controller!r}: give it as name=PATH")
            if names.count(name) > 1:
                raise InputError(f"controllers: the name {name!r} is given twice")
        if self.ours is None:
            object.__setattr__(self, "ours", names[-1])
        elif self.ours not in names:
            raise InputError(f"ours={self.ours!r}: choose one of {', '.join(names)}")


class InformedPredictor(AcceptancePredictor):
    """Predicts the true acceptance probability of drafted tokens, taken from a trace."""

    lag, mean = 0, 0.5

    def predict(self, step: Any) -> float:
        raise NotImplementedError("its predictions are precomputed from a trace")


def run_ablation(settings: AblationOptions, folder: Path, console: Console) -> dict[str, Any]:
    """Trace the outputs, replay every rule over them and make the tables; continues an interrupted run.

    Raises:
        InputError: a model, controller or cost is missing or does not fit, there are too few prompts, or another
            process writes to ``folder``.
    """
    with Store(folder) as store:
        decoder = SpeculativeDecoder.from_pretrained(settings.target, settings.draft, device=settings.device)
        costs = {_label(str(name)): CostModel.load(name) for name in settings.costs}
        sampling = SamplingParams(settings.temperature, settings.top_k, settings.top_p)
        rules = [*online_rules(costs), *baselines(greedy=sampling.temperature == 0)]
        for controller in settings.controllers:
            name, _, path = controller.partition("=")
            rules += learned(name, path, decoder, costs)
        rows = held_out(settings)
        domains = in_domain(settings, rows)
        tracer = Tracer(
            decoder, sampling, settings.max_new_tokens, settings.seed, chat=settings.chat, system=settings.system
        )
        counted = replay_domains(tracer, rows, rules, store, console)
    assert settings.ours is not None, "the settings put the last one there"
    return summarise(counted, costs, domains, settings.ours)


def _label(cost: str) -> str:
    """The label of a cost: a number is its own label, a file is "measured"."""
    return "measured" if Path(cost).expanduser().is_file() else cost


def baselines(*, greedy: bool) -> list[Rule]:
    """Rules without training, the informed bound and the oracle."""

    def informed(traces: Sequence[Trace]) -> MakeController:
        predictors = [PrecomputedPredictor(InformedPredictor(), [*t.accept]) for t in traces]
        return lambda index, survival: AcceptanceLength(predictors[index], 1 - survival)

    def oracle(traces: Sequence[Trace]) -> MakeController:
        def make(index: int, unused: float) -> LengthController:
            rule = Oracle()
            rule.agrees = traces[index].kept
            return rule

        return make

    name = "oracle (Lemma 2.1)" if greedy else "oracle (knows the draws)"
    return [
        Rule.untrained("fixed", LENGTHS, lambda k: Fixed(int(k))),
        Rule.untrained("confidence", CONFIDENCES, Confidence),
        Rule.untrained("cumulative confidence", CONFIDENCES, CumulativeConfidence),
        Rule(INFORMED, SURVIVALS, {"rule": "informed"}, informed),
        Rule(name, (0.0,), {"rule": "oracle"}, oracle),
    ]


def online_rules(costs: Mapping[str, CostModel]) -> list[Rule]:
    """Rules that learn while decoding; the parameter of the cost-based rule is an index into ``costs``."""
    models = [*costs.values()]

    priced = {"costs": [model.as_dict() for model in models], "rule": ONLINE + RATE_OPTIMAL}
    by_cost = Rule.untrained(
        ONLINE + RATE_OPTIMAL, tuple(map(float, range(len(models)))), lambda x: OnlineConfidence(cost=models[int(x)])
    )
    return [
        Rule.untrained(ADAPTIVE, (1, 4, 8), AdaptiveLength),
        Rule.untrained(BANDIT, (0.0,), lambda unused: Bandit()),
        Rule.untrained(ONLINE + THRESHOLD, CONFIDENCES, OnlineConfidence),
        replace(by_cost, identity=priced),
    ]


def learned(name: str, path: str, decoder: SpeculativeDecoder, costs: Mapping[str, CostModel]) -> list[Rule]:
    """A trained controller with thresholds, and with rate-optimal stopping, whose parameter indexes ``costs``."""
    predictor, predict_all, digest = trained(path, decoder)
    models = [*costs.values()]

    def precompute(traces: Sequence[Trace]) -> list[PrecomputedPredictor]:
        return [PrecomputedPredictor(predictor, predict_all(t)) for t in traces]

    def thresholds(traces: Sequence[Trace]) -> MakeController:
        predictors = precompute(traces)
        return lambda index, survival: AcceptanceLength(predictors[index], 1 - survival)

    def rate_optimal(traces: Sequence[Trace]) -> MakeController:
        predictors = precompute(traces)
        return lambda index, which: RateOptimal(predictors[index], models[int(which)])

    priced = {"controller": digest, "costs": [model.as_dict() for model in models], "rule": "rate-optimal"}
    return [
        Rule(name + THRESHOLD, SURVIVALS, {"controller": digest, "rule": "threshold"}, thresholds),
        Rule(name + RATE_OPTIMAL, tuple(map(float, range(len(models)))), priced, rate_optimal),
    ]


def trained(path: str, decoder: SpeculativeDecoder) -> tuple[AcceptancePredictor, PredictAll, str]:
    """A trained controller's predictor, its predictions for all nodes of a trace, and a digest of its files.

    Raises:
        InputError: it cannot be loaded, or was trained for another pair.
    """
    digest, (draft,) = controller_digest(path), decoder.drafts
    assert decoder.tokenizer is not None, "decoder was not loaded by name"
    pair = PairFingerprint.of(decoder.target.model, draft.model, decoder.tokenizer)
    embedding = output_embedding(draft.model)
    _, predictor = load_predictor(path, pair, torch.device("cpu"), embedding, calibrated=True)

    def predict_all(t: Trace) -> list[float]:
        return predictor.predict_all(t.signals, t.ngram_matches, t.states, t.tokens)

    return predictor, predict_all, digest


def counters(counts: DomainCounts, domains: Sequence[str]) -> tuple[Any, Any, Any]:
    """(prompts,) each: generated and drafted tokens and target forwards, without the token of the prefill."""
    generated, drafted, _, forwards = columns(counts, domains)
    return generated - 1, drafted, forwards - 1


@dataclass(frozen=True)
class View:
    """The counters of all settings on some domains, under one cost model.

    Attributes:
        which: index of the cost model, which is the parameter of rate-optimal stopping.
    """

    counted: Counted
    domains: Sequence[str]
    cost: CostModel
    which: int

    def value(self, setting: Setting) -> float:
        """Speed-up of a setting."""
        return float(speedup(*(x.sum() for x in counters(self.counted[setting], self.domains)), cost=self.cost))

    def best(self, *rules: str) -> Setting:
        """The best setting of the rules; rate-optimal stopping is considered only for this cost model."""
        settings = [s for s in self.counted if s[0] in rules and (not _optimal(s[0]) or s[1] == self.which)]
        return max(settings, key=self.value)

    def row(self, rule: str) -> dict[str, Any]:
        """A rule's speed-up with its interval, its rates and its best parameter."""
        setting = self.best(rule)
        generated, drafted, accepted, forwards = columns(self.counted[setting], self.domains)
        values = counters(self.counted[setting], self.domains)
        row = interval(partial(speedup, cost=self.cost), *values).as_dict("speedup")
        row |= rates_of(generated - 1, drafted, accepted, forwards - 1)
        return row if _optimal(rule) else row | {"parameter": setting[1]}

    def compare(self, setting: Setting, baseline: Setting) -> dict[str, float]:
        """Ratio of two settings' throughputs with its interval."""

        def ratio(*sums: Any) -> Any:
            return speedup(*sums[:3], cost=self.cost) / speedup(*sums[3:], cost=self.cost)

        pair = (counters(self.counted[one], self.domains) for one in (setting, baseline))
        return interval(ratio, *(x for values in pair for x in values)).as_dict("ratio")


def _optimal(rule: str) -> bool:
    return rule.endswith(RATE_OPTIMAL)


def summarise(counted: Counted, costs: Mapping[str, CostModel], in_domain: Sequence[str], ours: str) -> dict[str, Any]:
    """The result: ``ratios`` holds the main figures, ``table`` every rule with its interval."""
    groups = groups_of(list(next(iter(counted.values()))), in_domain)
    names = list(dict.fromkeys(name for name, _ in counted))
    result: dict[str, Any] = {"groups": groups, "ours": ours + RATE_OPTIMAL, "ratios": {}, "table": {}}
    for which, (label, cost) in enumerate(costs.items()):
        views = {group: View(counted, domains, cost, which) for group, domains in groups.items()}
        result["table"][label] = {group: {name: view.row(name) for name in names} for group, view in views.items()}
        result["ratios"][label] = {group: _main(view, views["in_domain"], ours) for group, view in views.items()}
    return result


def _main(view: View, in_domain: View, ours: str) -> dict[str, Any]:
    settings = {
        "best_fixed": view.best("fixed"),
        "best_confidence": view.best(*CONFIDENCE_RULES),
        "best_untrained": view.best(*UNTRAINED),
        "informed_bound": view.best(INFORMED),
        "ours": view.best(ours + RATE_OPTIMAL),
        # The threshold is tuned on the training domains, as it would be in practice.
        "confidence_tuned_in_domain": in_domain.best(*CONFIDENCE_RULES),
    }
    found: dict[str, Any] = {name: view.value(setting) for name, setting in settings.items()}
    gap = found["informed_bound"] - found["best_fixed"]
    found["share_of_the_way"] = (found["ours"] - found["best_fixed"]) / gap if gap > 0 else 0.0
    for against in MEASURED:
        found[f"ours_over_{against}"] = view.compare(settings["ours"], settings[against])
    found["ours_over_its_best_threshold"] = found["ours"] / view.value(view.best(ours + THRESHOLD))
    return found


def as_tables(result: Mapping[str, Any]) -> list[Table]:
    """The main figures, and a table for each cost; figures of single domains are in the JSON only."""
    tables = [_main_table(result["ratios"])]
    for label, by_group in result["table"].items():
        groups = [group for group in ("in_domain", "left_out") if group in by_group]
        rows = [
            {"rule": name, **{group.replace("_", "-"): _cell(by_group[group][name]) for group in groups}}
            for name in by_group[groups[0]]
        ]
        shares = {
            group.replace("_", "-"): f"{result['ratios'][label][group]['share_of_the_way']:.0%}" for group in groups
        }
        rows.append({"rule": "share of the gap between fixed and informed", **shares})
        tables.append(Table(f"speed-up over autoregressive by eq. 2.3, t_draft / t_verify: {label}", rows))
    return tables


def _cell(row: Mapping[str, Any]) -> str:
    parameter = f", at {row['parameter']:g}" if isinstance(row.get("parameter"), int | float) else ""
    return show(row, "speedup", 3) + parameter


def _main_table(ratios: Mapping[str, Any]) -> Table:
    rows = [
        {
            "costs": label,
            "prompts": group.replace("_", "-"),
            "best fixed length": f"{row['best_fixed']:.3f}",
            "best confidence": f"{row['best_confidence']:.3f}",
            "best without training": f"{row['best_untrained']:.3f}",
            "informed bound": f"{row['informed_bound']:.3f}",
            "ours": f"[bold]{row['ours']:.3f}[/bold]",
            "share of the gap": f"{row['share_of_the_way']:.0%}",
            **{
                f"over {against.replace('_', ' ')}": show(row[f"ours_over_{against}"], "ratio", 3)
                for against in MEASURED
            },
            "over its best threshold": f"{row['ours_over_its_best_threshold']:.3f}",
        }
        for label, by_group in ratios.items()
        for group, row in by_group.items()
        if group in ("in_domain", "left_out")
    ]
    return Table("speed-up over autoregressive by eq. 2.3", rows)


def main(options: AblationOptions) -> None:
    """Replay rules and trained controllers over held-out texts: speed-ups by eq. 2.3 and the informed bound."""
    console = begin()
    result = run_ablation(options, options.folder, console)
    for table in as_tables(result):
        console.print(table)
    finish(result, options, options.output)
