"""``specpilot demo``: the whole pipeline on the included models and the built-in prompts, in some minutes.

Data → training of a lag-free head and of SpecDec++'s → export → comparison on held-out prompts at two temperatures, by
replay and by the clock. Imported by its command only, so its heavy imports cost nothing elsewhere.
"""

from __future__ import annotations

import csv
import shutil
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from ..common.errors import InputError
from ..common.machine import commit
from ..common.record import Record
from ..compare.assisted import generate
from ..compare.comparison import compare_decoders
from ..compare.decoders import ComparedDecoder, Loader
from ..compare.findings import EXAMPLE, concluded, texts_compared, words_of
from ..compare.report import document_of, write
from ..compare.results import ComparisonReport, Task
from ..controllers.acceptance import lag_free_head, specdec_head
from ..controllers.length.cost_model import CostModel
from ..controllers.sampling import SamplingParams
from ..data_gen.acceptance import make_acceptance_data
from ..data_gen.options import AcceptanceDataOptions
from ..data_gen.prompts import PromptRow, load_prompts
from ..infer.core import Generation
from ..infer.options import DecodingOptions
from ..infer.text_stream import TextStream
from ..train.acceptance import train_acceptance
from ..train.export import export
from ..train.run_folder import METRICS
from .trace_view import show_rounds

TARGET, DRAFT = "tiny", "tiny-draft"
LAG_FREE, COPIES, TREES = "lag-free head", "lag-free+copies", "lag-free+copies+trees"
SPECDEC, UNTRAINED = "SpecDec++'s head", "online+copies"
FOLDERS = {LAG_FREE: "controller", SPECDEC: "specdec"}
TEMPERATURES = (1.0, 0.0)
VALIDATION = 0.15  # share of the prompts for training by which the epoch is chosen
TRAINING_SETTINGS: dict[str, Any] = {"epochs": 8, "batch_size": 128}  # more steps on less data than by default
CHECKED = 6  # prompts whose greedy output is compared with that of transformers
FLUENT = ("dialogue", "shell", "sql")  # domains whose answers by the included target a person can read
REPORTS = ("report.html", "report.md", "report.json")
DEMO_FILES = ("data", "train", *FOLDERS.values(), "compare", "cost.json", *REPORTS)
OF_DATA = "Each drafted token gets a label: the probability that the target accepts it."
OF_TRAINING = "Two predictors learn these labels from values that the draft computes while it drafts."
OF_EXPORT = "Each predictor becomes a controller checkpoint, which decoders load."
OF_COMPARISON = "By replay at costs measured here, and by the clock: every prompt with every decoder in turn."
OF_CHECK = "Texts with drafts are compared with texts without, and greedy texts with those of transformers' generate."
NOTE = (
    "Copies and trees cannot be replayed. Both heads were trained at temperature 1. online+copies needs no training. "
    "specpilot generate uses it by default, with costs that it corrects while decoding and with the draft's fastest "
    "precision. fixed length and cumulative confidence have the best of eight values each."
)


@dataclass(frozen=True)
class GreedyCheck(Record):
    """Greedy answers compared with those of transformers' ``generate``.

    Attributes:
        checked: number of compared answers.
        identical: number of answers that are identical, token for token.
    """

    checked: int
    identical: int


@dataclass(frozen=True)
class DemoSettings(Record):
    """Settings of a demo.

    Attributes:
        prompts: number of prompts for training.
        held_out: number of prompts on which decoders are compared.
        max_new_tokens: maximum number of new tokens of an answer.
        seed: the seed of all random numbers.
    """

    prompts: int
    held_out: int
    max_new_tokens: int
    seed: int


@dataclass(frozen=True)
class DemoReport(Record):
    """The contents of the demo's ``report.json``.

    Attributes:
        sentences: the conclusions at each temperature.
        command: the command that decodes with the trained controller.
        temperatures: comparisons by temperature.
        greedy: the check against transformers.
        settings: the settings of the demo.
        commit: the commit of specpilot; None if it is installed without a checkout.
    """

    sentences: list[str]
    command: str
    temperatures: dict[str, ComparisonReport]
    greedy: GreedyCheck
    settings: DemoSettings
    commit: str | None


