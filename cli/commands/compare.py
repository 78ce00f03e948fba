"""`specpilot compare`: compares decoders on your models and prompts."""

from __future__ import annotations

import time

from ...compare.options import CompareOptions


def compare(options: CompareOptions) -> None:
    """Find out whether drafting pays on your models and prompts.

    The report names the fastest decoder, its speed-up, and the command that decodes with it. With --data, the report is
    about the acceptance of drafts in a dataset or in served traffic. With --against, it shows where acceptance differs
    from a second dataset.
    """
    began = time.perf_counter()  # imports take seconds, which count
    from rich.console import Console

    from ...common.console import quiet
    from ...compare.run import run

    quiet()
    comparison = run(options, began=began)
    console = Console(highlight=False)
    for line in comparison.sentences:
        console.print(line, markup=False)
    for name, line in comparison.commands.items():
        print(f"{name}: {line}")  # in one line, so that it can be copied
    for table in comparison.tables:
        console.print(table)
    for note in comparison.notes:
        console.print(note, markup=False)
    print(", ".join(map(str, comparison.save())))
