"""``python -m experiments settings-sweep``: the draft length that ``compare`` recommends beside a sweep of all lengths.

The recommendation is computed on other prompts than those that are timed. Another engine decodes every timed
prompt with every draft length in turn: transformers' assisted generation, vLLM, or with GGUF models a loop of
llama.cpp's own functions. The result is the speed of the recommended length as a share of that of the fastest length of
the sweep, with the 95 % interval over prompts. The fastest length is chosen on the timed prompts, which makes the share
slightly too low. Sweeps of transformers and vLLM also have prompt lookup.

There is a recommendation with the costs that ``compare`` measures, and one with costs of the sweep. The former are the
costs of transformers' rounds, and for other engines the costs of specpilot's forwards. The latter are fitted to the
seconds per target forward in the sweep.

``compare`` cannot replay GGUF models. Their recommendation is computed from the acceptance of the same models in the
format of transformers, and from costs of the GGUF models.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from rich.console import Console
from specpilot.cli.commands.measuring import begin, finish
from specpilot.common.errors import InputError
from specpilot.common.options import Count, OutputFileOptions, Several
from specpilot.compare.assisted import ASSISTED, LOOKUP, round_costs
from specpilot.compare.decoders import NONE, ComparedDecoder, Generate, Loader, encoded_prompts
from specpilot.compare.engine_settings import COPIES, LLAMA, MODEL, NO_DRAFTS, TRANSFORMERS, VLLM, VLLM_COPIES
from specpilot.compare.interval import Interval, ratio_interval, show
from specpilot.compare.options import CompareOptions, RepeatOptions, WorkloadOptions
from specpilot.compare.results import EngineSetting
from specpilot.compare.run import run
from specpilot.compare.runner import Run, interleave
from specpilot.compare.table import Table
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.core import Generation, Stats
from specpilot.models import GgufModel

from .llama_loops import LlamaLoop, gguf_model

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class SettingsSweepOptions(WorkloadOptions, RepeatOptions, OutputFileOptions):
    """Study.

    Options of ``python -m experiments settings-sweep``.

    Attributes:
        engine: Engine that decodes the timed prompts. "auto" is llama.cpp for GGUF models, else transformers. vLLM runs
            in the environment of `make test-vllm`.
        lengths: Draft lengths of the sweep; decoding without drafts is always timed, too.
        copies: Lengths of copies by prompt lookup in the sweep, for transformers and vLLM.
        learned: Number of prompts from which the recommendation is computed. They follow the timed prompts.
        folder: Folder for the report of the comparison that gives the recommendation.
        twins: Target and draft whose acceptance is measured; by default the timed models. GGUF models need the same
            models in the format of transformers here.
        engine_cost: File of `specpilot bench cost` with costs of the timed models; by default `compare` measures costs.
    """

    engine: Literal["auto", "vLLM"] = "auto"
    lengths: Annotated[tuple[Count, ...], Several()] = (1, 2, 3, 4, 5, 6, 7, 8)
    copies: Annotated[tuple[Count, ...], Several()] = (2, 4, 8)
    learned: Count = 24
    folder: Path = Path("runs/settings-sweep")
    twins: Annotated[tuple[str, ...], Several()] = ()
    engine_cost: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.twins) not in (0, 2):
            raise InputError(f"twins={list(self.twins)}: must be a target and a draft, such as [tiny,tiny-draft]")


def recommended(options: SettingsSweepOptions, engine: str, cost: float | str | None = None) -> EngineSetting:
    """Return the setting that ``compare`` recommends for an engine, from prompts that are not timed.

    Args:
        options: the options of the study.
        engine: name of the engine in the report of ``compare``.
        cost: time of a draft step in units of a verification, or a file of costs; None for the costs that ``compare``
            measures.

    Raises:
        InputError: the pair cannot be replayed.
    """
    target, draft = options.twins or (options.target, options.draft)
    settings = run(
        CompareOptions(
            target=target, draft=draft, prompts=options.prompts, split=options.split,
            skip=options.skip + (options.limit or 0), limit=options.learned, max_new_tokens=options.max_new_tokens,
            temperature=options.temperature, top_k=options.top_k, top_p=options.top_p,
            dtype="float32" if options.twins else options.dtype, draft_dtype=options.draft_dtype, device=options.device,
            pair_check=options.pair_check, chat=options.chat, system=options.system, length="3", rules=False,
            clock=False, minutes=1000.0, engine_cost=cost,
            output=options.folder / f"{engine}-{Path(draft or '').stem}-{options.temperature:g}",
        )
    ).engine_settings  # fmt: skip
    if settings is None:
        raise InputError(f"target={options.target!r}: the pair cannot be replayed, so there is no recommendation")
    return settings[engine]


PROBABILISTIC = "sampled draft model"  # vLLM's draft_sample_method "probabilistic"; its default drafts are greedy


class Setting(NamedTuple):
    """A setting of an engine.

    Attributes:
        drafts: the source of drafts: ``MODEL``, ``PROBABILISTIC``, ``COPIES`` or ``NO_DRAFTS``.
        length: the draft length; 0 without drafts.
    """

    drafts: str
    length: int

    def __str__(self) -> str:
        return self.drafts if self.drafts == NO_DRAFTS else f"{self.drafts} {self.length}"


WITHOUT = Setting(NO_DRAFTS, 0)


class Loop(NamedTuple):
    """A decoding loop of an engine with one setting.

    Attributes:
        generate: decodes a prompt, given its token ids and a seed.
        forwards: returns the number of forwards of the target so far.
    """

    generate: Generate
    forwards: Callable[[], int]


def loops_of(options: SettingsSweepOptions, loader: Loader, engine: str) -> dict[Setting, Loop]:
    """Return the decoding loop of ``engine`` for each setting of the sweep.

    Raises:
        InputError: the engine is not installed, or does not decode these models.
    """
    sampling = SamplingParams(options.temperature, options.top_k, options.top_p)
    settings = [WITHOUT, *(Setting(MODEL, length) for length in options.lengths)]
    if engine == LLAMA:
        return _llama_loops(options, loader, settings, sampling)
    settings += [Setting(COPIES, length) for length in options.copies]
    if engine == TRANSFORMERS:
        return _transformers_loops(options, loader, settings, sampling)
    if options.temperature > 0:
        settings += [Setting(PROBABILISTIC, length) for length in options.lengths]
    return {setting: _vllm_loop(options, setting, sampling) for setting in settings}


def _transformers_loops(
    options: SettingsSweepOptions, loader: Loader, settings: Sequence[Setting], sampling: SamplingParams
) -> dict[Setting, Loop]:
    """Return loops of transformers' ``generate``."""
    words = {NO_DRAFTS: "", MODEL: f":{ASSISTED}-", COPIES: f":{LOOKUP}-"}
    loops = {}
    for setting in settings:
        word = f"transformers{words[setting.drafts]}{setting.length or ''}"
        loop = loader.generate(ComparedDecoder.parse(word, options.base), sampling, options.max_new_tokens)
        loops[setting] = Loop(loop, partial(getattr, loop, "forwards"))
    return loops


