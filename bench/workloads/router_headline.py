"""The figures that ``specpilot bench router`` is run for: mixture, domains, loss where no draft helps, overhead.

These are of the routers' own generations, timed in turn with those of the single drafts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...controllers.router import RouterPolicy
from ...data_gen.router_dataset import RouterDataset
from ...infer.decoder import SpeculativeDecoder
from ...infer.generation import Stats
from ..interval import interval
from ..router_work import RouterBenchOptions
from .router_tables import AUTOREGRESSIVE, LEARNED, Grid, accuracy, domains_of, greedy, policy_of, subset, worth_of


def totals(runs: Sequence[Stats]) -> tuple[Any, Any]:
    """Tokens and seconds (N,), prefill included."""
    tokens = np.array([run.n_generated for run in runs], dtype=float)
    return tokens, np.array([run.seconds + run.prefill_seconds for run in runs])


def rate_row(runs: Sequence[Stats], base: Sequence[Stats], where: Any = slice(None)) -> dict[str, float]:
    """Tokens per second, and the ratio to ``base`` with its 95 % interval over prompts."""
    tokens, seconds = (x[where] for x in totals(runs))
    ratio, low, high = interval(
        lambda a, b, c, d: (a / b) / (c / d), tokens, seconds, *(x[where] for x in totals(base))
    )
    return {"tokens_per_second": float(tokens.sum() / seconds.sum()), "ratio": ratio, "low": low, "high": high}


def headline(
    work: RouterBenchOptions, train: RouterDataset, test: RouterDataset, policy: RouterPolicy, main: Sequence[str],
    grid: Grid, routed: dict[str, Sequence[Stats]],
) -> dict[str, Any]:  # fmt: skip
    """Selection, throughput by domain against the best single draft there, and the mixture."""
    fixed, held_out = str(work.length), subset(test, main)
    where = domains_of(held_out)
    choices = greedy(policy_of(policy, held_out))
    worth = worth_of(held_out, fixed)
    found = accuracy(choices, worth, where)
    # The best draft of a domain is chosen on training prompts: chosen on these, luck would count as merit.
    known = subset(train, main)
    known_worth, known_where = worth_of(known, fixed), domains_of(known)
    rows = np.arange(len(choices))
    by_domain: dict[str, Any] = {}
    best = np.zeros(len(choices), dtype=np.int64)
    for domain in dict.fromkeys(where.tolist()):
        here = where == domain
        best[here] = known_worth[known_where == domain].mean(0)[: len(work.drafts)].argmax()
        arm = main[best[here].tolist()[0]]
        by_domain[domain] = {
            "best_draft": arm,
            "prompts": int(here.sum()),
            "router": rate_row(routed["router"], grid.of(arm, fixed), here),
            "cost_model": float(worth[rows, choices][here].sum() / worth[rows, best][here].sum()),
        }
    whole = [grid.of(main[arm], fixed)[i] for i, arm in enumerate(best.tolist())]
    base = grid.of(AUTOREGRESSIVE, "")
    single = {label: {name: rate_row(grid.of(name, label), base) for name in main} for label in (fixed, LEARNED)}
    top = {label: max(work.drafts, key=lambda n: single[label][n]["tokens_per_second"]) for label in single}
    mixture = {
        "best_single": {"arm": top[fixed], **single[fixed][top[fixed]]},
        "best_single_and_length": {"arm": top[LEARNED], **single[LEARNED][top[LEARNED]]},
        **{name: rate_row(routed[name], base) for name in ("router", "router_sampled", "router_and_length")},
    }
    both = routed["router_and_length"]
    return {
        "selection_accuracy": found["where_domains_differ"],
        "selection_accuracy_of": found,
        "throughput_vs_best_arm": rate_row(routed["router"], whole)["ratio"],
        "throughput_vs_best_arm_interval": rate_row(routed["router"], whole),
        "throughput_vs_best_arm_cost_model": float(worth[rows, choices].sum() / worth[rows, best].sum()),
        "by_domain": by_domain,
        "mixture": mixture,
        "both_against": {
            "router": rate_row(both, routed["router"]),
            "best_single_and_length": rate_row(both, grid.of(top[LEARNED], LEARNED)),
            "best_single": rate_row(both, grid.of(top[fixed], fixed)),
        },
        "router_against_single": {name: rate_row(routed["router"], grid.of(name, fixed)) for name in work.drafts},
        "single": single,
    }


def no_help_loss(
    train: RouterDataset, test: RouterDataset, names: Sequence[str], policy: RouterPolicy, grid: Grid,
    runs: Sequence[Stats], fixed: str,
) -> dict[str, Any]:  # fmt: skip
    """The domains in which none of these drafts helped on training prompts: what the router loses there.

    ``loss`` is 1 - its throughput over autoregressive decoding's; None where every domain has a draft that helps.
    """
    known = subset(train, names)
    worth, where = worth_of(known, fixed), domains_of(known)
    domains = [domain for domain in dict.fromkeys(where.tolist()) if worth[where == domain].mean(0)[:-1].max() < 1.0]
    here = np.isin(domains_of(test), domains)
    if not here.any():
        return {"arms": list(names), "domains": domains, "loss": None}
    row = rate_row(runs, grid.of(AUTOREGRESSIVE, ""), here)
    chosen = greedy(policy_of(policy, subset(test, names)))[here]
    best = max(names[:-1], key=lambda name: rate_row(grid.of(name, fixed), grid.of(AUTOREGRESSIVE, ""), here)["ratio"])
    return {
        "arms": list(names),
        "domains": domains,
        "prompts": int(here.sum()),
        "loss": 1 - row["ratio"],
        "router": row,
        "best_draft": {"arm": best, **rate_row(grid.of(best, fixed), grid.of(AUTOREGRESSIVE, ""), here)},
        "chosen": dict(zip(names, np.bincount(chosen, minlength=len(names)).tolist(), strict=True)),
    }


def overhead(decoder: SpeculativeDecoder, prompts: Sequence[list[int]], sampling: dict[str, Any]) -> dict[str, float]:
    """Share of a generation's wall time that embedding, policy and choice take, and their seconds a generation."""
    assert decoder.routing is not None
    router, target = decoder.routing.router, decoder.target
    spent = 0.0
    weigh, embed = router.weigh, target.embed

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal spent
            started = time.perf_counter()
            result = function(*arguments)
            spent += time.perf_counter() - started
            return result

        return call

    router.weigh = timed(weigh)  # type: ignore[method-assign]
    target.embed = timed(embed)  # type: ignore[method-assign]
    started = time.perf_counter()
    for index, prompt in enumerate(prompts):
        decoder.generate(prompt, seed=index, **sampling)
    wall = time.perf_counter() - started
    del router.weigh, target.embed
    return {"share": spent / wall, "seconds": spent / len(prompts)}
