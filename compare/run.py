"""``specpilot compare`` and ``specpilot.compare``: a comparison from options, and its report."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Never

from ..checkpoints import shipped
from ..common.errors import InputError, naming, passed_as
from ..common.options import AUTO, DType, check_names
from ..common.wandb_project import WandbProject, find_project
from ..controllers.length.cost_model import BatchCosts, CostModel, parse_number
from ..controllers.length.cost_source import PresetCosts, cost_source
from ..controllers.sampling import SamplingParams
from ..data_gen.prompts import prompts_of
from ..data_gen.rows import RowSource
from ..infer.loading.named_pair import named_pair
from ..infer.model_spec import Name
from ..infer.options import Auto, DraftDType, PairOptions
from ..models.loading.model_files import error_line
from ..train.fitting import threads
from .comparison import MEASURED, compare_decoders
from .decoders import ComparedDecoder, Loader, decoders_of, read_decoders, trained_among
from .document import page
from .engine_settings import EngineCosts
from .findings import commands, concluded
from .options import CompareOptions
from .report import document_of, write
from .responses import read_data
from .results import ComparisonReport, DataReport, EngineSettings, Task
from .served import report_of
from .table import Table

Decoders = Sequence[Name | int] | Mapping[str, Any] | Name  # decoders to compare, as from Python


@dataclass(frozen=True)
class Comparison:
    """A finished comparison with its report; a notebook shows it as the page.

    Attributes:
        report: all results; ``report.json`` holds ``report.to_dict()``.
        folder: the folder of the report, and of the file of costs that the report's commands name.
    """

    report: ComparisonReport | DataReport
    folder: Path

    @property
    def sentences(self) -> list[str]:
        """The conclusions, the first one to act on."""
        return list(self.report.sentences)

    @property
    def commands(self) -> dict[str, str]:
        """The commands that decode and serve with the winner."""
        return dict(self.report.commands)

    @property
    def engine_settings(self) -> EngineSettings | None:
        """The recommended settings of other engines; None if no acceptance or no costs are known."""
        return self.report.engine_settings

    @property
    def tables(self) -> list[Table]:
        """The tables for a terminal: the speeds of decoders, or all tables of data; without the engines' settings."""
        sections = document_of(replace(self.report, engine_settings=None)).sections
        tables = [section.table for section in sections if section.rows]
        return tables if isinstance(self.report, DataReport) else tables[:1]

    @property
    def notes(self) -> list[str]:
        """The parts of a dataset that were left out, with reasons."""
        return list(self.report.notes) if isinstance(self.report, DataReport) else []

    def save(self, folder: str | Path | None = None) -> list[Path]:
        """Write ``report.html``, ``report.md`` and ``report.json``, and return their paths.

        Args:
            folder: the folder. Default: the comparison's own folder, which also keeps the file of costs that the
                report's commands name.

        Raises:
            InputError: ``folder`` is a file.
        """
        output = self.folder if folder is None else Path(folder)
        if output.exists() and not output.is_dir():
            raise InputError(f"folder={str(output)!r}: is a file; choose a folder")
        output.mkdir(parents=True, exist_ok=True)
        return write(output, self.report, [self.report])

    def __repr__(self) -> str:
        return " ".join(self.sentences)

    def _repr_html_(self) -> str:
        return document_of(self.report).html()