def _llama_loops(
    options: SettingsSweepOptions, loader: Loader, settings: Sequence[Setting], sampling: SamplingParams
) -> dict[Setting, Loop]:
    """Return loops of llama.cpp's functions."""
    target = gguf_model("target", options.target, loader.target().target)
    draft = gguf_model("draft", options.draft, loader.draft(str(options.draft), options.base))
    stops = loader.decoder(ComparedDecoder.parse(NONE, options.base)).stop_tokens
    loops = {}
    for setting in settings:
        loop = LlamaLoop(target, draft, setting.length, sampling, options.max_new_tokens, stops)
        loops[setting] = Loop(loop, partial(getattr, loop.target, "reads"))
    return loops


def _vllm_loop(options: SettingsSweepOptions, setting: Setting, sampling: SamplingParams) -> Loop:
    """Return the loop of an engine of vLLM in this process, which decodes one prompt at a time."""
    from specpilot_vllm import bench

    settings: dict[str, Any] = {"draft_sample_method": "probabilistic" if setting.drafts == PROBABILISTIC else "greedy"}
    if setting.drafts == COPIES:
        settings["speculative_config"] = {**VLLM_COPIES, "num_speculative_tokens": setting.length}
    engine = bench.engine(options.target, str(options.draft), drafted=setting.length, dtype=options.dtype, **settings)
    runner, params = bench.model_runner(engine), bench.vllm_sampling(sampling, options.max_new_tokens)
    execute_model, count = runner.execute_model, [0]

    def counted_forward(scheduled: Any, *args: Any, **more: Any) -> Any:
        count[0] += scheduled.total_num_scheduled_tokens > 0
        return execute_model(scheduled, *args, **more)

    def generate(prompt: list[int], seed: int) -> Generation:
        tokens = bench.generate(engine, [prompt], params, seed)[0]
        return Generation(prompt, tokens, stats=Stats(n_generated=len(tokens)))

    runner.execute_model = counted_forward
    return Loop(generate, lambda: count[0])


