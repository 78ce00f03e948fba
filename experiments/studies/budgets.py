"""Gains of vLLM's adaptive verification from better, fresh probabilities, and from drafts that stop.

Rounds of a batch are replayed with vLLM's rule: of all drafted tokens those with the highest survival are verified, as
many as give most tokens a second. Times are an H200's with specpilot's engine (docs/results/gpu.json), not vLLM's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from specpilot.cli.commands.measuring import begin, finish
from specpilot.compare.decoders import load
from specpilot.compare.options import WorkloadOptions
from specpilot.compare.recorded import Array, Tracer
from specpilot.compare.table import Table
from specpilot.controllers.acceptance.calibration import fit_logistic
from specpilot.controllers.checkpoints.checkpoint import load_controller
from specpilot.controllers.length.trained import make_predictor
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.prompts import load_prompts
from specpilot.models import output_embedding
from specpilot.simulate.trace import END, Trace

DRAFT = 1.37  # ms of a draft step
VERIFY = ((1, 2, 3, 5, 9, 16, 64), (7.47, 8.02, 8.22, 8.44, 8.77, 8.93, 9.75))  # tokens, ms
MORE = (9.75 - 8.93) / 48  # ms of each further token
MOST = 8  # tokens that are drafted where drafts do not stop
REQUESTS = (1, 4, 16, 64)  # that share rounds


class Way(NamedTuple):
    """The probabilities that are used, and choices: stale budgets, drafts that stop, budgets that trim."""

    estimate: str
    stale: bool = False
    stops: bool = False
    trims: bool = True


LOGISTIC, HEAD, TRUE = "logistic of max q", "tiny-lag-free", "true acceptance"
WAYS = {
    "all verified": Way(LOGISTIC, trims=False), "stale budget, logistic (vLLM)": Way(LOGISTIC, stale=True),
    "fresh budget, logistic": Way(LOGISTIC), "stale budget, trained head": Way(HEAD, stale=True),
    "fresh budget, trained head": Way(HEAD), "fresh budget, oracle": Way(TRUE),
    "drafts stop, logistic": Way(LOGISTIC, stops=True), "drafts stop, trained head": Way(HEAD, stops=True),
    "drafts stop, oracle": Way(TRUE, stops=True),
}  # fmt: skip


def verify_ms(tokens: Any) -> Any:
    return np.interp(tokens, *VERIFY) + MORE * np.maximum(0, np.asarray(tokens) - VERIFY[0][-1])


def survivals(trace: Trace, estimate: Array) -> list[Array]:
    """By position of the text: the probabilities that the tokens drafted there are reached and accepted."""
    rounds = []
    for position in range(len(trace.text)):
        node, chain = position, list[int]()
        while node != END and len(chain) < MOST:
            chain.append(node)
            node = trace.after[node]
        rounds.append(np.cumprod(estimate[chain], dtype=np.float64))
    return rounds


def rate(traces: Sequence[Trace], estimates: Sequence[Array], way: Way, requests: int, pace: float) -> float:
    """Tokens a millisecond of ``requests`` texts at a time; ``pace`` is what a token of drafts that stop must gain."""
    predicted = [survivals(trace, request) for trace, request in zip(traces, estimates, strict=True)]
    mean = float(np.mean(np.concatenate(estimates)))
    places = [(i % len(traces), 1) for i in range(requests)]  # trace, position
    before = [np.ones(MOST)] * requests  # as vLLM's for new requests
    started, written, spent = requests, 0, 0.0
    while started < 2 * max(requests, len(traces)):
        survival = [predicted[i][position] for i, position in places]
        if way.stops:  # at the share of a step that a request pays for
            least = pace * (DRAFT / requests + MORE) / mean
            survival = [request[: (np.append(1.0, request)[: len(request)] > least).sum()] for request in survival]
        scores = fresh = np.concatenate(survival)
        if way.stale:
            scores = np.concatenate([old[: len(request)] for old, request in zip(before, survival, strict=True)])
        gains = requests + np.append(0.0, np.cumsum(np.sort(scores)[::-1]))
        times = DRAFT * (max(map(len, survival)) if way.stops else MOST) + verify_ms(requests + np.arange(len(gains)))
        budget = int(np.argmax(gains / times)) if way.trims else len(fresh)
        admitted = np.argsort(np.argsort(-fresh, kind="stable")) < budget
        spent += times[budget]
        before = [np.pad(request, (0, MOST - len(request))) for request in survival]
        for row, mask in enumerate(np.split(admitted, np.cumsum([len(request) for request in survival])[:-1])):
            i, position = places[row]
            accepted = int(np.cumprod(traces[i].kept[position : position + mask.sum()]).sum())
            places[row] = i, min(position + accepted + 1, len(traces[i].text))
            written += places[row][1] - position
            if places[row][1] == len(traces[i].text):
                places[row], before[row], started = (started % len(traces), 1), np.ones(MOST), started + 1
    return written / spent


def fitted(traces: Sequence[Trace]) -> list[Array]:
    """σ(w·logit(max q) + b), fitted to the acceptance of all nodes: what vLLM's estimator fits while it serves."""
    best = [np.clip([signals[1:2] for signals in trace.signals], 1e-6, 1 - 1e-6) for trace in traces]
    odds = [np.log(one / (1 - one)) for one in best]
    (scale,), shift = fit_logistic(np.concatenate(odds), np.concatenate([trace.accept for trace in traces]))
    return [1 / (1 + np.exp(-scale * one[:, 0] - shift)) for one in odds]


def main(options: WorkloadOptions) -> None:
    """Replay what vLLM's adaptive verification would gain from other probabilities and drafts."""
    console = begin()
    decoder, _ = load(options)
    model, pair = decoder.drafts[0].model, decoder.fingerprint
    sampling = SamplingParams(options.temperature, options.top_k, options.top_p)
    tracer = Tracer(decoder, sampling, options.max_new_tokens, seed=0, chat=options.chat)
    prompts = load_prompts(options.prompts, split=options.split, limit=options.limit)
    traces = [trace for trace in tracer.traces(prompts) if len(trace.text) > 1]
    head = make_predictor(HEAD, load_controller(HEAD), pair, model.device, output_embedding(model), calibrated=True)
    estimates = {
        LOGISTIC: fitted(traces), TRUE: [np.array(trace.accept) for trace in traces],
        HEAD: [np.array(head.predict_all(t.signals, t.ngram_matches, t.states, t.tokens)) for t in traces],
    }  # fmt: skip
    rates: dict[str, dict[str, float]] = {}
    for requests in REQUESTS:
        plain = requests / float(verify_ms(requests))
        for name, way in WAYS.items():
            speed = plain
            for _ in range(3 if way.stops else 1):
                speed = rate(traces, estimates[way.estimate], way, requests, speed)
            rates.setdefault(name, {})[str(requests)] = speed / plain
    rows = [{"": name, **{n: f"{x:.2f}" for n, x in of.items()}} for name, of in rates.items()]
    console.print(Table("speed over no drafts by requests in a batch", rows))
    finish({"speedup": rates}, options)
