"""Milliseconds of one cached forward of target and draft, by the number of new tokens."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import Console
from specpilot.commands.measuring import begin, finish
from specpilot.common.options import Count
from specpilot.compare.runner import Run, interleave
from specpilot.compare.table import Table
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.costs import step_times
from specpilot.infer.loading.names import load_causal_lm
from specpilot.infer.models import CausalLM
from specpilot.infer.options import LoadingOptions, PairOptions

READ = (1, 2, 3, 4, 5, 7, 9, 13)
CONTEXT = 128  # tokens before those that are read
PASS = 10  # repetitions in a row


@dataclass(frozen=True, kw_only=True)
class ForwardBenchOptions(PairOptions, LoadingOptions):
    """Benchmark.

    Attributes:
        repeats: Number of timed forwards; medians are reported.
    """

    repeats: Count = 50


def bench_forward(options: ForwardBenchOptions, console: Console) -> dict[str, Any]:
    """Median milliseconds by model, path and number of tokens, and the ratio t_draft / t_target(1).

    The paths are the forward of transformers, and the lean forward if the model has one or else that of transformers
    with reordered weights if these are faster. They run in turn.
    """
    result: dict[str, Any] = {}
    repeats = options.repeats
    models = {
        name: load_causal_lm(
            source, dtype=options.dtype, device=options.device, trust_remote_code=options.trust_remote_code
        )
        for name, source in (("target", options.target), ("draft", options.draft))
    }
    for name, model in models.items():
        paths = _paths(CausalLM(model))
        found = interleave(paths, 1, console, repeats=-(-repeats // PASS), label=f"{name}: passes")
        result[name] = {
            path: {str(n): round(median(timed.value[n] for timed in of_path[0]) * 1e3, 4) for n in READ}
            for path, of_path in found.items()
        }
    best = {name: min(path["1"] for path in paths.values()) for name, paths in result.items()}
    return {"milliseconds": result, "ratio": best["draft"] / best["target"], "context": CONTEXT, "repeats": repeats}


def _paths(model: CausalLM) -> dict[str, Run[dict[int, float]]]:
    """For each path, a function that times one forward for each number of tokens."""
    paths: dict[str, tuple[Any, Any]] = {"transformers": (None, model.model)}
    if model.lean is not None:
        paths["lean"] = (model.lean, model.model)
    elif model.packed is not model.model:
        paths["packed"] = (None, model.packed)

    def timed(path: str) -> dict[int, float]:
        model.lean, model.packed = paths[path]
        return step_times(model, [], [*range(CONTEXT)], SamplingParams(0.0), PASS, READ).verify

    return {path: lambda item, repeat, path=path: timed(path) for path in paths}  # type: ignore[misc]


def as_table(result: dict[str, Any]) -> Table:
    """Milliseconds by model, path and number of tokens read."""
    rows = [
        {"model": model, "path": path} | {f"{n} token{'s' * (n != '1')}": f"{ms:.2f}" for n, ms in row.items()}
        for model, paths in result["milliseconds"].items()
        for path, row in paths.items()
    ]
    return Table("milliseconds", rows)


def main(options: ForwardBenchOptions) -> None:
    """Time one forward of target and draft by number of tokens, on the lean path and that of transformers."""
    console = begin()
    result = bench_forward(options, console)
    console.print(as_table(result))
    finish(result, options)
