"""The command: parts of all shapes, each result written as it is measured.

A run that was interrupted goes on where it was; results of another commit or another card are measured again. What
fails is recorded and the run goes on; the next run measures it again, after everything else.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import STDOUT
from typing import Annotated, Any, Literal

import torch
from specpilot.cli.commands.measuring import begin
from specpilot.common.errors import InputError
from specpilot.common.options import File, Options, Several
from specpilot.compare.table import Table
from specpilot.models.forwards import Graphs

from .. import processes
from ..synthetic_pair import Pair, Strength, measured, synthetic_pair
from . import kernels, measurements
from .results import CHECKOUT, Results, card
from .subject import SHAPES, Subject

Part = Literal["kernels", "floor", "steps", "profile", "rounds", "speed", "long", "stages", "tests"]
ShapeName = Literal["Llama-3.1-8B", "Llama-3.2-1B", "Qwen3-0.6B", "tiny"]
TasksOf = Callable[[str, str, str], Iterator[measurements.Task]]  # of a part, a shape's name, and graphs


@dataclass(frozen=True, kw_only=True)
class GpuOptions(Options):
    """Benchmark.

    Options of ``python -m experiments gpu``.

    Attributes:
        parts: Measurements, in this order for each model: kernels, floor, steps, profile, rounds, speed, long, stages
            and tests. The measurement kernels needs no GPU.
        shapes: Models whose layer sizes the measured pairs have, with random weights: Llama-3.1-8B, Llama-3.2-1B,
            Qwen3-0.6B, and tiny to try the program.
        graphs: CUDA graphs of forwards: on, compiled, or off. The measurement steps is the only one with off.
        device: Device. On cpu the same code runs without graphs, to try the program.
        output: File for the results. Results in it of the same commit and the same GPU are not measured again.
    """

    parts: Annotated[tuple[Part, ...], Several()] | Part = (
        "kernels", "floor", "steps", "profile", "rounds", "speed", "long", "stages", "tests",
    )  # fmt: skip
    shapes: Annotated[tuple[ShapeName, ...], Several()] | ShapeName = ("Llama-3.1-8B", "Llama-3.2-1B", "Qwen3-0.6B")
    graphs: Annotated[tuple[Graphs | bool, ...], Several()] | Graphs | bool = ("on",)
    device: Literal["cuda", "cpu"] = "cuda"
    output: File = Path("runs/gpu.json")


def several(values: Any) -> tuple[Any, ...]:
    """Return the values of an option that takes one value or a list, as a tuple.

    In a list YAML may read ``on`` and ``off`` as true and false, which become text again.
    """
    values = values if isinstance(values, tuple) else (values,)
    return tuple({True: "on", False: "off"}.get(value, value) for value in values)


def pair_of(name: str, device: torch.device, results: Results) -> Pair | None:
    """Return a random pair with the sizes ``name``; None if it cannot be made, which is recorded in ``results``.

    The pair has the acceptance and entropy of the pair of an earlier run, if ``results`` has one.
    """
    earlier = results.current(f"pair: {name}")
    strength = None if earlier is None else Strength(earlier["scale"], earlier["sharpness"])
    pairs: list[Pair] = []

    def make() -> dict[str, float]:
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        pair = synthetic_pair(SHAPES[name], device, dtype, strength)
        pairs.append(pair)
        return measured(pair.target, pair.draft) | pair.strength._asdict()

    if earlier is None:
        results.measure(f"pair: {name}", make)
    else:
        try:
            make()
        except Exception as error:
            results.console.print(f"pair: {name}: {type(error).__name__}: {error}", markup=False)
    return pairs[0] if pairs else None


def measure_shape(
    name: str, options: GpuOptions, results: Results, tasks: TasksOf, is_requested: Callable[[str], bool]
) -> None:
    """Run the measurements of the pair with the sizes ``name``.

    Args:
        name: name of the sizes.
        options: the options of the command.
        results: stores the results.
        tasks: yields the measurements of a part.
        is_requested: returns true for the names of measurements to run.
    """
    device = torch.device(options.device)
    bandwidth = (results.current("floor") or {}).get("read TB/s")
    pair: Pair | None = None
    for graphs in several(options.graphs):
        for part in several(options.parts):
            subject: Subject | None = None
            for task, call in tasks(part, name, graphs):
                if not is_requested(task):
                    continue
                pair = pair or pair_of(name, device, results)
                if pair is None:
                    return
                if subject is None:  # after a failure a new one: its decoder may be in the middle of something
                    subject = Subject(name, pair.target, pair.draft, graphs, bandwidth)
                if results.measure(task, partial(call, subject)) is None:
                    subject = None
                measurements.clear(device)  # caches and their graphs refer to each other
            del subject
            measurements.clear(device)
    torch.compiler.reset()


def run_tests(output: Path) -> dict[str, Any]:
    """Run the tests that need a GPU in eight processes, and return a summary.

    The output of the tests is written to ``tests.txt`` beside ``output``.
    """
    words = [sys.executable, "-m", "pytest", "-n", "8", "-vv", "-m", "gpu", "tests/gpu"]
    log = output.parent.resolve() / "tests.txt"
    with open(log, "w", encoding="utf-8") as file:
        done = processes.run(words, stdout=file, stderr=STDOUT, cwd=CHECKOUT)
    lines = log.read_text("utf-8").strip().splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {"passed": done.returncode == 0, "last line": lines[-1] if lines else "", "failed": failed}


def measure(options: GpuOptions, results: Results) -> None:
    device = torch.device(options.device)
    if "kernels" in several(options.parts):
        for architecture in kernels.ARCHITECTURES:
            for tokens in kernels.TOKENS:
                count: Callable[[], Any] = partial(kernels.count, architecture, tokens)
                results.measure(f"kernels: {architecture}, {tokens} tokens", count)
    if {"floor", "steps"} & {*several(options.parts)}:
        results.measure("floor", partial(measurements.floor, device))
    failed = {name for name in results.entries if results.has_failed(name)}
    turns: list[tuple[TasksOf, bool]] = [(measurements.tasks, False), (measurements.late_tasks, False), (_all, True)]
    for tasks, again in turns:

        def is_requested(task: str, again: bool = again) -> bool:
            return results.current(task) is None and (task in failed) == again

        for name in several(options.shapes):
            measure_shape(name, options, results, tasks, is_requested)
            measurements.clear(device)
    if "tests" in several(options.parts):
        started = time.perf_counter()
        results.add("tests", run_tests(options.output), time.perf_counter() - started)


def _all(part: str, name: str, graphs: str) -> Iterator[measurements.Task]:
    yield from measurements.tasks(part, name, graphs)
    yield from measurements.late_tasks(part, name, graphs)


def step_table(results: Results) -> Table:
    """Return the table of forwards, with a row for each pair and each setting of the graphs."""
    rows = []
    columns = ("1x1", "1x4", "1x8", "4x4", "16x4", "draft step")
    for key in results.entries:
        values = results.current(key)
        if key.startswith("steps: ") and values is not None:
            name, graphs = key.removeprefix("steps: ").split(", graphs ")
            row = {"model": name, "graphs": graphs} | {n: f"{values[n]:.2f}" for n in columns}
            share = values.get("share of the floor")
            rows.append(row | {"of the floor": "" if share is None else f"{share:.0%}"})
    return Table("milliseconds of a forward by texts x tokens", rows)


def main(options: GpuOptions) -> None:
    """Measure costs and speeds on a GPU with random models of real sizes; needs no network."""
    console = begin()
    if options.device == "cuda" and {*several(options.parts)} != {"kernels"} and not torch.cuda.is_available():
        raise InputError("gpu: torch sees no CUDA device on this machine; run it where there is one")
    results = Results(options.output, card(options.device), console)
    measure(options, results)
    counted = {name: results.current(name) for name in results.entries if name.startswith("kernels: ")}
    if any(counted.values()):
        console.print(
            kernels.as_table({name.removeprefix("kernels: "): values for name, values in counted.items() if values})
        )
    table = step_table(results)
    if table.rows:
        console.print(table)