def timed(
    loops: Mapping[Setting, Loop], prompts: Sequence[list[int]], repeats: int, console: Console
) -> dict[Setting, Array]:
    """Return the tokens, seconds and target forwards (prompts, 3) of each setting, summed over the repetitions."""

    def runs(loop: Loop) -> Run[tuple[int, int]]:
        def run(item: int, repeat: int) -> tuple[int, int]:
            before = loop.forwards()
            tokens = loop.generate(prompts[item], 1000 * repeat + item).stats.n_generated
            return tokens, loop.forwards() - before

        return run

    settings = {str(setting): setting for setting in loops}
    sums = {setting: np.zeros((len(prompts), 3)) for setting in loops}
    configurations = {name: runs(loops[setting]) for name, setting in settings.items()}
    for name, item, each in interleave(configurations, len(prompts), console, repeats=repeats):
        tokens, forwards = each.value
        sums[settings[name]][item] += tokens, each.seconds, forwards
    return sums


def costs_of(sums: Mapping[Setting, Array]) -> CostModel:
    """Return the costs of the engine's rounds, fitted to the mean seconds of a round of each draft length."""
    return round_costs(
        (setting.length, *columns[:, 1:].sum(axis=0).tolist())
        for setting, columns in sums.items()
        if setting.drafts in (NO_DRAFTS, MODEL)
    )


def share_of_the_best(sums: Mapping[Setting, Array], setting: Setting) -> tuple[Setting, Interval]:
    """Return the fastest setting, and the speed of ``setting`` over that of the fastest, with its interval."""
    speeds = {each: columns[:, 0].sum() / columns[:, 1].sum() for each, columns in sums.items()}
    best = max(speeds, key=lambda each: speeds[each])
    return best, speed_ratio(sums[setting], sums[best])


def speed_ratio(columns: Array, baselines: Array) -> Interval:
    """Return the ratio of two speeds over the same prompts; columns begin with tokens and seconds."""
    return ratio_interval(*columns[:, :2].T, *baselines[:, :2].T)


def nearest(settings: Iterable[Setting], setting: EngineSetting) -> Setting:
    """Return the timed setting of a recommendation.

    It has the recommended length if that was timed, else the next shorter one, else the shortest one.
    """
    drafts = PROBABILISTIC if "probabilistic" in setting.options else setting.drafts
    timed_lengths = sorted(each.length for each in settings if each.drafts == drafts)
    shorter = [length for length in timed_lengths if length <= setting.choice.length]
    return WITHOUT if drafts == NO_DRAFTS else Setting(drafts, (shorter or timed_lengths[:1])[-1])


def measure(options: SettingsSweepOptions, console: Console) -> dict[str, Any]:
    """Return the results: the speed-up of each setting, the recommendations, and their shares of the best speed.

    Raises:
        InputError: the models cannot be decoded by the engine, or the pair cannot be replayed.
    """
    loader = Loader(options.base)
    engine = VLLM if options.engine == VLLM else TRANSFORMERS
    if engine == TRANSFORMERS and isinstance(loader.target().target.model, GgufModel):
        engine = LLAMA
    sums = timed(loops_of(options, loader, engine), encoded_prompts(options), options.repeats, console)
    cost = costs_of(sums)
    file = options.folder / "engine-cost.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"cost": cost.to_dict()}) + "\n", encoding="utf-8")
    advice = {
        "compare": recommended(options, engine, options.engine_cost),
        "the sweep": recommended(options, engine, str(file)),
    }
    speedups = {str(each): speed_ratio(columns, sums[WITHOUT]).to_dict() for each, columns in sums.items()}
    results: dict[str, Any] = {"engine": engine, "speedup": speedups, "cost": cost.to_dict(), "advice": {}}
    for name, advised in advice.items():
        setting = nearest(sums, advised)
        best, share = share_of_the_best(sums, setting)
        results["best"] = str(best)
        results["advice"][name] = {
            "setting": str(setting), "expected": advised.choice.speed.to_dict(), "share": share.to_dict()
        }  # fmt: skip
    return results


def main(options: SettingsSweepOptions) -> None:
    """Sweep the draft length of another engine, and compare the recommended length with the fastest one."""
    console = begin()
    result = measure(options, console)
    rows = [
        {"drafts": setting, "speed-up": show(Interval.from_dict(speed), prompts=options.limit)}
        for setting, speed in result["speedup"].items()
    ]
    console.print(Table(f"{result['engine']}, temperature {options.temperature:g}", rows))
    rows = [
        {"costs": name, "recommended": each["setting"], "fastest": result["best"],
         "share of the best speed": show(Interval.from_dict(each["share"]), prompts=options.limit)}
        for name, each in result["advice"].items()
    ]  # fmt: skip
    console.print(Table("Recommended setting", rows))
    finish(result, options, options.output)
