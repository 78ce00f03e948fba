"""The main figures of ``python -m experiments router``: mixture, domains, loss where no draft helps, overhead.

The figures are measured on generations with the routers, which are timed in turn with those of the single drafts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
from specpilot.compare.interval import Interval, show
from specpilot.compare.table import Table
from specpilot.controllers.router import RouterPolicy
from specpilot.infer.core import Stats
from specpilot.infer.decoder import SpeculativeDecoder

from .study import (
    AUTOREGRESSIVE,
    LEARNED,
    Choices,
    RouterBenchOptions,
    Study,
    accuracy,
    domains_of,
    expected_throughput,
    greedy,
    probabilities,
    rate_row,
    subset,
)

Routed = Mapping[str, Sequence[Stats]]  # the generations of each router


def headline(work: RouterBenchOptions, study: Study, policy: RouterPolicy, routed: Routed) -> dict[str, Any]:
    """Return selection accuracy, throughput by domain against the domain's best single draft, and the mixture."""
    fixed, arms = str(work.length), [*work.drafts, AUTOREGRESSIVE]
    choices = greedy(probabilities(policy, study.test))
    expected = study.expected(arms, fixed)
    accuracies = accuracy(choices, expected, study.domains)
    best = best_drafts(work, study)
    best_runs = [study.timings.of(arms[arm], fixed)[i] for i, arm in enumerate(best.tolist())]
    rows = np.arange(len(choices))
    reward, best_reward = expected[rows, choices], expected[rows, best]
    by_domain: dict[str, Any] = {}
    for domain in dict.fromkeys(study.domains.tolist()):
        in_domain = study.domains == domain
        by_domain[domain] = {
            "best_draft": arms[int(best[in_domain][0])],
            "prompts": int(in_domain.sum()),
            "router": rate_row(routed["router"], best_runs, in_domain),
            "cost_model": float(reward[in_domain].sum() / best_reward[in_domain].sum()),
        }
    against_best = rate_row(routed["router"], best_runs)
    return {
        "selection_accuracy": accuracies["where_domains_differ"],
        "selection_accuracy_of": accuracies,
        "throughput_vs_best_arm": against_best["ratio"],
        "throughput_vs_best_arm_interval": against_best,
        "throughput_vs_best_arm_cost_model": float(reward.sum() / best_reward.sum()),
        "by_domain": by_domain,
        **mixture(work, study, routed),
    }


def best_drafts(work: RouterBenchOptions, study: Study) -> Choices:
    """Return the draft (N,) for each held-out prompt that is best on average on the *training* prompts of its domain.

    A choice by the held-out prompts would overestimate the throughput.
    """
    training_rows = subset(study.train, [*work.drafts, AUTOREGRESSIVE])
    expected, domains = expected_throughput(training_rows, str(work.length)), domains_of(training_rows)
    best = {d: int(expected[domains == d].mean(0)[: len(work.drafts)].argmax()) for d in dict.fromkeys(domains)}
    return np.array([best[domain] for domain in study.domains], dtype=np.int64)


def mixture(work: RouterBenchOptions, study: Study, routed: Routed) -> dict[str, Any]:
    """Return the results on all domains together: single drafts, routers, and routers with learned lengths."""
    fixed, arms, timings = str(work.length), [*work.drafts, AUTOREGRESSIVE], study.timings
    base = timings.of(AUTOREGRESSIVE, "")
    single = {label: {name: rate_row(timings.of(name, label), base) for name in arms} for label in (fixed, LEARNED)}
    top = {label: max(work.drafts, key=lambda n: single[label][n]["tokens_per_second"]) for label in single}
    both = routed["router_and_length"]
    return {
        "mixture": {
            "best_single": {"arm": top[fixed], **single[fixed][top[fixed]]},
            "best_single_and_length": {"arm": top[LEARNED], **single[LEARNED][top[LEARNED]]},
            **{name: rate_row(routed[name], base) for name in ("router", "router_sampled", "router_and_length")},
        },
        "both_against": {
            "router": rate_row(both, routed["router"]),
            "best_single_and_length": rate_row(both, timings.of(top[LEARNED], LEARNED)),
            "best_single": rate_row(both, timings.of(top[fixed], fixed)),
        },
        "router_against_single": {name: rate_row(routed["router"], timings.of(name, fixed)) for name in work.drafts},
        "single": single,
    }


def no_help_loss(
    study: Study, arms: Sequence[str], policy: RouterPolicy, runs: Sequence[Stats], length: str
) -> dict[str, Any]:
    """Return the router's loss in the domains where no draft helped on the training prompts.

    ``loss`` is 1 - (router's throughput / autoregressive throughput), None if every domain has a draft that helps.
    """
    training_rows = subset(study.train, arms)
    expected, where = expected_throughput(training_rows, length), domains_of(training_rows)
    domains = [d for d in dict.fromkeys(where.tolist()) if expected[where == d].mean(0)[:-1].max() < 1.0]
    in_domains = np.isin(study.domains, domains)
    if not in_domains.any():
        return {"arms": list(arms), "domains": domains, "loss": None}
    base = study.timings.of(AUTOREGRESSIVE, "")
    row = rate_row(runs, base, in_domains)
    drafts = {name: rate_row(study.timings.of(name, length), base, in_domains) for name in arms[:-1]}
    best = max(drafts, key=lambda name: drafts[name]["ratio"])
    chosen = np.bincount(greedy(probabilities(policy, study.test))[in_domains], minlength=len(arms))
    return {
        "arms": list(arms),
        "domains": domains,
        "prompts": int(in_domains.sum()),
        "loss": 1 - row["ratio"],
        "router": row,
        "best_draft": {"arm": best, **drafts[best]},
        "chosen": dict(zip(arms, chosen.tolist(), strict=True)),
    }


def overhead(decoder: SpeculativeDecoder, prompts: Sequence[list[int]], sampling: dict[str, Any]) -> dict[str, float]:
    """Return the time of embedding, policy and choice: as a share of the wall time, and in seconds per generation."""
    assert decoder.routing is not None
    router, target, spent = decoder.routing.router, decoder.target, list[float]()

    def timed(plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            started = time.perf_counter()
            arm = plain(*arguments)
            spent.append(time.perf_counter() - started)
            return arm

        return call

    with patch.object(router, "weigh", timed(router.weigh)), patch.object(target, "embed", timed(target.embed)):
        started = time.perf_counter()
        for index, prompt in enumerate(prompts):
            decoder.generate(prompt, seed=index, **sampling)
        wall = time.perf_counter() - started
    return {"share": sum(spent) / wall, "seconds": sum(spent) / len(prompts)}


def brief(result: dict[str, Any]) -> Table:
    """Return the table of the main figures."""
    mixture = result["mixture"]
    figures = {
        "selection accuracy where domains differ": share(result["selection_accuracy"]),
        "throughput against the best draft of each domain": f"{result['throughput_vs_best_arm']:.3f}",
        "best single draft on the mixture, × autoregressive": show(Interval.of(mixture["best_single"], "ratio"), 3),
        "router, × autoregressive": show(Interval.of(mixture["router"], "ratio"), 3),
        "router and learned length, × autoregressive": show(Interval.of(mixture["router_and_length"], "ratio"), 3),
        "loss where no draft helps": share(result["autoregressive_loss"]),
        "router's share of the time": f"{result['overhead_share']:.2%}",
    }
    return Table("Assistant selection: summary", [{"figure": name, "here": here} for name, here in figures.items()])


def share(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1%}"
