"""The command ``specpilot-vllm``, or ``python -m specpilot_vllm``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from specpilot.cli.main import Commands
from specpilot.cli.main import main as run_command

from .options import BenchOptions, TimesOptions


def bench(options: BenchOptions) -> None:
    """Time vLLM with a controller, with fixed drafts, and without.

    A single request and 64 requests at once are timed.
    """
    from specpilot.cli.commands.measuring import begin, finish

    from .bench import as_table, bench_vllm

    console = begin()
    result = bench_vllm(options, console)
    console.print(as_table(result))
    finish(result, options, options.output)


def times(options: TimesOptions) -> None:
    """Measure vLLM's steps by number of requests and draft length, for the adaptive scheduler.

    The file is the setting cost of the scheduler. Any drafting method can be measured.
    """
    from specpilot.cli.commands.measuring import begin, finish

    from .round_times import measure_times

    begin()
    finish(measure_times(options), options, options.output)


COMMANDS: Commands = {"bench": bench, "times": times}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in ``argv`` (by default the process's arguments), and return the exit code."""
    return run_command(sys.argv[1:] if argv is None else argv, COMMANDS, prog="specpilot-vllm")
