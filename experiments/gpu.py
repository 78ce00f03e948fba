"""What decoding costs on a GPU, and how fast it is beside transformers, with random models of real sizes.

Results are written after each measurement; a run that was interrupted goes on after the last one.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import torch
from rich.console import Console
from specpilot.cli.commands.measuring import begin
from specpilot.common.errors import InputError
from specpilot.common.files import replacing
from specpilot.common.machine import commit, machine, versions
from specpilot.common.options import Options, Several
from specpilot.compare.table import Table
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.distribution import TokenDistribution
from specpilot.infer.random_source import RandomSource
from specpilot.models import CausalLM, LanguageModel, Read, language_model
from torch.profiler import ProfilerActivity, profile
from transformers import PreTrainedModel

from .synthetic_pair import Shape, measured, synthetic_pair

Part = Literal["tests", "floor", "steps", "rounds", "speed", "stages"]
PARTS: tuple[Part, ...] = ("tests", "floor", "steps", "rounds", "speed", "stages")
GRAPHS = ("on", "compiled", "off")
SHAPES = {
    "Llama-3.1-8B": Shape(),
    "Llama-3.2-1B": Shape(layers=16, draft_layers=2, hidden=2048, intermediate=8192),
    "Qwen3-0.6B": Shape(
        layers=28, draft_layers=2, hidden=1024, intermediate=3072, heads=16, kv_heads=8, vocabulary=151936
    ),
}
PAIRS = ("Llama-3.2-1B", "Llama-3.1-8B")  # whose first layers draft
PROMPT = [(7 * i) % 1000 + 1 for i in range(128)]
NEW = 128  # tokens of a text
SAMPLING = SamplingParams(1.0, 50)
PASSES = 2


@dataclass(frozen=True, kw_only=True)
class GpuOptions(Options):
    """Benchmark.

    Attributes:
        parts: What to measure, of tests, floor, steps, rounds, speed and stages.
        output: File of the results; those that are there are not measured again.
    """

    parts: Annotated[tuple[Part, ...], Several()] = PARTS
    output: Path = Path("docs/results/gpu.json")


class Results:
    """Measurements by name, written to a file after each."""

    def __init__(self, path: Path, console: Console) -> None:
        self.path, self.console = path, console
        made = {"machine": machine(), "versions": versions(), "gpu": torch.cuda.get_device_name()}
        self.found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
        if self.found and self.found["gpu"] != made["gpu"]:
            raise InputError(f"{path}: measured on {self.found['gpu']}, this is {made['gpu']}; give another output")
        self.found |= made | {"commit": commit()}

    def measure(self, name: str, call: Callable[[], Any]) -> Any:
        """The result of ``call``, unless the file has it."""
        if name not in self.found:
            started = time.perf_counter()
            try:
                found = call()
            except torch.cuda.OutOfMemoryError as error:
                found = {"error": str(error).splitlines()[0]}
            self.found[name] = found
            with replacing(self.path) as file:
                file.write_text(json.dumps(self.found, indent=1) + "\n", "utf-8")
            self.console.print(f"{name}: {json.dumps(found)} ({time.perf_counter() - started:.1f} s)", soft_wrap=True)
        return self.found[name]


def milliseconds(call: Callable[[], Any], repeats: int = 20) -> float:
    """Median wall time of a call that is followed by synchronization."""
    times = []
    for _ in range(repeats + 5):
        torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return round(median(times[5:]) * 1e3, 4)


def floor() -> dict[str, float]:
    """Bandwidth of reading in TB/s, and microseconds of the launch of an eager kernel."""
    large = torch.ones(2**32, dtype=torch.bfloat16, device="cuda")
    read = large.numel() * 2 / milliseconds(lambda: large.sum(dtype=torch.float32)) / 1e9
    small = torch.zeros(1, device="cuda")
    launches = milliseconds(lambda: [small.add_(1) for _ in range(100)]) * 10
    return {"read TB/s": round(read, 3), "launch µs": round(launches, 2)}


def weight_bytes(model: PreTrainedModel) -> int:
    """Bytes of the weights that a forward reads: all but an embedding that is not the head's too."""
    embedding: Any = model.get_input_embeddings()
    head: Any = model.get_output_embeddings()
    unread = 0 if embedding.weight is head.weight else embedding.weight.nbytes
    return int(sum(parameter.nbytes for parameter in model.parameters()) - unread)


