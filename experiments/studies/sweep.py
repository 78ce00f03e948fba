"""``python -m experiments sweep``: SpecDec++'s grid of heads (Huang et al. 2024, §4.3), trained and replayed.

The output folder holds the training data, a run folder for each head, and in ``records`` the measured costs and the
counters of every rule on every batch of prompts. An interrupted sweep continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from specpilot.cli.commands.measuring import begin, finish
from specpilot.common.errors import InputError
from specpilot.common.json_file import read_object
from specpilot.common.machine import machine
from specpilot.common.record import to_json
from specpilot.compare.cost import bench_cost
from specpilot.compare.decoders import load
from specpilot.compare.options import CostBenchOptions
from specpilot.compare.recorded import Rule, Tracer
from specpilot.compare.store import Store
from specpilot.controllers.length import CumulativeConfidence, Fixed
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.kinds import AcceptanceRow, read_dataset
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.train.datasets import joint_manifest

from ..figure import canvases
from .heads import Head, SweepOptions, train_heads, training_data, training_prompts
from .held_out import Rows, held_out, in_domain, replay_domains, texts
from .sweep_tables import as_tables, costs_of, plot_sweep, summarise, table_2

COST_REPEATS = 3


def run_sweep(settings: SweepOptions, folder: Path, cost: Path | None, console: Console) -> dict[str, Any]:
    """Train, replay and summarise; results already in ``folder`` are reused.

    Args:
        cost: file written by ``specpilot bench cost``. Default: the costs are measured and stored in ``folder``.

    Raises:
        InputError: a setting is invalid, a training prompt is also held out, or another process writes to ``folder``.
    """
    rows = held_out(settings)
    if cost is not None:
        _read_costs(cost)  # fails before training if the file is invalid
    if settings.data is None:
        training_prompts(settings, rows)
    with Store(folder) as store:
        decoder = SpeculativeDecoder.from_pretrained(settings.target, settings.draft, length=4, device=settings.device)
        data = training_data(settings, rows, folder, console) if settings.data is None else settings.data
        manifest = joint_manifest([data], AcceptanceRow.kind)
        _check_apart(data, rows)
        heads = train_heads(settings, data, manifest, folder, console)
        counted = replay_domains(tracer_of(settings, decoder), rows, rules(settings, heads), store, console)
        document = _read_costs(cost) if cost is not None else _measured_costs(settings, store, console)
    return {
        **summarise(counted, heads, in_domain(settings, rows), costs_of(document)),
        **table_2(document),
        "training": {
            name: to_json(vars(manifest)[name]) for name in ("prompts", "mean_acceptance", "dataset_fingerprint")
        },
        "judged_prompts": sum(map(len, rows.values())),
    }


def tracer_of(settings: SweepOptions, decoder: SpeculativeDecoder) -> Tracer:
    sampling = SamplingParams(settings.temperature, settings.top_k, settings.top_p)
    return Tracer(decoder, sampling, settings.max_new_tokens, settings.seed, chat=settings.chat, system=settings.system)


def rules(settings: SweepOptions, heads: Sequence[Head]) -> list[Rule]:
    """Return all rules that are replayed."""
    return [
        Rule.untrained("fixed", settings.lengths, lambda k: Fixed(int(k))),
        replace(Rule.untrained("cumulative confidence", settings.confidences, CumulativeConfidence), name="confidence"),
        *(head.rule(settings.thresholds) for head in heads),
    ]


def _measured_costs(settings: SweepOptions, store: Store, console: Console) -> dict[str, Any]:
    """Return the result of ``bench cost`` for the pair, measured once and stored."""
    work = CostBenchOptions(
        target=settings.target, draft=settings.draft, device=settings.device, temperature=settings.temperature,
        top_k=settings.top_k, top_p=settings.top_p, prompts=settings.prompts, column=settings.column,
        split=settings.train_split, chat=settings.chat, system=settings.system,
    )  # fmt: skip

    def measure() -> dict[str, Any]:
        console.print("costs of the pair on this machine")
        decoder, prompts = load(work)
        return bench_cost(decoder, prompts, console, repeats=COST_REPEATS, sampling=work.sampling).to_dict()

    identity = {"work": vars(work), "machine": machine().to_dict(), "repeats": COST_REPEATS}
    return dict(store.compute(identity, measure))


def _read_costs(file: Path) -> dict[str, Any]:
    again = "write it with 'specpilot bench cost --output FILE'"
    document = read_object(file, again)
    try:
        table_2(document)
        costs_of(document)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"cost={str(file)!r}: holds no measured costs; {again}") from error
    return document


def _check_apart(data: str, rows: Rows) -> None:
    tested = texts(rows)
    both = next((row.prompt_id for row in read_dataset(data, AcceptanceRow) if row.prompt in tested), None)
    if both is not None:
        raise InputError(f"data={data!r}: prompt {both!r} is among the held-out prompts; train on others")


def main(options: SweepOptions) -> None:
    """Train and evaluate acceptance heads over a grid of thresholds, loss weights and depths (SpecDec++)."""
    canvases(1, 1)  # refuses where matplotlib is missing
    console = begin()
    result = run_sweep(options, options.folder, options.cost, console)
    for table in as_tables(result):
        console.print(table)
    picture = options.folder / "pareto.png"
    plot_sweep(result["figure_4"], picture, f"{options.target} + {options.draft}, {result['judged_prompts']} prompts")
    console.print(f"{picture}: the plot")
    finish(result, options, options.output)