def run_demo(
    output: Path, *, prompts: int, held_out: int, max_new_tokens: int, seed: int, console: Console | None = None
) -> None:
    """Run all stages and write their files and the report to ``output``.

    An interrupted demo continues. A finished demo starts over; only files of a demo are removed.

    Raises:
        InputError: ``output`` contains a file that is not a demo's.
    """
    console = console or Console(markup=False, emoji=False)
    _make_room(output)
    train_controllers(output, console, prompts=prompts, max_new_tokens=max_new_tokens, seed=seed)
    half = held_out // 2  # these prompts have much text to copy
    rows = load_prompts("builtin", split="test", limit=held_out - half)
    rows += load_prompts("builtin-copy", split="test", limit=half)
    loader = Loader(DecodingOptions(target=TARGET, draft=DRAFT))
    tasks = [Task(SamplingParams(temperature, 50), max_new_tokens, seed=seed) for temperature in TEMPERATURES]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the controller was trained under")  # the note names the temperature
        with stage(console, f"4  Comparison on {len(rows)} held-out prompts", OF_COMPARISON):
            reports = compare_all(output, console, loader, rows, tasks)
            console.print(NOTE, style="dim")
        with stage(console, "5  Check: drafts change no text", OF_CHECK):
            cost = reports[0].costs[LAG_FREE]
            samples, identical = check_greedy(loader, output / FOLDERS[LAG_FREE], cost, rows[:CHECKED], max_new_tokens)
            for report in reports:
                for line in texts_compared(report):
                    console.print(f"At temperature {report.task.sampling.temperature:g}: {line}", highlight=False)
            console.print(
                f"{identical} of {len(samples)} greedy answers are the same as transformers', token for token."
            )

    best = max((LAG_FREE, COPIES, TREES), key=lambda name: reports[0].decoders[name].tokens_per_second or 0.0)
    command = " ".join(["specpilot generate", *words_of(reports[0], best, output), f"'{EXAMPLE}'"])
    reports = [
        replace(
            report,
            commands={"Decode with your controller": command},
            sentences=[line.replace("On your", "On these") for line in report.sentences],
        )
        for report in reports
    ]
    reports[-1].sentences.append(
        f"{identical} of {len(samples)} greedy answers are the same as transformers', token for token."
    )
    lines = [" ".join(report.sentences) for report in reports]
    names = [f"{task.sampling.temperature:g}" for task in tasks]
    record = DemoReport(
        sentences=lines,
        command=command,
        temperatures=dict(zip(names, reports, strict=True)),
        greedy=GreedyCheck(len(samples), identical),
        settings=DemoSettings(prompts, len(rows), max_new_tokens, seed),
        commit=commit(),
    )
    write(output, record, reports)
    _show_sample(console, loader, rows, samples)
    console.rule(Text("Results", "bold"), align="left")
    for line in lines:
        console.print(line, highlight=False)
    ending = f"Full report: {output}/report.html\nDecode with your controller:\n{command}"
    console.print(ending, style="dim", soft_wrap=True)


@contextmanager
def stage(console: Console, title: str, explanation: str) -> Iterator[None]:
    """Print the heading and the explanation of a stage before the block, and its duration after the block."""
    console.rule(Text(title, "bold"), align="left")
    console.print(explanation, style="dim")
    started = time.perf_counter()
    yield
    console.print(f"{time.perf_counter() - started:.0f} s", style="dim")


def compare_all(
    output: Path, console: Console, loader: Loader, rows: Sequence[PromptRow], tasks: Sequence[Task]
) -> list[ComparisonReport]:
    """Compare all decoders on the prompts and return a report for each task.

    The first comparison measures the costs, and the others use them.
    """
    base, copying = loader.base, {"draft": f"{DRAFT}+ngram"}
    lag_free, specdec = (str(output / FOLDERS[name]) for name in (LAG_FREE, SPECDEC))
    decoders = [
        ComparedDecoder.of(base, LAG_FREE, length=lag_free),
        ComparedDecoder.of(base, SPECDEC, length=specdec, threshold=0.7),
        ComparedDecoder.of(base, COPIES, length=lag_free, **copying),
        ComparedDecoder.of(base, TREES, length=lag_free, tree="auto", **copying),
        ComparedDecoder.of(base, UNTRAINED, length="online-confidence", **copying),
    ]
    reports: list[ComparisonReport] = []
    for task in tasks:
        costs = reports[0].costs if reports else None
        report = compare_decoders(
            decoders, rows, loader, task, output / "compare", cost=costs, engines=False, console=console
        )
        reports.append(concluded(report, {}))
        console.print(f"At temperature {task.sampling.temperature:g}:")
        console.print(document_of(reports[-1]).sections[0].table)
    return reports


