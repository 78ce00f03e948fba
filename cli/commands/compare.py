"""`specpilot compare`: does drafting pay on these models and prompts?"""

from __future__ import annotations

from ..compare.options import CompareOptions


def compare(options: CompareOptions) -> None:
    """Find out whether drafting pays on your models and prompts.

    Names the fastest decoder and by how much it is faster, with the command that decodes with it.
    """
    import json
    from contextlib import nullcontext

    from rich.console import Console

    from ..checkpoints import shipped
    from ..common.console import quiet
    from ..common.files import replacing
    from ..compare.comparison import Task
    from ..compare.comparison import compare as run
    from ..compare.decoders import ComparedDecoder, Loader, read_decoders
    from ..compare.page import page
    from ..compare.report import as_dict, as_markdown, commands, sentences, table
    from ..controllers.sampling import SamplingParams
    from ..data_gen.prompts import load_prompts
    from ..train.fitting import threads

    quiet()
    base = options.base
    decoders = [] if options.decoders is None else read_decoders(options.decoders, base)
    decoders += [ComparedDecoder.parse(word, base) for word in options.words]
    rows = load_prompts(
        options.prompts, column=options.column, split=options.split, limit=options.limit, skip=options.skip,
        domains=options.domains,
    )  # fmt: skip
    sampling = SamplingParams(options.temperature, options.top_k, options.top_p)
    task = Task(sampling, options.max_new_tokens, options.chat, options.system, options.seed)
    # Included models gain little from more threads, and lose much where other processes are at work.
    with threads(1) if shipped(options.target) else nullcontext():
        found = run(
            decoders, rows, Loader(base), task, options.output,
            clock=options.clock, rules=options.rules, minutes=options.minutes, cost=options.cost,
        )  # fmt: skip
    words = commands(found, options.output)
    report = as_dict(found, words)
    for name, text in {
        "report.md": as_markdown(found, words),
        "report.json": json.dumps(report, indent=1) + "\n",
        "report.html": page(report),
    }.items():
        with replacing(options.output / name) as file:
            file.write_text(text, encoding="utf-8")
    console = Console(highlight=False)
    for line in sentences(found):
        console.print(line, markup=False)
    for name, line in words.items():
        print(f"{name}: {line}")  # in one line, so that it can be copied
    console.print(table(found))
    print(f"{options.output / 'report.html'}, {options.output / 'report.md'}, {options.output / 'report.json'}")
