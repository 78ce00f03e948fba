"""``python -m experiments papers``: the papers' tables for one pair, with Markdown, JSON and a plot for each paper."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from specpilot.cli.commands.measuring import begin
from specpilot.common.errors import InputError
from specpilot.common.files import replacing
from specpilot.common.json_file import read_object
from specpilot.common.machine import commit, machine, versions
from specpilot.common.options import Folder, Options
from specpilot.compare.decoders import load
from specpilot.compare.options import WorkloadOptions
from specpilot.compare.runner import Meter
from specpilot.compare.store import Store
from specpilot.infer.decoder import SpeculativeDecoder

from ..figure import canvases
from .mtad import MTAD
from .quality import rouge_l
from .runner import Paper, PapersOptions, Report, Runner, Scorer
from .selection import SELECTION
from .specdecpp import SPECDECPP
from .spectr import SPECTR

PAPERS: dict[str, Paper] = {paper.name: paper for paper in (SPECDECPP, SELECTION, SPECTR, MTAD)}


@dataclass(frozen=True, kw_only=True)
class PapersOutputOptions(Options):
    """Output.

    The output of ``python -m experiments papers``.

    Attributes:
        paper: A paper's name, or all: specdecpp, selection, spectr, mtad.
        output: Folder for the tables, and for the measurements (records).
    """

    paper: str = field(default="all", kw_only=False)
    output: Folder = Path("runs/papers")


def chosen(paper: str, work: PapersOptions) -> list[str]:
    """Return the papers that ``paper`` names. ``all`` leaves out assistant selection if only one draft was given.

    Raises:
        InputError: there is no such paper, or it needs other drafts.
    """
    if paper != "all" and paper not in PAPERS:
        raise InputError(f"paper={paper!r}: choose one of {', '.join([*PAPERS, 'all'])}")
    foreign = work.target != PapersOptions.target and work.drafts == PapersOptions.drafts
    if foreign and paper == SELECTION.name:
        raise InputError(
            f"drafts={list(work.drafts)}: made for {PapersOptions.target!r}; name drafts of {work.target!r}"
        )
    return [name for name in PAPERS if name != SELECTION.name or not foreign] if paper == "all" else [paper]


def bench_papers(paper: str, work: PapersOptions, output: Path, console: Console) -> dict[str, Any]:
    """Reproduce ``paper`` (or all) into ``output``; results of other papers in ``output`` are kept.

    Returns:
        The content of ``papers.json``.
    """
    names = chosen(paper, work)
    if paper == "all" and SELECTION.name not in names:
        console.print(f"{SELECTION.name}: skipped: it needs several drafts; name drafts of {work.target!r}")
    rouge_l("", "")  # fails before measuring if rouge-score is missing
    pair, prompts = load(work)
    _, validation = load(work.validation(), pair)
    with Store(output) as store:
        result = _read(output / "papers.json")
        runner = Runner(pair, prompts, validation, work, store, console, Meter.find(pair.target.device.type))
        runner.score = agreement(pair, runner.greedy_outputs())
        for name in names:
            console.print(f"{name}: {PAPERS[name].title}")
            report = PAPERS[name].run(runner)
            result |= report.figures
            result.setdefault("made_by", {})[name] = {
                "command": f"python -m experiments papers {name}",
                "settings": asdict(work),
                "commit": commit(),
                "machine": machine().to_dict(),
                "versions": versions(),
            }
            _write(output, name, report, work)
            with replacing(output / "papers.json") as file:
                file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def agreement(pair: SpeculativeDecoder, greedy: list[list[int]]) -> Scorer:
    """Return ROUGE-L with the target's greedy output, the score for prompts without a reference answer."""
    assert pair.tokenizer is not None
    decode = pair.tokenizer.decode
    references = [str(decode(tokens, skip_special_tokens=True)) for tokens in greedy]
    return lambda index, tokens: rouge_l(str(decode(tokens, skip_special_tokens=True)), references[index])


def _write(output: Path, name: str, report: Report, work: WorkloadOptions) -> None:
    picture = f"papers-{name}.png"
    about = (
        f"`python -m experiments papers {name}`: {work.target} + {work.draft}, {work.limit} prompts of {work.prompts}, "
        f"up to {work.max_new_tokens} tokens at temperature {work.temperature:g}, top-k {work.top_k}, "
        f"top-p {work.top_p:g}, unless a table says otherwise. In brackets 95 % intervals over resampled prompts. "
        "Perplexity is the target's at temperature 1; the score is ROUGE-L with the target's greedy output."
    )
    parts = [f"## {PAPERS[name].title}", "", about, "", *(table.markdown() for table in report.tables)]
    parts += [f"![{name}]({picture})", ""]
    with replacing(output / f"papers-{name}.md") as file:
        file.write_text("\n".join(parts), encoding="utf-8")
    report.draw(output / picture)


def _read(path: Path) -> dict[str, Any]:
    return read_object(path, "move it away") if path.is_file() else {}


def main(options: PapersOptions, output: PapersOutputOptions) -> None:
    """Make the papers' tables with the papers' figures beside ours: Markdown, JSON and a plot for each paper.

    An interrupted run is continued.
    """
    chosen(output.paper, options)  # before anything is loaded
    canvases(1, 1)  # refuses where matplotlib is missing
    console = begin()
    result = bench_papers(output.paper, options, output.output, console)
    console.print(f"{output.output}: papers.json, papers-*.md, papers-*.png")
    print(json.dumps(result))
