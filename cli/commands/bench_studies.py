"""`specpilot bench` for stopping rules and trained controllers, replayed over held-out texts."""

from __future__ import annotations

from ..options import AblationOptions, MixingOptions, OutputFileOptions, SweepOptions, TreeStudyOptions
from .measuring import begin, finish


def stopping(options: OutputFileOptions) -> None:
    """Compare stopping rules with the optimal policy, computed exactly on a Markov model of acceptance."""
    from ..bench.studies.stopping import as_table, bench_stopping

    console = begin()
    result = bench_stopping()
    console.print(as_table(result))
    finish(result, options, options.output)


def ablation(options: AblationOptions) -> None:
    """Replay stopping rules and trained controllers over held-out texts, and compare them by eq. 2.3."""
    from ..bench.studies.ablation import run_ablation
    from ..bench.studies.ablation_tables import as_tables

    console = begin()
    result = run_ablation(options, options.folder, console)
    for table in as_tables(result):
        console.print(table)
    finish(result, options, options.output)


def trees(options: TreeStudyOptions) -> None:
    """Compare rate-optimal trees with the best chain controller, on ideal machines and a measured one."""
    from ..bench.studies.trees import as_tables, bench_trees

    console = begin()
    result = bench_trees(options, console)
    for table in as_tables(result):
        console.print(table)
    finish(result, options, options.output)


def sweep(options: SweepOptions) -> None:
    """Train SpecDec++'s grid of heads and compare it with fixed lengths (Tables 1 to 3, Figure 4)."""
    from ..bench.plots import plot_sweep
    from ..bench.studies.sweep import run_sweep
    from ..bench.studies.sweep_tables import as_tables

    console = begin(draws=True)
    result = run_sweep(options, options.folder, options.cost, console)
    for table in as_tables(result):
        console.print(table)
    picture = options.plot or options.folder / "pareto.png"
    plot_sweep(result["figure_4"], picture, f"{options.target} + {options.draft}, {result['judged_prompts']} prompts")
    console.print(f"{picture}: the plot")
    finish(result, options, options.output)


def mixing(options: MixingOptions) -> None:
    """Train heads with different shares of target tokens, on datasets of different acceptance (SpecDec++ §3.3)."""
    from ..bench.plots import plot_mixing
    from ..bench.studies.mixing import as_table, run_mixing

    console = begin(draws=True)
    result = run_mixing(options, options.folder, console)
    console.print(as_table(result))
    picture = options.plot or options.folder / "mixing.png"
    plot_mixing(result["rows"], picture)
    console.print(f"{picture}: the plot")
    finish(result, options, options.output)
