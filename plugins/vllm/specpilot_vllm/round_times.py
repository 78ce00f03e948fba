"""Times of vLLM's steps by number of requests and draft length: measured, stored, and interpolated.

``specpilot-vllm times`` measures them in an engine with any drafting method. The scheduler sets the draft length of all
requests, so that the times contain everything that a length costs in this engine.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from specpilot.checkpoints import shipped
from specpilot.common.errors import InputError
from specpilot.common.json_file import build, naming_file, parse_object, read_object
from specpilot.controllers.length.cost_model import BatchCosts, CostModel, parse_number

from .bench import CELLS, import_vllm, keep
from .build import hidden_llvmlite
from .options import TimesOptions

if TYPE_CHECKING:
    from vllm import LLM

KEY = "seconds"  # key of the times in a file
MEASURE = "measure again with 'specpilot-vllm times --output FILE'"
ROWS = (1, 2, 4, 8, 16, 32, 64)  # numbers of requests
PROMPT = 32  # tokens of a prompt
WARM, TIMED, TURNS = 2, 4, 3  # steps before a measurement, steps of a measurement, measurements of each length

Array = Any  # of NumPy
Times = Mapping[str, Mapping[str, float]]


def graph_table(longest: int, max_rows: int) -> list[list[int]]:
    """Return a ``num_speculative_tokens_per_batch_size`` that makes vLLM capture CUDA graphs of 0 … ``longest`` tokens.

    The adaptive scheduler ignores which length belongs to which number of requests. The longest drafts belong to most
    numbers, because vLLM captures the sizes of a length up to the largest number that the table gives it.
    """
    short = min(longest, max_rows - 1)
    return [[k + 1, k + 1, longest - short + k] for k in range(short)] + [[short + 1, max_rows, longest]]


def load_seconds(cost: str | float, longest: int, max_rows: int, *, reads_text: bool) -> Array:
    """Return the times of a step (``max_rows`` + 1, ``longest`` + 1), in seconds, by requests and drafted tokens.

    Measured times are interpolated; above the largest measured number of requests they are proportional to the number.

    Args:
        cost: a file of ``specpilot-vllm times`` or ``bench``, or the time of a draft step divided by the time of a
            verification.
        longest: the longest draft.
        max_rows: the maximum number of requests.
        reads_text: whether the drafter reads the text even where it drafts nothing, as vLLM's draft models do. Costs of
            ``bench`` do not contain this forward. Measured times of ``times`` do.

    Raises:
        InputError: the file is missing or damaged, or measured drafts are shorter than ``longest``.
    """
    file = str(Path(str(cost)).expanduser())
    is_file = Path(file).is_file()
    if is_file and KEY in read_object(file, MEASURE):
        return _interpolated(file, longest, max_rows)
    if not is_file and parse_number(cost) is None:
        raise InputError(f"cost={cost!r}: no such file; measure the times with 'specpilot-vllm times --output FILE'")
    single = CostModel.load(cost)
    batch = BatchCosts.load(file) if is_file else None
    seconds = np.empty((max_rows + 1, longest + 1))
    for rows in range(1, max_rows + 1):
        model = single if batch is None else batch.at(rows)
        share = [model.round(0, int(reads_text))] + [model.round(drafted) for drafted in range(1, longest + 1)]
        seconds[rows] = np.multiply(rows, share)
    seconds[0] = seconds[1]
    return seconds


def _interpolated(file: str, longest: int, max_rows: int) -> Array:
    """Return the times in ``file``, interpolated; arguments and errors as for :func:`load_seconds`."""
    with naming_file(file, MEASURE):
        times = build(dict[str, dict[str, float]], read_object(file, MEASURE)[KEY], KEY)
        names = [*times, *(length for row in times.values() for length in row)]
        if not times or not all(times.values()) or not all(name.isdecimal() and len(name) < 10 for name in names):
            raise InputError(f"{KEY}: times by number of requests and draft length are expected")
        if not all(value > 0 for row in times.values() for value in row.values()):
            raise InputError(f"{KEY}: every time must be positive")
    measured = min(max(map(int, row)) for row in times.values())
    if measured < longest:
        raise InputError(
            f"{file}: has times of at most {measured} drafted tokens, but vLLM drafts {longest}; measure again with "
            f"'specpilot-vllm times --longest {longest}'"
        )
    rows = sorted(map(int, times))
    by_length = []
    for count in rows:
        row = times[str(count)]
        lengths = sorted(map(int, row))
        by_length.append(np.interp(np.arange(longest + 1), lengths, [row[str(length)] for length in lengths]))
    counts, table = np.arange(max_rows + 1), np.array(by_length)
    seconds = np.stack([np.interp(counts, rows, table[:, length]) for length in range(longest + 1)], axis=1)
    is_extrapolated = counts > rows[-1]
    seconds[is_extrapolated] *= counts[is_extrapolated, None] / rows[-1]
    return seconds


def measure_times(options: TimesOptions) -> dict[str, Any]:
    """Return the seconds of the steps of an engine, as the content of a file that :func:`load_seconds` reads.

    Raises:
        InputError: vLLM is not installed, or an option is malformed.
    """
    vllm = import_vllm()
    from vllm.platforms import current_platform

    with naming_file("speculative_config", 'give a JSON object, such as {"method": "ngram"}'):
        speculative = parse_object(options.speculative_config)
    with naming_file("engine", 'give a JSON object, such as {"tensor_parallel_size": 2}'):
        engine_arguments = parse_object(options.engine)
    if "model" in speculative:
        speculative["model"] = str(shipped(speculative["model"]) or speculative["model"])
    max_rows = max(options.requests)
    speculative["num_speculative_tokens"] = options.longest
    speculative["num_speculative_tokens_per_batch_size"] = graph_table(options.longest, max_rows)
    on_cpu = current_platform.is_cpu()
    arguments = {
        "model": str(shipped(options.target) or options.target),
        "max_num_seqs": max_rows,
        "enforce_eager": on_cpu,
        "kv_cache_memory_bytes": CELLS if on_cpu else None,
        "enable_prefix_caching": False,
        "speculative_config": speculative,
    }
    with hidden_llvmlite():
        llm = vllm.LLM(**arguments | engine_arguments)
    keep(llm)
    return {KEY: step_times(llm, options.requests, options.longest)}


def step_times(llm: LLM, requests: Sequence[int], longest: int) -> Times:
    """Return the seconds of a step, by number of requests and drafted tokens.

    Lengths between powers of two are interpolated. A step verifies what the step before drafted, so that each length
    has several steps in a row, of which the first do not count. On a CPU the unit is processor time.
    """
    from vllm.platforms import current_platform

    clock = time.process_time if current_platform.is_cpu() else time.perf_counter
    lengths = sorted({0, *(2**i for i in range(longest.bit_length()) if 2**i < longest), longest})
    core = llm.llm_engine
    scheduler: Any = core.engine_core.engine_core.scheduler
    params = import_vllm().SamplingParams(
        temperature=0.0, ignore_eos=True, max_tokens=(TURNS + 1) * sum((WARM + TIMED) * (k + 1) for k in lengths)
    )
    result = {}
    for count in requests:
        names = [f"times-{count}-{i}" for i in range(count)]
        for i, name in enumerate(names):
            core.add_request(name, import_vllm().TokensPrompt(prompt_token_ids=[2 + i] * PROMPT), params)
        while any(request.num_output_tokens == 0 for request in scheduler.requests.values()):
            core.step()
        seconds: dict[int, list[float]] = {length: [] for length in lengths}
        for length in lengths * TURNS:
            scheduler.dynamic_sd_lookup = [length] * (scheduler.max_num_running_reqs + 1)
            for _ in range(WARM):
                core.step()
            started = clock()
            for _ in range(TIMED):
                core.step()
            seconds[length].append((clock() - started) / TIMED)
        core.abort_request([*scheduler.requests])
        while core.has_unfinished_requests():
            core.step()
        core.step()
        result[str(count)] = {str(length): median(times) for length, times in seconds.items()}
    return result
