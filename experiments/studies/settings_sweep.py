"""``python -m experiments settings-sweep``: the draft length that ``compare`` recommends beside a sweep of all lengths.

The recommendation is computed on other prompts than those that are timed. Another engine decodes every timed
prompt with every draft length in turn: transformers' assisted generation, or with GGUF models a loop of llama.cpp's own
functions. The result is the speed of the recommended length as a share of that of the fastest length of the sweep, with
the 95 % interval over prompts. The fastest length is chosen on the timed prompts, which makes the share slightly too
low.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.console import Console
from specpilot.cli.commands.measuring import begin, finish
from specpilot.common.errors import InputError
from specpilot.common.options import Count, OutputFileOptions, Several
from specpilot.compare.assisted import TransformersLoop
from specpilot.compare.decoders import NONE, ComparedDecoder, Generate, Loader, encoded_prompts
from specpilot.compare.engine_settings import COPIES, LLAMA, TRANSFORMERS
from specpilot.compare.interval import Interval, ratio_interval, show
from specpilot.compare.options import CompareOptions, RepeatOptions, WorkloadOptions
from specpilot.compare.results import EngineSetting
from specpilot.compare.run import run
from specpilot.compare.runner import Run, interleave
from specpilot.compare.table import Table
from specpilot.controllers.sampling import SamplingParams
from specpilot.models import GgufModel

from .llama_loops import LlamaLoop, gguf_model

DRAFT = -1  # stands for the draft alone, in place of a draft length


@dataclass(frozen=True, kw_only=True)
class SettingsSweepOptions(WorkloadOptions, RepeatOptions, OutputFileOptions):
    """Study.

    Attributes:
        lengths: Draft lengths of the sweep; decoding without drafts is always timed, too.
        learned: Number of prompts from which the recommendation is computed. They follow the timed prompts.
        folder: Folder for the report of the comparison that gives the recommendation.
    """

    lengths: Annotated[tuple[Count, ...], Several()] = (1, 2, 3, 4, 5, 6, 7, 8)
    learned: Count = 24
    folder: Path = Path("runs/settings-sweep")


def recommended(options: SettingsSweepOptions, engine: str, cost: float | None = None) -> EngineSetting:
    """Return the setting that ``compare`` recommends for an engine, from prompts that are not timed.

    Args:
        cost: time of a draft step in units of a verification; None to measure costs with specpilot's forwards.

    Raises:
        InputError: the pair cannot be replayed.
    """
    settings = run(
        CompareOptions(
            target=options.target, draft=options.draft, prompts=options.prompts, split=options.split,
            skip=options.skip + (options.limit or 0), limit=options.learned, max_new_tokens=options.max_new_tokens,
            temperature=options.temperature, top_k=options.top_k, top_p=options.top_p, dtype=options.dtype,
            draft_dtype=options.draft_dtype, device=options.device, pair_check=options.pair_check, chat=options.chat,
            system=options.system, length="3", rules=False, clock=False, minutes=1000.0, engine_cost=cost,
            output=options.folder / engine / f"temperature-{options.temperature:g}",
        )
    ).engine_settings  # fmt: skip
    if settings is None:
        raise InputError(f"target={options.target!r}: the pair cannot be replayed, so there is no recommendation")
    return settings[engine]


def loops_of(options: SettingsSweepOptions, loader: Loader, engine: str) -> dict[int, Generate]:
    """Return the loop of the engine for each draft length; 0 decodes without drafts, and ``DRAFT`` the draft alone."""
    base, sampling = options.base, SamplingParams(options.temperature, options.top_k, options.top_p)
    lengths = (0, *options.lengths)
    if engine == TRANSFORMERS:
        words = {length: "transformers" + (f":assisted-{length}" if length else "") for length in lengths}
        loops: dict[int, Generate] = {
            length: loader.generate(ComparedDecoder.parse(word, base), sampling, options.max_new_tokens)
            for length, word in words.items()
        }
        model = loader.draft(str(options.draft), base)
        return loops | {DRAFT: TransformersLoop(model, None, "", sampling, options.max_new_tokens)}
    target = gguf_model("target", options.target, loader.target().target)
    draft = gguf_model("draft", options.draft, loader.draft(str(options.draft), base))
    stops = loader.decoder(ComparedDecoder.parse(NONE, base)).stop_tokens
    more = (sampling, options.max_new_tokens, stops)
    llama: dict[int, Generate] = {length: LlamaLoop(target, draft, length, *more) for length in lengths}
    return llama | {DRAFT: LlamaLoop(draft, None, 0, *more)}


def timed(
    loops: Mapping[int, Generate], prompts: Sequence[list[int]], repeats: int, console: Console
) -> dict[int, np.ndarray[Any, Any]]:
    """Return the tokens and seconds (prompts, 2) of each draft length, summed over the repetitions."""

    def runs(loop: Generate) -> Run[int]:
        return lambda item, repeat: loop(prompts[item], 1000 * repeat + item).stats.n_generated

    sums = {length: np.zeros((len(prompts), 2)) for length in loops}
    configurations = {str(length): runs(loop) for length, loop in loops.items()}
    for name, item, each in interleave(configurations, len(prompts), console, repeats=repeats):
        sums[int(name)][item] += each.value, each.seconds
    return sums


def share_of_the_best(sums: Mapping[int, np.ndarray[Any, Any]], length: int) -> tuple[int, Interval]:
    """Return the fastest length, and the speed of ``length`` over that of the fastest, with its interval."""
    speeds = {each: columns[:, 0].sum() / columns[:, 1].sum() for each, columns in sums.items()}
    best = max(speeds, key=lambda each: speeds[each])
    return best, ratio_interval(*sums[length].T, *sums[best].T)


def measure(options: SettingsSweepOptions, console: Console) -> dict[str, Any]:
    """Return the recommendation, the speed-up of each length, and the share of the best speed that it reaches.

    Raises:
        InputError: the models cannot be decoded by the engine, or the pair cannot be replayed.
    """
    loader = Loader(options.base)
    engine = LLAMA if isinstance(loader.target().target.model, GgufModel) else TRANSFORMERS
    loops = loops_of(options, loader, engine)
    sums = timed(loops, encoded_prompts(options), options.repeats, console)
    draft_step, target_step = (each[:, 1].sum() / each[:, 0].sum() for each in (sums.pop(DRAFT), sums[0]))
    ratio = float(draft_step / target_step)
    advice = {
        "costs of specpilot's forwards": recommended(options, engine),
        "the engine's draft and target steps": recommended(options, engine, ratio),
    }
    speedups = {str(each): ratio_interval(*columns.T, *sums[0].T).to_dict() for each, columns in sums.items()}
    results: dict[str, Any] = {"engine": engine, "speedup": speedups, "step": ratio, "advice": {}}
    for name, setting in advice.items():
        length = min(setting.choice.length, max(options.lengths)) if setting.drafts != COPIES else 0
        best, share = share_of_the_best(sums, max(each for each in sums if each <= length))
        results["best"] = best
        results["advice"][name] = {
            "length": length, "expected": setting.choice.speed.to_dict(), "share": share.to_dict()
        }  # fmt: skip
    return results


def main(options: SettingsSweepOptions) -> None:
    """Sweep the draft length of another engine, and compare the length that is recommended."""
    console = begin()
    result = measure(options, console)
    rows = [
        {"tokens": length, "speed-up": show(Interval.from_dict(speed), prompts=options.limit)}
        for length, speed in result["speedup"].items()
    ]
    console.print(Table(f"{result['engine']}, temperature {options.temperature:g}", rows))
    rows = [
        {"costs": name, "recommended": str(each["length"]), "fastest": str(result["best"]),
         "share of the best speed": show(Interval.from_dict(each["share"]), prompts=options.limit)}
        for name, each in result["advice"].items()
    ]  # fmt: skip
    console.print(Table("Recommended draft length", rows))
    finish(result, options, options.output)
