"""``specpilot bench ablation``: what each step from SpecDec++'s head to ours gains, by replay on held-out texts.

Throughput is that of eq. 2.3 (Huang et al. 2024) relative to autoregressive decoding. All rules meet the same texts and
tosses. Baselines are as strong as can be: the best of their parameters on the very prompts they are judged on. Ours has
no parameter. The *informed bound* knows the true acceptance probability of every token drafted so far, and the best
threshold on their product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ...checkpoints import shipped
from ...controllers.acceptance.feature_model import FeatureModel
from ...controllers.checkpoints.acceptance_head import load_controller, read_config
from ...controllers.checkpoints.content import controller_digest
from ...controllers.checkpoints.fingerprint import PairFingerprint
from ...controllers.checkpoints.lag_free_head import is_lag_free
from ...controllers.errors import InputError
from ...controllers.length import (
    AcceptanceLength,
    AcceptancePredictor,
    Confidence,
    CumulativeConfidence,
    FeaturePredictor,
    Fixed,
    LagFreePredictor,
    LengthController,
    Oracle,
    Prediction,
    RateOptimal,
)
from ...controllers.length.cost_model import CostModel
from ...controllers.length.trained import head_predictor, lag_free_predictor
from ...controllers.sampling import SamplingParams
from ...infer.decoder import SpeculativeDecoder
from ...simulate.replay import PrecomputedPredictor
from ...simulate.trace import Trace
from ..ablation_settings import AblationOptions
from ..interval import interval
from ..store import Store
from .held_out import Texts, held_out, pooled
from .sweep_tables import Counted, Rule, Setting, groups_of, replay_all

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14)
CONFIDENCES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
CHANCES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # thresholds on Π a
PAPER_CHANCES = (0.1, 0.3, 0.5, 0.7, 0.9)  # SpecDec++'s h, which is 1 - this
THRESHOLD, RATE_OPTIMAL = ", best threshold", ", rate-optimal"

Judge = Callable[[Trace], list[Prediction]]


class InformedPredictor(AcceptancePredictor):
    """Knows the true acceptance probability of what is drafted."""

    lag, mean = 0, 0.5

    def predict(self, step: Any) -> Prediction:
        raise NotImplementedError("judgements are looked up in a trace")


def trained(path: str, decoder: SpeculativeDecoder) -> tuple[AcceptancePredictor, Judge, str]:
    """A trained controller's source, its judgements of all nodes of a trace, and a digest of its files.

    Raises:
        InputError: it cannot be loaded, or was trained for another pair.
    """
    local = shipped(path)
    file = Path(path).expanduser() if local is None else Path(local)
    digest = controller_digest(path)
    (draft,) = decoder.drafts
    assert decoder.tokenizer is not None, "loaded by name"
    pair = PairFingerprint.of(decoder.target.model, draft.model, decoder.tokenizer)
    if file.is_file():
        model = FeatureModel.load(file)
        model.provenance.check_pair(pair)
        source = FeaturePredictor(model)
        return source, lambda t: [Prediction(model.probability(*said)) for said in t.said], digest
    if is_lag_free(read_config(file)[1]):
        lag_free: LagFreePredictor = lag_free_predictor(str(file), pair, draft.model.get_output_embeddings().weight)
        return lag_free, lambda t: lag_free.judge_all(t.said, t.ngram_matches, t.states, t.tokens), digest
    controller = load_controller(file)
    controller.provenance.check_pair(pair)
    head = head_predictor(controller, torch.device("cpu"), undone=True)

    def judge(t: Trace) -> list[Prediction]:
        with torch.inference_mode():
            logits: list[float] = controller.head(t.states).tolist()
        return [Prediction(head.calibration(logit)) for logit in logits]

    return head, judge, digest


def baselines(*, greedy: bool) -> list[Rule]:
    """Rules without training, and what no rule can know."""

    def plain(name: str, parameters: tuple[float, ...], make: Callable[[float], LengthController]) -> Rule:
        return Rule(name, parameters, {"rule": name}, lambda traces: lambda index, x: make(x))

    def informed(traces: Sequence[Trace]) -> Callable[[int, float], LengthController]:
        sources = [
            PrecomputedPredictor(InformedPredictor(), [Prediction(chance) for chance in t.accept]) for t in traces
        ]
        return lambda index, chance: AcceptanceLength(sources[index], 1 - chance)

    def oracle(traces: Sequence[Trace]) -> Callable[[int, float], LengthController]:
        def make(index: int, unused: float) -> LengthController:
            rule = Oracle()
            rule.agrees = traces[index].kept
            return rule

        return make

    name = "oracle (Lemma 2.1)" if greedy else "knows the tosses"
    return [
        plain("fixed", LENGTHS, lambda k: Fixed(int(k))),
        plain("confidence", CONFIDENCES, Confidence),
        plain("cumulative confidence", CONFIDENCES, CumulativeConfidence),
        Rule("informed bound", CHANCES, {"rule": "informed"}, informed),
        Rule(name, (0.0,), {"rule": "oracle"}, oracle),
    ]


def learned(name: str, path: str, decoder: SpeculativeDecoder, costs: Mapping[str, CostModel]) -> list[Rule]:
    """A trained controller with thresholds, and with rate-optimal stopping at each of ``costs``: parameters 0, 1, …"""
    source, judge, digest = trained(path, decoder)
    models = [*costs.values()]

    def thresholds(traces: Sequence[Trace]) -> Callable[[int, float], LengthController]:
        looked = [PrecomputedPredictor(source, judge(t)) for t in traces]
        return lambda index, chance: AcceptanceLength(looked[index], 1 - chance)

    def rate_optimal(traces: Sequence[Trace]) -> Callable[[int, float], LengthController]:
        looked = [PrecomputedPredictor(source, judge(t)) for t in traces]
        return lambda index, which: RateOptimal(looked[index], models[int(which)])

    identity = {"controller": digest}
    priced = {"costs": [model.as_dict() for model in models]}
    return [
        Rule(name + THRESHOLD, CHANCES, {**identity, "rule": "threshold"}, thresholds),
        Rule(
            name + RATE_OPTIMAL,
            tuple(map(float, range(len(models)))),
            {**identity, **priced, "rule": "rate-optimal"},
            rate_optimal,
        ),
    ]


def speedup(generated: Any, drafted: Any, forwards: Any, *, cost: CostModel) -> Any:
    """Throughput of eq. 2.3 relative to autoregressive decoding; the prefill and its token are left out."""
    seconds = drafted * cost.t_draft + forwards * cost.t_verify + (drafted + forwards) * cost.t_verify_token
    return generated * cost.round(0) / seconds


def arrays(counts: Counted, domains: Sequence[str]) -> tuple[NDArray[np.float64], ...]:
    """(prompts,) each: generated, drafted and target forwards, without the prefill's token."""
    table = np.array([[c.generated - 1, c.drafted, c.target_forwards - 1] for c in pooled(counts, domains)], float)
    return table[:, 0], table[:, 1], table[:, 2]


