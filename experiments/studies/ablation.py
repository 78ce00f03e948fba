"""``python -m experiments ablation``: gain of each step from SpecDec++'s head to ours, by replay."""

from __future__ import annotations

from specpilot.commands.measuring import begin, finish
from specpilot.compare.ablation import run_ablation
from specpilot.compare.ablation_tables import as_tables
from specpilot.compare.options import AblationOptions


def main(options: AblationOptions) -> None:
    """Replay rules and trained controllers over held-out texts: speed-ups by eq. 2.3 and the informed bound."""
    console = begin()
    result = run_ablation(options, options.folder, console)
    for table in as_tables(result):
        console.print(table)
    finish(result, options, options.output)