def compare(
    decoders: Decoders | None = None,
    prompts: RowSource = "builtin",
    *,
    target: Name = "auto",
    draft: Name | None = "auto",
    length: Name | int | Sequence[Name | int] | None = None,
    minutes: float = 2.0,
    clock: bool = True,
    rules: bool = True,
    cost: Name | float | None = None,
    engine_cost: Name | float | None = None,
    output: Name = Path("runs/compare"),
    wandb: str | None = None,
    data: Name | Sequence[Name] | None = None,
    against: Name | Sequence[Name] | None = None,
    column: str | None = None,
    split: str = "test",
    domains: Sequence[str] | None = None,
    limit: int | None = None,
    skip: int = 0,
    chat: bool | Auto = "auto",
    system: str | None = None,
    max_new_tokens: int = 128,
    temperature: float = 1.0,
    top_k: int | None = 50,
    top_p: float = 1.0,
    seed: int = 0,
    dtype: DType = "float32",
    draft_dtype: DraftDType | None = None,
    device: str = "auto",
    pair_check: Literal["exact", "tokenizer"] = "exact",
    trust_remote_code: bool = False,
    **misspelt: Never,
) -> Comparison:
    """Compare decoders on prompts, as ``specpilot compare`` does, and write the report to the folder ``output``.

    With ``data``, the report is about the acceptance of drafts in a dataset, as with ``specpilot compare --data``. With
    ``against``, the report also shows the drift of acceptance to a second dataset. The keywords are the options of the
    command. :class:`.CompareOptions` describes them.

    Args:
        decoders: a list of words as for ``--length``, such as ``["3", "tiny-lag-free+ngram"]``; a mapping from names to
            words or to mappings of options, as in the file of ``--decoders``; or the path of such a file. None: the
            command's default decoders.
        prompts: texts, conversations, rows, a ``datasets.Dataset``, or a value of the option ``--prompts``.
        length: words as for ``--length``, if there are no ``decoders``.
        misspelt: keywords that are not options. Each of them is an error that names a similar option.

    Raises:
        InputError: a value is out of range, a model or controller is missing or does not fit, or nothing can be
            compared.
    """
    began = time.perf_counter()
    check_names(CompareOptions, misspelt)
    objects: dict[str, Any] = {  # rows, lists and paths, which the fields take in Python
        "prompts": prompts, "target": target, "draft": draft, "length": length, "cost": cost,
        "engine_cost": engine_cost, "output": output, "data": data, "against": against, "domains": domains,
    }  # fmt: skip
    settings = CompareOptions(
        minutes=minutes, clock=clock, rules=rules, wandb=wandb, column=column, split=split, limit=limit, skip=skip,
        chat=chat, system=system, max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p,
        seed=seed, dtype=dtype, draft_dtype=draft_dtype, device=device, pair_check=pair_check,
        trust_remote_code=trust_remote_code, **objects,
    )  # fmt: skip
    specs = None
    if isinstance(decoders, str | Path):
        settings = replace(settings, decoders=Path(decoders))
    elif isinstance(decoders, Mapping):
        specs = decoders_of(decoders, paired(settings).base)
    elif decoders is not None:
        words: tuple[Any, ...] = tuple(decoders)  # with paths among them
        settings = replace(settings, length=words)
    with naming("decoders", decoders), passed_as("length", "length" if decoders is None else "decoders"):
        comparison = run(settings, specs, began)
    comparison.save()
    return comparison


def run(
    options: CompareOptions, decoders: list[ComparedDecoder] | None = None, began: float | None = None
) -> Comparison:
    """Compare decoders, or report on a dataset, and write the report.

    Args:
        options: the options of ``specpilot compare``.
        decoders: decoders that replace those of the options. Default: those of the options.
        began: value of ``time.perf_counter`` from which ``options.minutes`` count. Default: now.

    Raises:
        InputError: as :func:`compare`.
    """
    if options.against is not None and options.data is None:
        raise InputError(f"against={options.against!r}: needs a first dataset; name it with --data")
    if options.data is not None and decoders is not None:
        raise InputError(f"data={options.data!r}: nothing is decoded; pass a list of controllers as decoders")
    began = time.perf_counter() if began is None else began
    project = None if options.wandb is None else find_project(options.wandb)
    comparison = _of_decoders(options, decoders, began) if options.data is None else _of_data(options)
    if project is not None:
        try:
            log(comparison, project)
        except Exception as error:  # of the package, the network or the service: the comparison is made
            warnings.warn(
                f"wandb={options.wandb!r}: the report could not be logged ({error_line(error)}); it is in "
                f"{comparison.folder}",
                stacklevel=2,
            )
    return comparison