def summarise(
    counted: Mapping[Setting, Counted], costs: Mapping[str, CostModel], in_domain: Sequence[str], ours: str
) -> dict[str, Any]:
    """The tables: ``ratios`` with the figures that matter, ``table`` with every row and its interval."""
    groups = groups_of(counted, in_domain)
    names = list(dict.fromkeys(name for name, _ in counted))
    result: dict[str, Any] = {"groups": groups, "ours": ours + RATE_OPTIMAL, "ratios": {}, "table": {}}
    for which, (label, cost) in enumerate(costs.items()):
        best = {
            group: {name: _best(counted, name, domains, cost, which) for name in names}
            for group, domains in groups.items()
        }
        result["table"][label] = {
            group: {name: _row(counted, best[group], name, domains, cost) for name in names}
            for group, domains in groups.items()
        }
        result["ratios"][label] = {
            group: _headline(counted, best, group, groups, cost, ours + RATE_OPTIMAL) for group in groups
        }
    return result


def _value(counted: Mapping[Setting, Counted], setting: Setting, domains: Sequence[str], cost: CostModel) -> float:
    return float(speedup(*(x.sum() for x in arrays(counted[setting], domains)), cost=cost))


def _best(
    counted: Mapping[Setting, Counted], name: str, domains: Sequence[str], cost: CostModel, which: int
) -> Setting:
    """The setting of a rule that counts: the best of its parameters; of rate-optimal stopping, that of these costs."""
    if name.endswith(RATE_OPTIMAL):
        return name, float(which)
    return max((s for s in counted if s[0] == name), key=lambda s: _value(counted, s, domains, cost))


def _row(
    counted: Mapping[Setting, Counted],
    best: Mapping[str, Setting],
    name: str,
    domains: Sequence[str],
    cost: CostModel,
) -> dict[str, Any]:
    setting = best[name]
    values = arrays(counted[setting], domains)
    value, low, high = interval(lambda *sums: speedup(*sums, cost=cost), *values)
    generated, drafted, forwards = (float(x.sum()) for x in values)
    accepted = sum(c.accepted for c in pooled(counted[setting], domains))
    row = {
        "speedup": value,
        "low": low,
        "high": high,
        "discard_rate": (drafted - accepted) / generated,
        "verification_rate": forwards / generated,
    }
    return row if name.endswith(RATE_OPTIMAL) else {**row, "parameter": setting[1]}