def timed_forward(model: LanguageModel, rows: int, tokens: int) -> float:
    """Milliseconds of a forward of ``tokens`` for each of ``rows`` texts."""
    cache = model.new_cache()
    for row in range(rows):
        model.begin(cache, row, PROMPT, NEW)
        model.forward(cache, [Read(row, PROMPT)])
    reads = [Read(row, PROMPT[:tokens], tokens) for row in range(rows)]

    def forward() -> None:
        model.forward(cache, reads)
        for row in range(rows):
            cache.crop_text(row, len(PROMPT))

    return milliseconds(forward)


def step(model: LanguageModel) -> float:
    """Milliseconds of a draft step: a forward of one token, its distribution, and a draw on the host."""
    cache, rng = model.new_cache(), RandomSource(0)
    model.begin(cache, 0, PROMPT, NEW)
    model.forward(cache, [Read(0, PROMPT)])

    def draw() -> None:
        logits, _ = model.forward(cache, [Read(0, [1])])
        TokenDistribution.from_logits(SAMPLING, logits).sample(0, rng)
        cache.crop_text(0, len(PROMPT))

    return milliseconds(draw)


@torch.inference_mode()
def steps(model: PreTrainedModel, graphs: Any, bandwidth: float) -> dict[str, Any]:
    """Milliseconds of forwards by rows and tokens, and the share of the bandwidth that one token reaches."""
    reader = language_model(model, graphs=graphs)
    started = time.perf_counter()
    one = timed_forward(reader, 1, 1)
    found: dict[str, Any] = {"first seconds": round(time.perf_counter() - started, 1)}
    shapes = [(1, 1), (1, 2), (1, 4), (1, 8), (4, 1), (4, 4), (16, 1), (16, 4)]
    found |= {f"{rows}x{n}": one if (rows, n) == (1, 1) else timed_forward(reader, rows, n) for rows, n in shapes}
    share = weight_bytes(model) / (one * bandwidth * 1e9)
    return found | {"draft step": step(reader), "share of the floor": round(share, 3)}


def rounds(target: PreTrainedModel, draft: PreTrainedModel, graphs: Any) -> dict[str, Any]:
    """Milliseconds of a round of K tokens beside its parts, with launches and reads by the host."""
    decoder = SpeculativeDecoder(language_model(target, graphs=graphs), language_model(draft, graphs=graphs))
    with torch.inference_mode():
        verification = {n: timed_forward(decoder.target, 1, n) for n in (1, 2, 3, 5, 9)}
        draft_step = step(decoder.drafts[0])
    found: dict[str, Any] = {"draft step": draft_step, "verification": verification}
    for k in (1, 2, 4, 8):
        decode(decoder, length=k)
        outputs = [decode(decoder, length=k) for _ in range(PASSES)]
        own = median(output.stats.seconds / (len(output.rounds) - 1) for output in outputs) * 1e3
        parts = k * draft_step + verification[k + 1]
        stats = outputs[0].stats
        accepted = round(stats.n_accepted / max(1, stats.n_drafted), 3)
        found[f"K={k}"] = {"ms": round(own, 3), "to its parts": round(own / parts, 3), "acceptance": accepted}
    found["K=4"] |= per_round(decoder, 1, length=4)
    for texts in (1, 4, 16):
        found[f"confidence, {texts} texts"] = per_round(decoder, texts, length="confidence:0.4")
    return found


def per_round(decoder: SpeculativeDecoder, texts: int, **options: Any) -> dict[str, float]:
    """Launches, replayed graphs, and reads by the host of a round that so many ``texts`` share."""
    decode(decoder, [PROMPT] * texts, **options)  # captures the graphs
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        outputs = decode(decoder, [PROMPT] * texts, max_new_tokens=16, **options)
    rounds = max(len(output.rounds) for output in outputs)
    counts = {event.key: event.count / rounds for event in profiler.key_averages()}
    return {
        name: round(sum(counts.get(key, 0) for key in keys), 1)
        for name, keys in {
            "launches": ("cudaLaunchKernel", "cuLaunchKernelEx"),
            "graphs": ("cudaGraphLaunch",),
            "reads": ("Memcpy DtoH (Device -> Pageable)",),
        }.items()
    }


def decode(decoder: SpeculativeDecoder, prompts: Any = PROMPT, **options: Any) -> Any:
    return decoder.generate(prompts, **{"max_new_tokens": NEW, "temperature": 1.0, "top_k": 50, "seed": 1} | options)


