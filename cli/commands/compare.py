"""`specpilot compare`: compares decoders on your models and prompts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ...compare.options import CompareOptions

if TYPE_CHECKING:
    from rich.console import Console

    from ...compare.results import EngineSettings


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
    if comparison.engine_settings is not None:
        print_settings(comparison.engine_settings, console)
    print(", ".join(map(str, comparison.save())))


def print_settings(settings: EngineSettings, console: Console) -> None:
    """Print the settings of other engines: a table, the options of each engine in one line, and remarks."""
    from ...compare.engine_settings import TITLE, group_rows, option_lines, remarks_of, rows_of
    from ...compare.table import Table

    console.print(Table(TITLE, rows_of(settings)))
    for engine, line in option_lines(settings).items():
        print(f"{engine}: {line}")  # in one line, so that it can be copied
    if rows := group_rows(settings):
        console.print(Table("Draft length by group", rows))
    for remark in remarks_of(settings):
        console.print(remark, markup=False)
