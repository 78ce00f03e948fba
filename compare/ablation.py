"""``specpilot bench ablation``: gain of each step from SpecDec++'s head to ours, by replay on held-out prompts.

Throughput is that of eq. 2.3 (Huang et al. 2024) relative to autoregressive decoding. All rules are replayed over the
same outputs with the same random draws. The parameter of an untrained rule is the best on the prompts it is evaluated
on; ours has no parameter. The *informed bound* is the best threshold on the product of the drafted tokens' true
acceptance probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ..controllers.checkpoints.checkpoint import controller_digest
from ..controllers.checkpoints.fingerprint import PairFingerprint
from ..controllers.length import (
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
from ..controllers.length.cost_model import CostModel
from ..controllers.length.trained import load_predictor
from ..controllers.sampling import SamplingParams
from ..infer.decoder import SpeculativeDecoder
from ..infer.models import output_embedding
from ..simulate.replay import PrecomputedPredictor
from ..simulate.trace import Trace
from .ablation_tables import ADAPTIVE, BANDIT, INFORMED, ONLINE, RATE_OPTIMAL, THRESHOLD, summarise
from .held_out import Tracer, held_out, in_domain
from .options import AblationOptions
from .replay import MakeController, Rule, replay_all
from .store import Store

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14)
CONFIDENCES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
SURVIVALS = (
    0.05,
    0.1,
    0.15,
    0.2,
    0.25,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
)  # thresholds on the product of acceptance probabilities; SpecDec++'s h is 1 minus this

PredictAll = Callable[[Trace], list[float]]  # trace → predictions for all its nodes


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
        batches = held_out(settings)
        domains = in_domain(settings, batches)
        tracer = Tracer(
            decoder, sampling, settings.max_new_tokens, settings.seed, chat=settings.chat, system=settings.system
        )
        counted = replay_all(tracer, batches, rules, store, console)
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

    def shared(make: Callable[[float], LengthController]) -> Callable[[Sequence[Trace]], MakeController]:
        """One controller replays all traces of a batch in order, as it would in one decoder."""

        def of_batch(traces: Sequence[Trace]) -> MakeController:
            made = cache(make)
            return lambda index, x: made(x)

        return of_batch

    priced = {"costs": [model.as_dict() for model in models], "rule": ONLINE + RATE_OPTIMAL}
    return [
        Rule.untrained(ADAPTIVE, (1, 4, 8), AdaptiveLength),
        Rule(BANDIT, (0.0,), {"rule": BANDIT}, shared(lambda unused: Bandit())),
        Rule(ONLINE + THRESHOLD, CONFIDENCES, {"rule": ONLINE + THRESHOLD}, shared(OnlineConfidence)),
        Rule(
            ONLINE + RATE_OPTIMAL,
            tuple(map(float, range(len(models)))),
            priced,
            shared(lambda which: OnlineConfidence(cost=models[int(which)])),
        ),
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
    _, predictor = load_predictor(path, pair, torch.device("cpu"), embedding, undone=True)

    def predict_all(t: Trace) -> list[float]:
        return predictor.predict_all(t.signals, t.ngram_matches, t.states, t.tokens)

    return predictor, predict_all, digest
