"""`specpilot compare`: does drafting pay on these models and prompts?"""

from __future__ import annotations

from ..compare.options import CompareOptions


def compare(options: CompareOptions) -> None:
    """Find out whether drafting pays on your models and prompts.

    Names the fastest decoder and by how much it is faster, with the command that decodes with it. With --data it says
    how well drafts are accepted in a dataset or served traffic, and with --against where that drifted.
    """
    if options.data is not None or options.against is not None:
        return _of_data(options)
    from rich.console import Console

    from ..common.console import quiet
    from ..compare.report import table
    from ..compare.run import run

    quiet()
    found = run(options)
    console = Console(highlight=False)
    for line in found.sentences:
        console.print(line, markup=False)
    for name, line in found.commands.items():
        print(f"{name}: {line}")  # in one line, so that it can be copied
    console.print(table(found))
    print(", ".join(map(str, found.save())))


def _of_data(options: CompareOptions) -> None:
    import json

    from rich.console import Console

    from ..common.console import quiet
    from ..common.errors import InputError
    from ..common.files import replacing
    from ..compare.hardware import given_costs
    from ..compare.labelled import read_labelled
    from ..compare.served import as_markdown, compare_data, describe, drift_sentences, drift_table, sentences, tables

    if options.data is None:
        raise InputError(f"against={options.against!r}: is compared with a dataset; name that with --data")
    quiet()
    progress = Console(stderr=True)
    cost, priced = given_costs(options.hardware, options.cost)
    first = read_labelled(options.folders(options.data), options, progress)
    drift = second = None
    if options.against is not None:
        second = read_labelled(options.folders(options.against), options, progress)
        drift = compare_data(first, second)
    report = describe(first, cost, priced)
    other = None if second is None else describe(second, cost, priced)
    options.output.mkdir(parents=True, exist_ok=True)
    said = [*([] if drift is None else drift_sentences(drift)), *sentences(report)]
    document = {"sentences": said, "data": report, "against": other, "drift": drift}
    for name, text in {
        "report.md": as_markdown(report, drift),
        "report.json": json.dumps(document, indent=1, allow_nan=False) + "\n",
    }.items():
        with replacing(options.output / name) as file:
            file.write_text(text, encoding="utf-8")
    console = Console(highlight=False)
    for line in said:
        console.print(line, markup=False)
    for table in [*([] if drift is None else [drift_table(drift)]), *tables(report)]:
        console.print(table)
    for note in [*report["notes"], *([] if other is None else other["notes"])]:
        console.print(note, markup=False)
    print(f"{options.output / 'report.md'}, {options.output / 'report.json'}")
