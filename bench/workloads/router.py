"""``specpilot bench router``: routers on held-out prompts, and the tables of assistant selection (Huang et al. 2024).

Rewards are made once, for all arms, on training and held-out prompts. Every arm decodes every held-out prompt, the
configurations in turn, and so do the routers themselves; tables of other policies are made of the arms' runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from ...controllers.length import Fixed, LengthController
from ...controllers.router import OnlineRouter, PolicyRouter, Router, RouterPolicy, SingleArm
from ...controllers.router.baselines import baseline_choices
from ...data_gen.router import make_router_data
from ...data_gen.router_dataset import RouterDataset, read_router_dataset
from ...data_gen.settings import RouterDataOptions
from ...infer.arms import LoadedArm, load_arms
from ...infer.decoder import SpeculativeDecoder
from ...infer.lengths import load_length
from ...infer.loading import load_model, load_tokenizer
from ...infer.models import language_model
from ...infer.routing import ArmRuntime, Routing
from ..router_work import RouterBenchOptions
from ..runner import measure
from .router_headline import headline, no_help_loss, overhead
from .router_tables import (
    AUTOREGRESSIVE,
    LEARNED,
    PAPER,
    Choices,
    Fit,
    Grid,
    accuracy,
    alpha_sweep,
    arm_set_table,
    domains_of,
    embeddings,
    example_curve,
    greedy,
    ours,
    policy_of,
    sampled,
    subset,
    worth_of,
)


class Bench:
    """Target, arms and held-out prompts, loaded once; configurations are made of them."""

    def __init__(self, work: RouterBenchOptions) -> None:
        self.work = work
        self.tokenizer = load_tokenizer(work.target)
        self.target = language_model(load_model(work.target, dtype=work.dtype, device=work.device))
        self.loaded: dict[str, LoadedArm] = {
            arm.arm.name: arm
            for arm in load_arms(work.arms, self.target, self.tokenizer, dtype=work.dtype, device=work.device)
        }
        learned = work.learned if isinstance(work.learned, tuple) else (work.learned,) * len(work.drafts)
        self.rules = dict(zip(work.drafts, learned, strict=True))

    def length(self, arm: str, label: str) -> LengthController:
        """The controller behind a label: a number, or ``learned``; exits follow the first draft's rule."""
        model = self.loaded[arm].model
        if model is None:
            return Fixed(0)
        spec = self.rules.get(arm, self.rules[self.work.drafts[0]]) if label == LEARNED else label
        return load_length(spec, self.target.model, model.model, self.tokenizer)

    def decoder(self, names: Sequence[str], router: Router, label: str) -> SpeculativeDecoder:
        arms = [self.loaded[name] for name in names]
        runtimes = [ArmRuntime(arm.model, self.length(name, label)) for name, arm in zip(names, arms, strict=True)]
        routing = Routing(self.target, router, [arm.arm for arm in arms], runtimes)
        return SpeculativeDecoder(self.target, None, self.tokenizer, routing=routing)

    def single(self, name: str, label: str) -> SpeculativeDecoder:
        return self.decoder([name, AUTOREGRESSIVE] if name != AUTOREGRESSIVE else [name, self.work.drafts[0]],
                            SingleArm(0, 2), label)  # fmt: skip