def _headline(
    counted: Mapping[Setting, Counted],
    best: Mapping[str, Mapping[str, Setting]],
    group: str,
    groups: Mapping[str, Sequence[str]],
    cost: CostModel,
    ours: str,
) -> dict[str, Any]:
    domains = groups[group]

    def top(*names: str) -> Setting:
        return max((best[group][name] for name in names), key=lambda s: _value(counted, s, domains, cost))

    fixed, confidence = top("fixed"), top("confidence", "cumulative confidence")
    values = {
        "best_fixed": _value(counted, fixed, domains, cost),
        "best_confidence": _value(counted, confidence, domains, cost),
        "informed_bound": _value(counted, top("informed bound"), domains, cost),
        "ours": _value(counted, best[group][ours], domains, cost),
    }
    # The confidence rule as it can be had: its threshold tuned where there is data, on the domains of training.
    home = max(
        (best["in_domain"][name] for name in ("confidence", "cumulative confidence")),
        key=lambda s: _value(counted, s, groups["in_domain"], cost),
    )
    values["confidence_tuned_in_domain"] = _value(counted, home, domains, cost)
    gap = values["informed_bound"] - values["best_fixed"]
    values["share_of_the_way"] = (values["ours"] - values["best_fixed"]) / gap if gap > 0 else 0.0

    def ratio(*sums: Any) -> Any:
        return speedup(*sums[:3], cost=cost) / speedup(*sums[3:], cost=cost)

    mine = arrays(counted[best[group][ours]], domains)
    detail: dict[str, Any] = dict(values)
    for against, setting in (("best_fixed", fixed), ("best_confidence", confidence)):
        found = interval(ratio, *mine, *arrays(counted[setting], domains))
        detail[f"ours_over_{against}"] = dict(zip(("ratio", "low", "high"), found, strict=True))
    own = ours.replace(RATE_OPTIMAL, THRESHOLD)
    detail["ours_over_its_best_threshold"] = values["ours"] / _value(counted, best[group][own], domains, cost)
    return detail


def as_tables(result: Mapping[str, Any]) -> list[Table]:
    """One table for each cost, for the eye; the domains one by one are in the JSON."""
    tables = []
    for label, rows in result["table"].items():
        groups = [group for group in ("in_domain", "left_out") if group in rows]
        table = Table("rule", *groups, title=f"speed-up over autoregressive by eq. 2.3, t_draft / t_verify: {label}")
        for name in rows[groups[0]]:
            cells = [rows[group][name] for group in groups]
            table.add_row(name, *(f"{c['speedup']:.3f} ({c['low']:.3f}-{c['high']:.3f})" for c in cells))
        shares = [result["ratios"][label][group]["share_of_the_way"] for group in groups]
        table.add_row("share of the way from fixed to informed", *(f"{share:.0%}" for share in shares))
        tables.append(table)
    return tables


def run_ablation(settings: AblationOptions, folder: Path, console: Console) -> dict[str, Any]:
    """Trace the texts, replay every rule over them and put the tables together; goes on where an earlier run stopped.

    Raises:
        InputError: a model, controller or cost is missing or does not fit, or there are too few prompts.
    """
    decoder = SpeculativeDecoder.from_pretrained(settings.target, settings.draft, device=settings.device)
    costs = {_label(str(name)): CostModel.load(name) for name in settings.costs}
    sampling = SamplingParams(settings.temperature, settings.top_k, settings.top_p)
    families = baselines(greedy=sampling.temperature == 0)
    for controller in settings.controllers:
        name, _, path = controller.partition("=")
        families += learned(name, path, decoder, costs)
    chunks = held_out(settings.prompts, settings.per_domain)
    if missing := set(settings.in_domain) - {chunk.domain for chunk in chunks}:
        raise InputError(f"in_domain: no prompts of {sorted(missing)[0]!r} in {settings.prompts}")
    (draft,) = decoder.drafts
    assert decoder.tokenizer is not None, "loaded by name"
    identity = {
        "pair": PairFingerprint.of(decoder.target.model, draft.model, decoder.tokenizer).as_dict(),
        "sampling": sampling.as_dict(),
        "max_new_tokens": settings.max_new_tokens,
        "seed": settings.seed,
        "device": decoder.target.device.type,
    }
    texts = Texts(decoder, sampling, settings.max_new_tokens, settings.seed)
    columns = TextColumn("chunks of prompts"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(chunks))
        counted = replay_all(texts, chunks, families, Store(folder), identity, lambda: progress.advance(task))
    assert settings.ours is not None, "the settings put the last one there"
    return summarise(counted, costs, settings.in_domain, settings.ours)


def _label(cost: str) -> str:
    """A number as it is; a file is what was measured."""
    return "measured" if Path(cost).expanduser().is_file() else cost