def train_controllers(output: Path, console: Console, *, prompts: int, max_new_tokens: int, seed: int) -> None:
    """Make the data, train both heads and export them to ``output``. Complete stages are not repeated."""
    with stage(console, f"1  Data: {TARGET} answers {prompts} prompts, {DRAFT} drafts", OF_DATA):
        data = AcceptanceDataOptions(
            target=TARGET, draft=DRAFT, limit=prompts, max_new_tokens=max_new_tokens, seed=seed, verifier="invariant"
        )
        make_acceptance_data(data, output / "data", console=console)
    defaults = yaml.safe_load(files("specpilot.train.configs").joinpath("tiny.yaml").read_text(encoding="utf-8"))
    folder = str(output / "data")
    runs = {
        FOLDERS[LAG_FREE]: lag_free_head.TrainingOptions(
            data=folder, seed=seed, validation_fraction=VALIDATION, traced=prompts, device="cpu", **TRAINING_SETTINGS
        ),
        FOLDERS[SPECDEC]: specdec_head.TrainingOptions(**defaults | {"data": folder, "seed": seed, "mixings": 4}),
    }
    with stage(console, "2  Training: a lag-free head and SpecDec++'s head", OF_TRAINING):
        for label, (name, settings) in zip(FOLDERS, runs.items(), strict=True):
            result = train_acceptance(settings, output=output / "train" / name, resume=True)
            with open(result.run / METRICS, encoding="utf-8") as lines:
                losses = [float(row["loss"]) for row in csv.DictReader(lines) if row["loss"]]
            console.print(
                f"{label}: loss {losses[0]:.2f} → {losses[-1]:.2f}. Best epoch on held-out answers: AUROC "
                f"{result.metrics['auroc']:.2f}, simulated speed-up {result.metrics['simulated_speedup']:.2f}.",
                highlight=False,
            )
    with stage(console, "3  Export: controller checkpoints", OF_EXPORT):
        for name in runs:
            export(output / "train" / name, output / name, overwrite=True)
            names = ", ".join(sorted(path.name for path in (output / name).iterdir()))
            console.print(f"{output / name}: {names}")


def _make_room(output: Path) -> None:
    """Create ``output``, and remove a finished demo from it.

    Raises:
        InputError: ``output`` contains a file that is not a demo's.
    """
    if output.exists():
        foreign = sorted(path.name for path in output.iterdir() if path.name not in DEMO_FILES)
        if foreign:
            raise InputError(
                f"{output}: contains {foreign[0]!r}, which is not a file of a demo; choose another folder with --output"
            )
        if (output / REPORTS[-1]).exists():
            for name in DEMO_FILES:
                path = output / name
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
    output.mkdir(parents=True, exist_ok=True)


def check_greedy(
    loader: Loader, controller: Path, cost: CostModel, rows: Sequence[PromptRow], max_new_tokens: int
) -> tuple[list[Generation], int]:
    """Decode greedily with the lag-free head, and compare with transformers.

    Returns:
        The generations, and the number of those that transformers' ``generate`` returns as well.
    """
    decoder = loader.decoder(ComparedDecoder.of(loader.base, LAG_FREE, length=str(controller)), cost)
    prompts = [row.encode(decoder.tokenizer, chat=True, system=None) for row in rows]
    generations = [decoder.generate(prompt, max_new_tokens=max_new_tokens, temperature=0) for prompt in prompts]
    model = decoder.target.model
    references = [generate(model, prompt, max_new_tokens=max_new_tokens, do_sample=False) for prompt in prompts]
    identical = sum(
        generation.tokens == reference for generation, reference in zip(generations, references, strict=True)
    )
    return generations, identical


def _show_sample(console: Console, loader: Loader, rows: Sequence[PromptRow], samples: Sequence[Generation]) -> None:
    """Print a greedy answer with many accepted and rejected tokens, of those in domains that a person can read."""
    readable = [i for i, sample in enumerate(samples) if rows[i].domain in FLUENT and sample.finish_reason == "eos"]
    index = max(
        readable or range(len(samples)),
        key=lambda i: min(samples[i].stats.n_accepted, 4 * samples[i].stats.n_discarded),
    )
    console.print(Panel(rows[index].text, title="prompt", title_align="left", style="dim"))
    show_rounds(console, samples[index], TextStream(loader.tokenizer, samples[index].prompt_tokens))