def bench_router(
    work: RouterBenchOptions, fit: Fit, console: Console, progress: Callable[[str, int], Any]
) -> dict[str, Any]:
    """Everything; ``fit(dataset, **settings)`` trains a policy."""
    train, test = datasets(work, console)
    bench = Bench(work)
    prompts = [row.prompt_ids for row in test.rows]
    fixed = str(work.length)
    main = [*work.drafts, AUTOREGRESSIVE]
    no_help = [*work.pair, AUTOREGRESSIVE]
    policy = fit(subset(train, main), **ours(fixed))
    with_length = fit(subset(train, main), **ours(LEARNED))
    fallback = fit(subset(train, no_help), **ours(fixed))

    grid_labels = [(name, label) for name in work.arms if name != AUTOREGRESSIVE for label in (fixed, LEARNED)]
    grid_labels += [(name, str(k)) for name in work.drafts for k in work.lengths if str(k) != fixed]
    singles = {(AUTOREGRESSIVE, ""): bench.single(AUTOREGRESSIVE, fixed)}
    singles |= {(name, label): bench.single(name, label) for name, label in grid_labels}
    routers = {
        "router": bench.decoder(main, PolicyRouter(policy), fixed),
        "router_sampled": bench.decoder(main, PolicyRouter(policy, sample=True), fixed),
        "router_and_length": bench.decoder(main, PolicyRouter(with_length), LEARNED),
        "router_no_help": bench.decoder(no_help, PolicyRouter(fallback), fixed),
    }
    decoders = {f"{name}@{label}": decoder for (name, label), decoder in singles.items()} | routers
    headliners = [*routers, f"{AUTOREGRESSIVE}@"]
    headliners += [f"{name}@{label}" for name in work.drafts for label in (fixed, LEARNED)]
    generations = len(prompts) * (len(decoders) + (work.repeats - 1) * len(headliners))
    with progress("generations", generations) as advance:
        measured = measure(
            {name: (decoder, None) for name, decoder in decoders.items()}, prompts, work.sampling,
            repeats=dict.fromkeys(headliners, work.repeats), on_progress=advance,
        )  # fmt: skip
    grid = Grid({(name, label): measured[f"{name}@{label}"].runs for name, label in singles})

    result = headline(work, train, test, policy, main, grid, {name: measured[name].runs for name in routers})
    result["autoregressive"] = no_help_loss(
        train, test, no_help, fallback, grid, measured["router_no_help"].runs, fixed
    )
    result["autoregressive_loss"] = result["autoregressive"]["loss"]
    result["overhead"] = overhead(routers["router"], prompts[: max(1, len(prompts) // 4)], work.sampling)
    result["overhead_share"] = result["overhead"]["share"]
    result["selection"] = selection(fit, train, test, main, grid, fixed)
    result["online"] = online(fit, train, test, main, grid, fixed)

    everywhere = list(dict.fromkeys(row.domain for row in train.rows))
    exits = [f"exit:{layer}" for layer in work.exits]
    sets = {"all drafts": list(work.drafts), "specialists": list(work.drafts[1:]), "with autoregressive": main}
    result["tables"] = {
        "table_1": arm_set_table(fit, train, test, work.pair, grid, fixed, work.pair_domains),
        "table_1_paper_settings": arm_set_table(fit, train, test, work.pair, grid, fixed, work.pair_domains, **PAPER),
        "figure_2": alpha_sweep(
            fit, train, test, [work.drafts[0], *exits] if exits else work.drafts, grid, fixed, work.alphas
        ),
        "figure_3": example_curve(fit, train, test, main, grid, fixed, work.examples, work.seeds),
        "table_3_4": arm_set_table(fit, train, test, no_help, grid, fixed, everywhere),
        "table_5": {
            name: arm_set_table(fit, train, test, arms, grid, fixed, everywhere)
            for name, arms in sets.items()
            if len(arms) > 1
        },
        "tables_11_12": {
            str(k): arm_set_table(fit, train, test, work.drafts, grid, str(k), everywhere)
            for k in sorted({*work.lengths, work.length})
        },
        "tables_13_14": temperatures(work, bench, fit, train, test, progress),
    }
    if exits:
        arms = [*exits, AUTOREGRESSIVE]
        result["tables"]["table_6"] = arm_set_table(fit, train, test, arms, grid, fixed, everywhere)
    return result


def datasets(work: RouterBenchOptions, console: Console) -> tuple[RouterDataset, RouterDataset]:
    """Training and held-out prompts with every arm's rewards, made or gone on with."""
    found = []
    for split, limit in (("train", work.train_limit), ("test", work.limit)):
        settings = RouterDataOptions(
            target=work.target, arms=work.arms, split=split, limit=limit,
            domains=None if work.domains is None else list(work.domains), max_new_tokens=min(64, work.max_new_tokens),
            temperature=work.temperature, top_k=work.top_k, dtype=work.dtype, device=work.device,
        )  # fmt: skip
        found.append(read_router_dataset(make_router_data(settings, Path(work.work) / split, console)))
    train, test = found
    return train, replace(test, times=train.times)  # one machine, one price


def selection(
    fit: Fit, train: RouterDataset, test: RouterDataset, names: Sequence[str], grid: Grid, length: str
) -> dict[str, Any]:
    """The policies and the baselines beside them, on the same features: choices judged by rewards and by the clock."""
    known, theirs = subset(train, names), subset(test, names)
    worth, where = worth_of(theirs, length), domains_of(theirs)
    found: dict[str, Choices] = {}
    for name, settings in (
        ("policy, throughput", ours(length)),
        ("policy, throughput, paper's training", {"reward": "throughput", "length": int(length)}),
        ("policy, ROUGE-L", ours(length) | PAPER),
        ("policy, ROUGE-L, paper's training", PAPER),
    ):
        found[name] = greedy(policy_of(fit(known, **settings), theirs))
    found |= baseline_choices(
        embeddings(known).astype(float), worth_of(known, length), embeddings(theirs).astype(float), worth
    )
    rng = np.random.default_rng(0)
    found["random"] = rng.integers(len(names), size=len(theirs.rows))
    rows = np.arange(len(worth))
    result = {}
    for name, choices in found.items():
        hits = accuracy(choices, worth, where)
        result[name] = {
            "accuracy": hits["all_domains"],
            "accuracy_where_domains_differ": hits["where_domains_differ"],
            "reward": float(worth[rows, choices].mean()),
            "regret": float((worth.max(1) - worth[rows, choices]).mean()),
            **{key: value for key, value in grid.row(names, choices, length).items() if key != "ms_per_token"},
        }
    return result


def online(
    fit: Fit, train: RouterDataset, test: RouterDataset, names: Sequence[str], grid: Grid, length: str
) -> dict[str, Any]:
    """LinUCB over the held-out prompts, fed with the measured rates, beside the policy it begins as.

    Two beginnings: the policy as trained, and one trained with its rewards turned round, which is always wrong.
    """
    theirs = subset(test, names)
    x = torch.from_numpy(embeddings(theirs))
    good = fit(subset(train, names), **ours(length))
    result: dict[str, Any] = {}
    for name, sign in (("as trained", 1.0), ("turned round", -1.0)):
        policy = RouterPolicy(good.hidden_size, good.arms, good.width)
        policy.load_state_dict(good.state_dict())
        with torch.no_grad():
            policy.out.weight.mul_(sign)
            policy.out.bias.mul_(sign)
        router = OnlineRouter(PolicyRouter(policy))
        learnt, begun = [], []
        for i in range(len(x)):
            arm = router.weigh(x[i]).index(1.0)
            begun.append(int(policy(x[i]).argmax()))
            learnt.append(arm)
            run = grid.of(names[arm], length)[i]
            router.learn(x[i], arm, (run.n_generated - 1) / run.seconds if run.seconds > 0 else 0.0)
        half = slice(len(x) // 2, None)
        result[name] = {
            "counts": dict(zip(names, router.counts, strict=True)),
            "offline": grid.row(names, np.array(begun), length),
            "online": grid.row(names, np.array(learnt), length),
            "offline_second_half": grid.row(names, np.array(begun), length, half),
            "online_second_half": grid.row(names, np.array(learnt), length, half),
        }
    return result


def temperatures(
    work: RouterBenchOptions, bench: Bench, fit: Fit, train: RouterDataset, test: RouterDataset,
    progress: Callable[[str, int], Any],
) -> dict[str, Any]:  # fmt: skip
    """Tables 13 and 14: single drafts and the policy trained at the benchmark's temperature, at others."""
    fixed, names = str(work.length), [*work.drafts, AUTOREGRESSIVE]
    few = test.rows[: max(1, len(test.rows) // 2)]
    theirs = replace(subset(test, names), rows=subset(test, names).rows[: len(few)])
    policy = policy_of(fit(subset(train, names), **ours(fixed)), theirs)
    result = {}
    for temperature in work.temperatures:
        decoders = {(name, "" if name == AUTOREGRESSIVE else fixed): bench.single(name, fixed) for name in names}
        with progress(f"temperature {temperature}", len(decoders) * len(few)) as advance:
            measured = measure(
                {f"{name}@{label}": (decoder, None) for (name, label), decoder in decoders.items()},
                [row.prompt_ids for row in few], work.sampling | {"temperature": temperature}, on_progress=advance,
            )  # fmt: skip
        grid = Grid({key: measured[f"{key[0]}@{key[1]}"].runs for key in decoders})
        rows = {name: np.full(len(few), i) for i, name in enumerate(names)}
        rows |= {"policy, greedy": greedy(policy), "policy, dynamic": sampled(policy)}
        result[str(temperature)] = {name: grid.row(names, choices, fixed) for name, choices in rows.items()}
    return result