def _of_data(options: CompareOptions) -> Comparison:
    cost, cost_description = _costs(options)
    sources = [
        (data,) if isinstance(data, str) else data for data in (options.data, options.against) if data is not None
    ]
    sides = [read_data(folders, options) for folders in sources]
    return Comparison(report_of(sides, cost, cost_description, engine_costs_of(options)), options.output)


def _of_decoders(options: CompareOptions, decoders: list[ComparedDecoder] | None, began: float) -> Comparison:
    options = paired(options)
    cost, cost_description = _costs(options)
    if decoders is None:
        decoders = [] if options.decoders is None else read_decoders(options.decoders, options.base)
        decoders += [ComparedDecoder.parse(word, options.base) for word in options.words]
    rows = prompts_of(options)
    sampling = SamplingParams(options.temperature, options.top_k, options.top_p)
    task = Task(sampling, options.max_new_tokens, options.chat, options.system, options.seed)
    # Included models gain little from more threads, and lose much where other processes are at work.
    with threads(1) if shipped(options.target) else nullcontext():
        report = compare_decoders(
            decoders, rows, Loader(options.base), task, options.output,
            clock=options.clock, rules=options.rules, minutes=options.minutes, cost=cost,
            cost_description=cost_description, engine_costs=engine_costs_of(options), began=began,
        )  # fmt: skip
    return Comparison(concluded(report, commands(report, options.output)), options.output)


def _costs(options: CompareOptions) -> tuple[CostModel | None, str]:
    """Return the costs of the replay and a phrase for their source; None for costs that are to be measured."""
    source = cost_source(options.cost)
    return (source.cost, source.describe()) if isinstance(source, PresetCosts) else (None, MEASURED)


def engine_costs_of(options: CompareOptions) -> EngineCosts | None:
    """Return the costs for the settings of other engines: those of ``engine_cost``, else those of ``cost``.

    Returns:
        None if both are missing or name no costs that exist.

    Raises:
        InputError: a file is missing or damaged, or a number is out of range.
    """
    name = "cost" if options.engine_cost is None else "engine_cost"
    value = getattr(options, name)
    with passed_as("cost", name):
        source = cost_source(value)
        if not isinstance(source, PresetCosts):
            if options.engine_cost is None:
                return None
            raise InputError(f"engine_cost={value!r}: must be a file of costs, or a number such as 0.2")
        batch = None if parse_number(value) is not None else BatchCosts.load(value)
    return EngineCosts(source.cost, source.describe(), batch)


def paired(options: CompareOptions) -> CompareOptions:
    """Return ``options`` with the pair of the first trained controller, or the included pair, in place of "auto".

    Raises:
        InputError: see :func:`~specpilot.infer.loading.named_pair.named_pair`.
    """
    if AUTO not in (options.target, options.draft):
        return options
    trained = [] if options.length is None else trained_among(options.words)
    target, draft = named_pair(options.target, options.draft, {"length": trained[0]} if trained else {})
    if target == AUTO:
        target = PairOptions.target
    return replace(options, target=target, draft=PairOptions.draft if draft == AUTO else str(draft) if draft else None)


def log(comparison: Comparison, project: WandbProject) -> None:
    """Log the figures and the page to a project of Weights & Biases."""
    import wandb

    report, folder = comparison.report, comparison.folder
    values = report.to_dict()
    names = ("data", "target", "draft", "task", "prompts", "passes", "machine")
    logger = wandb.init(
        **project.options, name=folder.name, dir=folder, job_type="compare",
        config={name: values.get(name) for name in names},
    )  # fmt: skip
    for name, row in report.decoders.items():
        figures = {
            "tokens_per_second": row.tokens_per_second, "tokens_per_forward": row.tokens_per_forward,
            "accepted": row.accepted,
            "clock": None if row.clock is None else row.clock.value,
            "replay": None if row.replay is None else row.replay.value,
        }  # fmt: skip
        logger.summary.update({f"{name}/{key}": value for key, value in figures.items() if value is not None})
    logger.log({"report": wandb.Html(page([document_of(report)]), inject=False)})
    logger.finish()
