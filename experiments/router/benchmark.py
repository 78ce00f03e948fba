"""The router benchmark: makes rewards and policies, times all arms and routers in turn, and makes the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from rich.console import Console
from specpilot.cli.commands.measuring import begin, finish
from specpilot.compare.runner import decode_all
from specpilot.controllers.length import Fixed, LengthController
from specpilot.controllers.router import PolicyRouter, Router
from specpilot.data_gen.options import RouterDataOptions
from specpilot.data_gen.router import make_router_data
from specpilot.data_gen.router_dataset import RouterDataset, read_router_dataset
from specpilot.infer.core import Stats
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.loading.controllers import load_length
from specpilot.infer.loading.routing import LoadedArm, Routing, load_arms
from specpilot.infer.options import SamplingKeywords
from specpilot.models import language_model
from specpilot.models.loading.names import load_model, load_tokenizer

from .headline import brief, headline, no_help_loss, overhead
from .single_arm import SingleArm
from .study import (
    AUTOREGRESSIVE,
    LEARNED,
    ArmTimings,
    RouterBenchOptions,
    Study,
    greedy,
    probabilities,
    sampled,
    serving,
    subset,
    train_policy,
)
from .tables import paper_tables, selection

TimedArm = tuple[str, str]  # name, label of the draft length


class ArmDecoders:
    """The target and the arms, loaded once, and decoders that share them.

    Args:
        work: the options of the benchmark.
    """

    def __init__(self, work: RouterBenchOptions) -> None:
        self.work = work
        trust = work.trust_remote_code
        self.tokenizer = load_tokenizer(work.target, trust_remote_code=trust)
        self.target = language_model(
            load_model(work.target, dtype=work.dtype, device=work.device, trust_remote_code=trust)
        )
        loaded = load_arms(
            work.arms, self.target, self.tokenizer, dtype=work.dtype, device=work.device, trust_remote_code=trust
        )
        self.loaded: dict[str, LoadedArm] = {arm.arm.name: arm for arm in loaded}
        learned = work.learned if isinstance(work.learned, tuple) else (work.learned,) * len(work.drafts)
        self.learned = dict(zip(work.drafts, learned, strict=True))

    def length(self, arm: str, label: str) -> LengthController:
        """Return the length controller of ``arm``.

        Args:
            arm: name of the arm.
            label: a number of tokens, or ``learned`` for the arm's controller in the option ``learned``; early exits
                use the controller of the first draft.
        """
        model = self.loaded[arm].model
        if model is None:
            return Fixed(0)
        spec = self.learned.get(arm, self.learned[self.work.drafts[0]]) if label == LEARNED else label
        return load_length(spec, self.target.model, model.model, self.tokenizer)

    def routed(self, names: Sequence[str], router: Router, label: str) -> SpeculativeDecoder:
        """Return a decoder with a ``router`` over the arms ``names``, with the length ``label`` of :meth:`length`."""
        arms = [self.loaded[name] for name in names]
        routing = Routing(self.target, router, [replace(arm, length=self.length(arm.name, label)) for arm in arms])
        return SpeculativeDecoder(self.target, None, self.tokenizer, routing=routing)

    def single(self, name: str, label: str) -> SpeculativeDecoder:
        """Return a decoder that always uses the arm ``name``, with the length ``label`` of :meth:`length`."""
        other = self.work.drafts[0] if name == AUTOREGRESSIVE else AUTOREGRESSIVE
        return self.routed([name, other], SingleArm(0, 2), label)

    def time_singles(
        self,
        arms: Sequence[TimedArm],
        prompts: Sequence[list[int]],
        console: Console,
        *,
        routers: Mapping[str, SpeculativeDecoder] | None = None,
        repeated: Sequence[TimedArm] = (),
        **sampling: Unpack[SamplingKeywords],
    ) -> tuple[ArmTimings, dict[str, list[Stats]]]:
        """Return the timed runs of single arms and of ``routers``, which decode each prompt in turn.

        Args:
            arms: names of arms, each with a label of :meth:`length`; an empty label is the option ``length``.
            prompts: token ids of the prompts.
            console: the console that shows the progress.
            routers: decoders with routers, by name.
            repeated: the arms that are timed ``repeats`` times, as the routers are; the others are timed once.
        """
        decoders = {f"{name}@{label}": self.single(name, label or str(self.work.length)) for name, label in arms}
        decoders |= routers or {}
        often = [*(routers or {}), *(f"{name}@{label}" for name, label in repeated)]
        runs = decode_all(
            {name: decoder.generate for name, decoder in decoders.items()}, prompts, {**self.work.sampling, **sampling},
            console, repeats=dict.fromkeys(often, self.work.repeats),
        )  # fmt: skip
        timings = ArmTimings({(name, label): runs[f"{name}@{label}"] for name, label in arms})
        return timings, {name: runs[name] for name in routers or {}}


def bench_router(work: RouterBenchOptions, console: Console) -> dict[str, Any]:
    """Run the whole benchmark, and return main figures, selection, and the paper's tables."""
    decoders = ArmDecoders(work)
    for name in work.drafts:
        decoders.length(name, LEARNED)  # fails before anything is computed if a controller does not fit
    train, test = datasets(work, console)
    fixed, main, no_help = str(work.length), [*work.drafts, AUTOREGRESSIVE], [*work.pair, AUTOREGRESSIVE]
    policy = train_policy(subset(train, main), **serving(fixed))
    with_length = train_policy(subset(train, main), **serving(LEARNED))
    fallback = train_policy(subset(train, no_help), **serving(fixed))
    routers = {
        "router": decoders.routed(main, PolicyRouter(policy), fixed),
        "router_sampled": decoders.routed(main, PolicyRouter(policy, sample=True), fixed),
        "router_and_length": decoders.routed(main, PolicyRouter(with_length), LEARNED),
        "router_no_help": decoders.routed(no_help, PolicyRouter(fallback), fixed),
    }
    drafting = [name for name in work.arms if name != AUTOREGRESSIVE]
    arms = [(AUTOREGRESSIVE, ""), *((name, label) for name in drafting for label in (fixed, LEARNED))]
    arms += [(name, str(k)) for name in work.drafts for k in work.lengths if str(k) != fixed]
    repeated = [arm for arm in arms if arm[0] in main and arm[1] in ("", fixed, LEARNED)]
    prompts = [row.prompt_ids for row in test.rows]
    timings, routed = decoders.time_singles(arms, prompts, console, routers=routers, repeated=repeated)

    study = Study(train, test, timings)
    result = headline(work, study, policy, routed)
    result["autoregressive"] = no_help_loss(study, no_help, fallback, routed["router_no_help"], fixed)
    result["autoregressive_loss"] = result["autoregressive"]["loss"]
    result["overhead"] = overhead(routers["router"], prompts[: max(1, len(prompts) // 4)], work.sampling)
    result["overhead_share"] = result["overhead"]["share"]
    result["selection"] = selection(study, main, fixed)
    result["tables"] = paper_tables(work, study) | {"tables_13_14": temperatures(work, decoders, study, console)}
    return result


def datasets(work: RouterBenchOptions, console: Console) -> tuple[RouterDataset, RouterDataset]:
    """Return the training and the held-out dataset with every arm's rewards, generated or completed if necessary."""
    shared = RouterDataOptions(
        target=work.target, arms=work.arms, prompts=work.prompts, column=work.column, domains=work.domains,
        chat=work.chat, system=work.system, max_new_tokens=min(64, work.max_new_tokens), temperature=work.temperature,
        top_k=work.top_k, top_p=work.top_p, dtype=work.dtype, device=work.device,
        trust_remote_code=work.trust_remote_code,
    )  # fmt: skip
    if work.local or work.split == work.train_split:
        training, testing = replace(shared, skip=work.limit), shared
    else:
        training, testing = replace(shared, split=work.train_split), replace(shared, split=work.split)
    train, test = (
        read_router_dataset(make_router_data(replace(options, limit=limit), Path(work.work) / name, console=console))
        for name, options, limit in (("train", training, work.train_limit), ("test", testing, work.limit))
    )
    return train, replace(test, times=train.times)  # the same measured costs for both


def temperatures(work: RouterBenchOptions, decoders: ArmDecoders, study: Study, console: Console) -> dict[str, Any]:
    """Return Tables 13 and 14: single drafts and a policy at several temperatures.

    The policy was trained at the benchmark's temperature.
    """
    fixed, names = str(work.length), [*work.drafts, AUTOREGRESSIVE]
    few = replace(study.test, rows=study.test.rows[: max(1, len(study.test.rows) // 2)])
    policy = probabilities(train_policy(subset(study.train, names), **serving(fixed)), few)
    choices = {name: np.full(len(few.rows), i) for i, name in enumerate(names)}
    choices |= {"policy, greedy": greedy(policy), "policy, dynamic": sampled(policy)}
    arms = [(name, "" if name == AUTOREGRESSIVE else fixed) for name in names]
    prompts = [row.prompt_ids for row in few.rows]
    result = {}
    for temperature in work.temperatures:
        timings, _ = decoders.time_singles(arms, prompts, console, temperature=temperature)
        result[str(temperature)] = {name: timings.row(names, chosen, fixed) for name, chosen in choices.items()}
    return result


def main(options: RouterBenchOptions) -> None:
    """Compare routers with single drafts, and make the tables of assistant selection on held-out prompts."""
    console = begin()
    result = bench_router(options, console)
    console.print(brief(result))
    finish(result, options, options.output)
