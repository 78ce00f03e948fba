"""``specpilot demo``: the whole pipeline on the included models and the built-in prompts, in two minutes.

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
from .trace_view import show_trace

TARGET, DRAFT = "tiny", "tiny-draft"
OURS, COPIES, TREES = "lag-free head", "lag-free+copies", "lag-free+copies+trees"
SPECDEC, UNTRAINED = "SpecDec++'s head", "online+copies"
FOLDERS = {OURS: "controller", SPECDEC: "specdec"}
TEMPERATURES = (1.0, 0.0)
VALIDATION = 0.15  # share of the prompts for training by which the epoch is chosen
FEW: dict[str, Any] = {"epochs": 8, "batch_size": 128}  # more steps from less data than by default
CHECKED = 6  # prompts whose greedy output is compared with that of transformers
FLUENT = ("dialogue", "shell", "sql")  # domains whose answers by the included target a person can read
REPORTS = ("report.html", "report.md", "report.json")
OWNED = ("data", "train", *FOLDERS.values(), "compare", "cost.json", *REPORTS)
OF_DATA = "For each token: the probability that the target accepts the draft's proposal."
OF_TRAINING = "Each learns to predict it from what the draft computes anyway."
OF_EXPORT = "What decoders load."
OF_COMPARISON = "By replay at the costs measured here, then every prompt with every decoder in turn."
OF_CHECK = "All texts with drafts beside those without, and greedy ones beside those of transformers' own generate."
NOTE = (
    "Trees and copies cannot be replayed. Both heads were trained at temperature 1; online: nothing is trained before, "
    "as without --length; fixed length, cumulative confidence: the best of eight settings each."
)


@dataclass(frozen=True)
class GreedyCheck(Record):
    """How many of the ``checked`` greedy answers are identical to those of transformers."""

    checked: int
    identical: int


@dataclass(frozen=True)
class DemoSettings(Record):
    """The numbers of prompts for training and of held-out prompts, the budget of an answer in tokens, and the seed."""

    prompts: int
    held_out: int
    max_new_tokens: int
    seed: int


@dataclass(frozen=True)
class DemoReport(Record):
    """What the demo's ``report.json`` holds.

    Attributes:
        sentences: the conclusions at each temperature.
        command: decodes with the trained controller.
        temperatures: comparisons by temperature.
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
    """Run all stages into ``output``, which gets the report.

    A demo that was cut short goes on; a finished one starts over (only what a demo wrote is removed).

    Raises:
        InputError: ``output`` holds something that is not a demo's.
    """
    console = console or Console(markup=False, emoji=False)
    _make_room(output)
    train_controllers(output, console, prompts=prompts, max_new_tokens=max_new_tokens, seed=seed)
    half = held_out // 2  # has much to copy
    rows = load_prompts("builtin", split="test", limit=held_out - half)
    rows += load_prompts("builtin-copy", split="test", limit=half)
    loader = Loader(DecodingOptions(target=TARGET, draft=DRAFT))
    tasks = [Task(SamplingParams(temperature, 50), max_new_tokens, seed=seed) for temperature in TEMPERATURES]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the controller was trained under")  # which temperature, is in the note
        with stage(console, f"4  Comparison on {len(rows)} held-out prompts", OF_COMPARISON):
            reports = compare_all(output, console, loader, rows, tasks)
            console.print(NOTE, style="dim")
        with stage(console, "5  Check: drafts change no text", OF_CHECK):
            cost = reports[0].costs[OURS]
            samples, identical = check_greedy(loader, output / FOLDERS[OURS], cost, rows[:CHECKED], max_new_tokens)
            for report in reports:
                for line in texts_compared(report):
                    console.print(f"At temperature {report.task.sampling.temperature:g}: {line}", highlight=False)
            console.print(f"{identical} of {len(samples)} greedy answers are those of transformers, token for token.")

    ours = max((OURS, COPIES, TREES), key=lambda name: reports[0].decoders[name].tokens_per_second or 0.0)
    words = " ".join(["specpilot generate", *words_of(reports[0], ours, output), f"'{EXAMPLE}'"])
    reports = [
        replace(
            report,
            commands={"Decode with your controller": words},
            sentences=[line.replace("On your", "On these") for line in report.sentences],
        )
        for report in reports
    ]
    reports[-1].sentences.append(
        f"Greedy output is identical to transformers' on {identical} of {len(samples)} prompts."
    )
    lines = [" ".join(report.sentences) for report in reports]
    names = [f"{task.sampling.temperature:g}" for task in tasks]
    record = DemoReport(
        sentences=lines,
        command=words,
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
    ending = f"All of it: {output}/report.html. Decode with your controller:\n{words}"
    console.print(ending, style="dim", soft_wrap=True)


@contextmanager
def stage(console: Console, title: str, words: str) -> Iterator[None]:
    """A stage of the demo: a heading, and how long it took."""
    console.rule(Text(title, "bold"), align="left")
    console.print(words, style="dim")
    started = time.perf_counter()
    yield
    console.print(f"{time.perf_counter() - started:.0f} s", style="dim")


def compare_all(
    output: Path, console: Console, loader: Loader, rows: Sequence[PromptRow], tasks: Sequence[Task]
) -> list[ComparisonReport]:
    """All decoders on the prompts, a comparison for each task, at the costs that the first one measures."""
    base, copying = loader.base, {"draft": f"{DRAFT}+ngram"}
    ours, specdec = (str(output / FOLDERS[name]) for name in (OURS, SPECDEC))
    decoders = [
        ComparedDecoder.of(base, OURS, length=ours),
        ComparedDecoder.of(base, SPECDEC, length=specdec, threshold=0.7),
        ComparedDecoder.of(base, COPIES, length=ours, **copying),
        ComparedDecoder.of(base, TREES, length=ours, tree="auto", **copying),
        ComparedDecoder.of(base, UNTRAINED, length="online-confidence", **copying),
    ]
    reports: list[ComparisonReport] = []
    for task in tasks:
        costs = reports[0].costs if reports else None
        report = compare_decoders(decoders, rows, loader, task, output / "compare", cost=costs, console=console)
        reports.append(concluded(report, {}))
        console.print(f"At temperature {task.sampling.temperature:g}:")
        console.print(document_of(reports[-1]).sections[0].table)
    return reports


def train_controllers(output: Path, console: Console, *, prompts: int, max_new_tokens: int, seed: int) -> None:
    """Data, training and export of both heads, into ``output``; what is complete there is not done again."""
    with stage(console, f"1  Data: {TARGET} answers {prompts} prompts, {DRAFT} drafts along", OF_DATA):
        data = AcceptanceDataOptions(
            target=TARGET, draft=DRAFT, limit=prompts, max_new_tokens=max_new_tokens, seed=seed, verifier="invariant"
        )
        make_acceptance_data(data, output / "data", console=console)
    defaults = yaml.safe_load(files("specpilot.train.configs").joinpath("tiny.yaml").read_text(encoding="utf-8"))
    folder = str(output / "data")
    runs = {
        FOLDERS[OURS]: lag_free_head.TrainingOptions(
            data=folder, seed=seed, validation_fraction=VALIDATION, traced=prompts, device="cpu", **FEW
        ),
        FOLDERS[SPECDEC]: specdec_head.TrainingOptions(**defaults | {"data": folder, "seed": seed, "mixings": 4}),
    }
    with stage(console, "2  Training: our predictor of acceptance, and SpecDec++'s head", OF_TRAINING):
        for label, (name, settings) in zip(FOLDERS, runs.items(), strict=True):
            result = train_acceptance(settings, output=output / "train" / name, resume=True)
            with open(result.run / METRICS, encoding="utf-8") as lines:
                losses = [float(row["loss"]) for row in csv.DictReader(lines) if row["loss"]]
            console.print(
                f"{label}: loss {losses[0]:.2f} → {losses[-1]:.2f}. Its best epoch on held-out answers: AUROC "
                f"{result.metrics['auroc']:.2f}, simulated speed-up {result.metrics['simulated_speedup']:.2f}.",
                highlight=False,
            )
    with stage(console, "3  Export: controller checkpoints", OF_EXPORT):
        for name in runs:
            export(output / "train" / name, output / name, overwrite=True)
            written = ", ".join(sorted(path.name for path in (output / name).iterdir()))
            console.print(f"{output / name}: {written}")


def _make_room(output: Path) -> None:
    if output.exists():
        foreign = sorted(path.name for path in output.iterdir() if path.name not in OWNED)
        if foreign:
            raise InputError(f"{output}: holds files that are no demo's ({foreign[0]}); choose another --output")
        if (output / REPORTS[-1]).exists():
            for name in OWNED:
                path = output / name
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
    output.mkdir(parents=True, exist_ok=True)


def check_greedy(
    loader: Loader, controller: Path, cost: CostModel, rows: Sequence[PromptRow], max_new_tokens: int
) -> tuple[list[Generation], int]:
    """Greedy outputs with the lag-free head, and how many are those of transformers."""
    decoder = loader.decoder(ComparedDecoder.of(loader.base, OURS, length=str(controller)), cost)
    prompts = [row.encode(decoder.tokenizer, chat=True, system=None) for row in rows]
    found = [decoder.generate(prompt, max_new_tokens=max_new_tokens, temperature=0) for prompt in prompts]
    model = decoder.target.model
    references = [generate(model, prompt, max_new_tokens=max_new_tokens, do_sample=False) for prompt in prompts]
    return found, sum(one.tokens == other for one, other in zip(found, references, strict=True))


def _show_sample(console: Console, loader: Loader, rows: Sequence[PromptRow], samples: Sequence[Generation]) -> None:
    """Of the greedy answers that a person can read, the one with the most accepted and rejected drafts to look at."""
    readable = [i for i, sample in enumerate(samples) if rows[i].domain in FLUENT and sample.finish_reason == "eos"]
    index = max(
        readable or range(len(samples)),
        key=lambda i: min(samples[i].stats.n_accepted, 4 * samples[i].stats.n_discarded),
    )
    console.print(Panel(rows[index].text, title="prompt", title_align="left", style="dim"))
    show_trace(console, samples[index], TextStream(loader.tokenizer, samples[index].prompt_tokens))