def speed(target: PreTrainedModel, draft: PreTrainedModel, graphs: Any) -> dict[str, Any]:
    """Tokens per second of ways to decode one text, in turn; medians of the passes."""
    decoder = SpeculativeDecoder(language_model(target, graphs=graphs), language_model(draft, graphs=graphs))
    ways: dict[str, Callable[[], Any]] = {
        f"ours, K={k}": partial(decode, decoder, length=k) for k in (0, 1, 2, 3, 4, 6, 8)
    }
    for rule in ("confidence:0.4", "cumulative-confidence:0.3", "entropy:0.5", "heuristic:5", "online-confidence:0.4"):
        ways[f"ours, {rule}"] = partial(decode, decoder, length=rule)
    ids = torch.tensor([PROMPT], device="cuda")
    plain = {"do_sample": True, "top_k": 50, "max_new_tokens": NEW, "min_new_tokens": NEW, "pad_token_id": 0}

    def transformers(**options: Any) -> Any:
        model: Any = target
        return model.generate(ids, attention_mask=torch.ones_like(ids), **plain, **options)

    if graphs == "on":
        ways["transformers"] = transformers
        ways["transformers, static cache"] = partial(transformers, cache_implementation="static", disable_compile=True)
        ways["transformers, static cache, compiled"] = partial(transformers, cache_implementation="static")
        ways["transformers, assisted"] = partial(transformers, assistant_model=draft)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(PASSES + 1):
        for name, way in ways.items():
            torch.cuda.synchronize()
            started = time.perf_counter()
            way()
            torch.cuda.synchronize()
            if turn:
                seconds[name].append(time.perf_counter() - started)
    return {name: round(NEW / median(of_way), 1) for name, of_way in seconds.items()}


def stages(target: PreTrainedModel) -> dict[str, float]:
    """Tokens per second of rolling out 64 texts together, and of reading them in one forward each."""
    reader = language_model(target)
    decoder = SpeculativeDecoder(reader, None)
    prompts = [[i + 1, *PROMPT] for i in range(64)]
    decoder.generate(prompts, max_new_tokens=8, temperature=1.0)
    started = time.perf_counter()
    outputs = decoder.generate(prompts, max_new_tokens=64, temperature=1.0)
    rolled = sum(len(output.tokens) for output in outputs) / (time.perf_counter() - started)
    assert isinstance(reader, CausalLM)
    with torch.inference_mode():
        read = 1024 / timed_forward(reader, 1, 1024) * 1e3
    return {"rolled out": round(rolled), "read": round(read)}


def run_tests() -> dict[str, Any]:
    """The tests that need a GPU."""
    words = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/gpu"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {"passed": done.returncode == 0, "last line": lines[-1] if lines else done.stderr[-300:], "failed": failed}


def measure(options: GpuOptions, results: Results) -> None:
    if "tests" in options.parts:
        results.measure("tests", run_tests)
    bandwidth = results.measure("floor", floor)["read TB/s"]
    for graphs in GRAPHS:
        for name, shape in SHAPES.items():
            target, draft = synthetic_pair(shape, torch.device("cuda"), torch.bfloat16)
            results.measure(f"pair: {name}", partial(measured, target, draft))
            kind = f"{name}, graphs {graphs}"
            calls = {f"steps: {kind}": partial(steps, target, graphs, bandwidth)}
            if name in PAIRS:
                calls[f"rounds: {kind}"] = partial(rounds, target, draft, graphs)
                calls[f"speed: {kind}"] = partial(speed, target, draft, graphs)
            if graphs == "on":
                calls[f"stages: {name}"] = partial(stages, target)
            for key, call in calls.items():
                if key.partition(":")[0] in options.parts:
                    results.measure(key, call)
            del target, draft, calls
            gc.collect()
            torch.cuda.empty_cache()


def as_table(found: dict[str, Any]) -> Table:
    """One row for each shape and kind of graphs."""
    rows = []
    shown = ("1x1", "1x4", "1x8", "4x4", "16x4", "draft step")
    for key, values in found.items():
        if key.startswith("steps: ") and "error" not in values:
            name, graphs = key.removeprefix("steps: ").split(", graphs ")
            row = {"model": name, "graphs": graphs} | {n: f"{values[n]:.2f}" for n in shown}
            rows.append(row | {"of the floor": f"{values['share of the floor']:.0%}"})
    return Table("milliseconds of a forward by texts x tokens", rows)


def main(options: GpuOptions) -> None:
    """Measure costs and speeds on a GPU with random models of real sizes; needs no network."""
    console = begin()
    if not torch.cuda.is_available():
        raise InputError("gpu: torch sees no CUDA device on this machine; run it where there is one")
    results = Results(options.output, console)
    measure(options, results)
    console.print(as_table(results.found))
