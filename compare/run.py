"""``specpilot compare`` and ``specpilot.compare``: what is compared, and the comparison with its report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..checkpoints import shipped
from ..common.errors import InputError
from ..controllers.length.cost_model import CostModel
from ..controllers.length.cost_source import PresetCosts, cost_source
from ..controllers.sampling import SamplingParams
from ..data_gen.prompts import prompts_of
from ..data_gen.rows import RowSource
from ..infer.loading.named_pair import named_pair
from ..infer.options import AUTO, PairOptions
from ..train.fitting import threads
from .comparison import MEASURED, Task
from .comparison import compare as compare_decoders
from .decoders import ComparedDecoder, Loader, decoders_of, read_decoders, trained_among
from .document import page
from .findings import commands, concluded
from .options import CompareOptions
from .report import document_of, write
from .responses import read_data
from .served import report_of
from .table import Table

Given = Sequence[str | int] | Mapping[str, Any] | str | Path  # decoders in Python


@dataclass(frozen=True)
class Comparison:
    """What was found, with its report; in a notebook it is shown as the page.

    Attributes:
        report: everything, as JSON values: what ``report.json`` holds.
        folder: where the report, and the costs that its commands name, are written.
    """

    report: Mapping[str, Any]
    folder: Path

    @property
    def sentences(self) -> list[str]:
        """What was found, the first one to act on."""
        return list(self.report["sentences"])

    @property
    def commands(self) -> dict[str, str]:
        """The commands that decode and serve with the winner."""
        return dict(self.report.get("commands", {}))

    @property
    def tables(self) -> list[Table]:
        """What a terminal shows: of decoders their speeds, of data everything."""
        found = [section.table for section in document_of(self.report).sections if section.rows]
        return found if "data" in self.report else found[:1]

    def save(self) -> list[Path]:
        """Write ``report.html``, ``report.md`` and ``report.json``; returns their paths."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return write(self.folder, self.report, [self.report])

    def __repr__(self) -> str:
        return " ".join(self.sentences)

    def _repr_html_(self) -> str:
        return document_of(self.report).html()


def compare(decoders: Given | None = None, prompts: RowSource = "builtin", **options: Any) -> Comparison:
    """Compare decoders on prompts, as ``specpilot compare`` does, and write the report to the folder ``output``.

    With ``data``, as ``specpilot compare --data``: acceptance in a dataset, and with ``against`` where that drifted.

    Args:
        decoders: words as for ``--length``, such as ``["3", "tiny-lag-free+ngram"]``; or by name a word or a mapping of
            options, as in the file of ``--decoders``; or such a file. None: what the command compares by default.
        prompts: texts, conversations, rows or a ``datasets.Dataset``, or what ``--prompts`` takes.
        options: other fields of :class:`.CompareOptions`, such as ``target``, ``draft``, ``minutes`` and ``output``.

    Raises:
        InputError: a value is out of range, a model or controller is missing or does not fit, or nothing can be
            compared.
    """
    given = CompareOptions(**options, prompts=prompts)  # type: ignore[arg-type]  # rows, as from Python
    specs = None
    if isinstance(decoders, str | Path):
        given = replace(given, decoders=Path(decoders))
    elif isinstance(decoders, Mapping):
        specs = decoders_of(decoders, paired(given).base)
    elif decoders is not None:
        given = replace(given, length=tuple(decoders))
    found = run(given, specs)
    found.save()
    return found


def run(options: CompareOptions, decoders: list[ComparedDecoder] | None = None) -> Comparison:
    """Compare as ``options`` say; ``decoders`` take the place of theirs.

    Raises:
        InputError: as :func:`compare`.
    """
    if options.against is not None and options.data is None:
        raise InputError(f"against={options.against!r}: is compared with a dataset; name that with --data")
    if options.data is not None and decoders is not None:
        raise InputError(f"data={options.data!r}: nothing is decoded; give controllers as a list")
    found = _of_decoders(options, decoders) if options.data is None else _of_data(options)
    if options.wandb is not None:
        log(found, options.wandb)
    return found


def _of_data(options: CompareOptions) -> Comparison:
    cost, priced = _costs(options)
    given = [(one,) if isinstance(one, str) else one for one in (options.data, options.against) if one is not None]
    return Comparison(report_of([read_data(folders, options) for folders in given], cost, priced), options.output)


def _of_decoders(options: CompareOptions, decoders: list[ComparedDecoder] | None) -> Comparison:
    options = paired(options)
    cost, priced = _costs(options)
    if decoders is None:
        decoders = [] if options.decoders is None else read_decoders(options.decoders, options.base)
        decoders += [ComparedDecoder.parse(word, options.base) for word in options.words]
    rows = prompts_of(options)
    sampling = SamplingParams(options.temperature, options.top_k, options.top_p)
    task = Task(sampling, options.max_new_tokens, options.chat, options.system, options.seed)
    # Included models gain little from more threads, and lose much where other processes are at work.
    with threads(1) if shipped(options.target) else nullcontext():
        found = compare_decoders(
            decoders, rows, Loader(options.base), task, options.output,
            clock=options.clock, rules=options.rules, minutes=options.minutes, cost=cost,
            priced=priced,
        )  # fmt: skip
    return Comparison(concluded(found, commands(found, options.output)), options.output)


def _costs(options: CompareOptions) -> tuple[CostModel | None, str]:
    """The costs to replay at and where they come from, as a phrase; None if they are to be measured here."""
    source = cost_source(options.cost)
    return (source.cost, source.describe()) if isinstance(source, PresetCosts) else (None, MEASURED)


def paired(options: CompareOptions) -> CompareOptions:
    """``options`` with the pair of the first trained controller, or the included one, where none is named.

    Raises:
        InputError: see :func:`~specpilot.infer.loading.named_pair.named_pair`.
    """
    if AUTO not in (options.target, options.draft):
        return options
    trained = [] if options.length is None else trained_among(options.words)
    target, draft = named_pair(options.target, options.draft, {"length": trained[0]} if trained else {})
    return replace(options, target=target, draft=PairOptions.draft if draft == AUTO else str(draft) if draft else None)


def log(comparison: Comparison, project: str) -> None:
    """Log the figures and the page to a project of Weights & Biases; offline without WANDB_API_KEY."""
    import wandb

    report, folder = comparison.report, comparison.folder
    started = wandb.init(
        project=project, name=folder.name, dir=folder, job_type="compare",
        mode=None if os.environ.get("WANDB_API_KEY") else "offline",
        config={name: report.get(name) for name in ("data", "target", "draft", "task", "prompts", "passes", "machine")},
    )  # fmt: skip
    for name, row in report["decoders"].items():
        numbers = {key: row.get(key) for key in ("tokens_per_second", "tokens_per_forward", "accepted")}
        numbers |= {key: row[key]["value"] for key in ("clock", "replay") if row.get(key) is not None}
        started.summary.update({f"{name}/{key}": value for key, value in numbers.items() if value is not None})
    started.log({"report": wandb.Html(page([document_of(report)]), inject=False)})
    started.finish()
