"""``python -m experiments adaptive-length``: the adaptive scheduler in vLLM, compared with every fixed draft length.

vLLM's asynchronous scheduler runs with a simulated model runner, which takes the times of an H200 and accepts drafted
tokens at random. The load and the acceptance change by phases, and all settings generate the same texts.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from specpilot.checkpoints import shipped
from specpilot.cli.commands.measuring import begin, finish
from specpilot.common.options import Count, OutputFileOptions
from specpilot.compare.table import Table
from specpilot.controllers.length.rate import fixed_length_rates

DRAFT = 1.37  # ms of a draft step of an H200 with specpilot's engine (docs/results/gpu.json of commit a9dd1d5a)
VERIFY = ((1, 2, 3, 5, 9, 16, 64), (7.47, 8.02, 8.22, 8.44, 8.77, 8.93, 9.75))  # tokens of a verification, ms
MORE = (9.75 - 8.93) / 48  # ms of each further token
LONGEST, MAX_ROWS = 8, 64
PROMPT, TEXT = 16, 128  # tokens of a simulated request
DEPTH = 0.97  # factor of the acceptance of each further position in a draft
STEPS_AHEAD = 2  # steps that asynchronous scheduling has in flight
ADAPTIVE, TABLE = "adaptive", "vLLM's table"


@dataclass(frozen=True, kw_only=True)
class AdaptiveLengthOptions(OutputFileOptions):
    """Study.

    Options of ``python -m experiments adaptive-length``.

    Attributes:
        steps: Number of steps without drafts in a simulated phase; determines the number of tokens.
        seeds: Number of simulations, each with other accepted tokens. Speeds are those of all simulations together.
    """

    steps: Count = 4000
    seeds: Count = 1


class Phase(NamedTuple):
    """Requests that run at once, and the acceptance of the first token of a draft."""

    requests: int
    acceptance: float


PHASES = (
    Phase(1, 0.85), Phase(1, 0.45), Phase(16, 0.45), Phase(64, 0.45), Phase(64, 0.85), Phase(16, 0.85), Phase(1, 0.7),
    Phase(64, 0.15),
)  # fmt: skip


def step_ms(tokens: float, drafted: int) -> float:
    """Return the milliseconds of a step that verifies ``tokens`` tokens and drafts ``drafted`` tokens.

    A step without a draft takes a forward of the draft model, too, because the draft model still reads the text.
    """
    verify = float(np.interp(tokens, *VERIFY)) + MORE * max(0.0, tokens - VERIFY[0][-1])
    return verify + DRAFT * max(1, drafted)


def times_file(folder: Path) -> Path:
    """Write the simulated times of steps in the form of ``specpilot-vllm times``, and return the file."""
    lengths = (0, 1, 2, 4, 8)
    seconds = {
        str(rows): {str(k): step_ms(rows * (k + 1), k) / 1000 for k in lengths} for rows in (1, 2, 4, 8, 16, 32, 64)
    }
    file = folder / "times.json"
    file.write_text(json.dumps({"seconds": seconds}), encoding="utf-8")
    return file


def survivals(acceptance: float) -> list[float]:
    """Return the probabilities that the first 0, 1, … ``LONGEST`` drafted tokens are all accepted."""
    survival: list[float] = np.cumprod([1.0] + [acceptance * DEPTH**i for i in range(LONGEST)]).tolist()
    return survival


def best_table(seconds: Any, survival: Sequence[float]) -> list[list[int]]:
    """Return vLLM's table with the best length for each number of requests.

    Args:
        seconds: times by number of requests and drafted tokens (B + 1, K + 1).
        survival: probabilities that the first 0, 1, … K drafted tokens are all accepted.
    """
    best = fixed_length_rates(survival, seconds).argmax(1).tolist()
    table: list[list[int]] = []
    for rows in range(1, len(best)):
        if table and table[-1][2] == best[rows]:
            table[-1][1] = rows
        else:
            table.append([rows, rows, best[rows]])
    return table


def make_scheduler(settings: Mapping[str, Any], table: Sequence[Sequence[int]] | None, cls: str | None = None) -> Any:
    """Return a scheduler of vLLM, without an engine.

    Args:
        settings: vLLM's additional configuration.
        table: vLLM's setting ``num_speculative_tokens_per_batch_size``: rows of the least and the largest number of
            requests, and the draft length for them. None for a single draft length.
        cls: the name of the scheduler's class; None for vLLM's asynchronous scheduler.
    """
    import torch
    from specpilot_vllm.bench import import_vllm

    vllm = import_vllm()
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    speculative = {"method": "draft_model", "model": str(shipped("tiny-draft")), "num_speculative_tokens": LONGEST}
    config = vllm.EngineArgs(
        model=str(shipped("tiny")), max_num_seqs=MAX_ROWS, max_model_len=256, enforce_eager=True, block_size=16,
        enable_prefix_caching=False, additional_config=dict(settings),
        speculative_config=speculative | ({} if table is None else {"num_speculative_tokens_per_batch_size": table}),
    ).create_engine_config()  # fmt: skip
    config.scheduler_config.async_scheduling = True
    config.cache_config.num_gpu_blocks = blocks = 24 * MAX_ROWS
    spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=1, dtype=torch.float32)
    make = resolve_obj_by_qualname(cls or "vllm.v1.core.sched.async_scheduler.AsyncScheduler")
    return make(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=16,
    )


class Simulation:
    """A model runner that accepts drafted tokens at random, and a clock.

    The tokens that a text accepts depend on the seed and the position alone, so that all settings have the same ones.

    Args:
        scheduler: the scheduler.
        seed: the seed.

    Attributes:
        ms: time of all steps.
        texts: by request, the random numbers of its positions and the number of its tokens.
        drafted: draft lengths of the steps of this phase.
    """

    def __init__(self, scheduler: Any, seed: int) -> None:
        self.scheduler, self.seed = scheduler, seed
        self.ms, self.drafted = 0.0, list[int]()
        self.texts: dict[str, tuple[Any, float, int]] = {}

    def phase(self, number: int, phase: Phase, requests: int) -> tuple[int, float]:
        """Run a phase until all requests have ended, and return its tokens and milliseconds.

        Args:
            number: number of the phase.
            phase: the number of requests at once and the acceptance.
            requests: number of all requests of the phase.
        """
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        started, count, self.drafted = self.ms, 0, []
        in_flight: deque[tuple[Any, Any]] = deque()
        while count < requests or self.scheduler.requests or in_flight:
            while count < requests and len(self.scheduler.requests) < phase.requests:
                name = f"{number}-{count}"
                uniform = np.random.default_rng([self.seed, number, count]).random((TEXT, LONGEST))
                self.texts[name] = uniform, phase.acceptance, 0
                params = SamplingParams(max_tokens=TEXT, ignore_eos=True, temperature=0.0)
                params.update_from_generation_config({}, None)
                self.scheduler.add_request(Request(name, [3] * PROMPT, params, None))
                count += 1
            output = self.scheduler.schedule()
            if output.total_num_scheduled_tokens:
                self.ms += step_ms(output.total_num_scheduled_tokens, output.num_spec_tokens_to_schedule)
                self.drafted.append(output.num_spec_tokens_to_schedule)
            in_flight.append((output, self.run(output)))
            executed = output.total_num_scheduled_tokens > 0
            while len(in_flight) == STEPS_AHEAD or (in_flight and not executed):
                self.scheduler.update_from_output(*in_flight.popleft())
        return requests * TEXT, self.ms - started

    def run(self, output: Any) -> Any:
        """Return the output of the model runner for a scheduled step."""
        from vllm.v1.outputs import ModelRunnerOutput

        names, sampled = list(output.num_scheduled_tokens), []
        for name in names:
            uniform, acceptance, position = self.texts[name]
            drafted = len(output.scheduled_spec_decode_tokens.get(name, ()))
            depth = np.arange(drafted)
            accepted = uniform[np.minimum(position + depth, TEXT - 1), 0] < acceptance * DEPTH**depth
            count = int(np.cumprod(accepted).sum()) + 1
            self.texts[name] = uniform, acceptance, position + count
            sampled.append([5] * count)
        return ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)}, sampled_token_ids=sampled
        )


def simulate(options: AdaptiveLengthOptions) -> dict[str, Any]:
    """Return tokens per second of each setting and phase, and over all phases."""
    from specpilot_vllm.round_times import load_seconds

    mean = float(np.mean([phase.acceptance for phase in PHASES]))
    with TemporaryDirectory() as folder:
        file = str(times_file(Path(folder)))
        table = best_table(load_seconds(file, LONGEST, MAX_ROWS, reads_text=True), survivals(mean))
        runs = [_run_settings(options, file, table, seed) for seed in range(options.seeds)]
    sums = {name: np.sum([run[name] for run in runs], 0) for name in runs[0]}
    speeds = {name: (1000 * tokens / ms).tolist() for name, (tokens, ms, *_) in sums.items()}
    total = {name: float(1000 * tokens.sum() / ms.sum()) for name, (tokens, ms, *_) in sums.items()}
    lengths = {name: (drafted / steps).tolist() for name, (_, _, drafted, steps) in sums.items()}
    return _summary(speeds, total) | {
        "phases": [phase._asdict() for phase in PHASES], "mean_length": lengths, "table": table
    }  # fmt: skip


def _run_settings(
    options: AdaptiveLengthOptions, times: str, table: Sequence[Sequence[int]], seed: int
) -> dict[str, Any]:
    """Return tokens, milliseconds, sum of the draft lengths and steps, each by phase (4, phases), of each setting.

    Args:
        options: options of the study.
        times: file with the times of steps.
        table: the best lengths for vLLM's table.
        seed: seed of the accepted tokens.
    """
    from specpilot_vllm.round_times import graph_table

    every = graph_table(LONGEST, MAX_ROWS)
    schedulers = {
        f"K = {k}": make_scheduler({}, [[1, MAX_ROWS, k]]) for k in range(LONGEST + 1)
    } | {
        TABLE: make_scheduler({}, table),
        ADAPTIVE: make_scheduler(
            {"specpilot_adaptive": {"cost": times}}, every, "specpilot_vllm.adaptive.AdaptiveScheduler"
        ),
    }  # fmt: skip
    columns = {}
    for name, scheduler in schedulers.items():
        simulation, phases = Simulation(scheduler, seed), []
        for number, phase in enumerate(PHASES):
            tokens, ms = simulation.phase(number, phase, phase.requests * -(-options.steps // TEXT))
            phases.append((tokens, ms, sum(simulation.drafted), len(simulation.drafted)))
        columns[name] = np.array(phases, dtype=float).T
    return columns


def _summary(speeds: Mapping[str, Sequence[float]], total: Mapping[str, float]) -> dict[str, Any]:
    """Return the speeds, and those of the adaptive scheduler as shares of the best fixed lengths' and the table's."""
    fixed = [name for name in speeds if name.startswith("K")]
    best = [max(fixed, key=lambda name: speeds[name][i]) for i in range(len(speeds[ADAPTIVE]))]
    shares = [speeds[ADAPTIVE][i] / speeds[name][i] for i, name in enumerate(best)]
    best_total = max(fixed, key=lambda name: total[name])
    return {
        "tokens_per_second": speeds, "whole_run": total, "best": best, "share_of_best": shares,
        "best_of_whole_run": best_total, "over_best": total[ADAPTIVE] / total[best_total],
        "over_table": total[ADAPTIVE] / total[TABLE],
    }  # fmt: skip


def as_table(title: str, result: Mapping[str, Any]) -> Table:
    """Return the table of a result, by phase."""
    speeds = result["tokens_per_second"]
    rows = [
        {
            **{name: str(value) for name, value in phase.items()}, "best fixed": best,
            "adaptive over best fixed": f"{share:.3f}",
            "adaptive over table": f"{speeds[ADAPTIVE][i] / speeds[TABLE][i]:.3f}",
        }
        for i, (phase, best, share) in enumerate(
            zip(result["phases"], result["best"], result["share_of_best"], strict=True)
        )
    ]  # fmt: skip
    rows.append(
        {
            "requests": "whole run", [*result["phases"][0]][1]: "", "best fixed": result["best_of_whole_run"],
            "adaptive over best fixed": f"{result['over_best']:.3f}",
            "adaptive over table": f"{result['over_table']:.3f}",
        }
    )  # fmt: skip
    return Table(title, rows)


def main(options: AdaptiveLengthOptions) -> None:
    """Compare the adaptive scheduler in vLLM with fixed draft lengths under changing load and acceptance."""
    console = begin()
    result = {"simulated": simulate(options)}
    console.print(as_table("simulated", result["simulated"]))
    finish(result, options, options.output)
