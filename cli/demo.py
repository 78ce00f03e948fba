"""``specpilot demo``: the whole pipeline on the included models and the built-in prompts, in two minutes.

Data → training of a lag-free head and of SpecDec++'s → export → ``specpilot compare`` with both on held-out prompts.
Imported by its command only, so its heavy imports cost nothing elsewhere.
"""

from __future__ import annotations

import json
import shutil
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.panel import Panel

from .common.errors import InputError
from .compare.comparison import Comparison, Task, compare
from .compare.decoders import ComparedDecoder, Loader
from .compare.engines.assisted import generate
from .compare.report import as_dict, as_markdown, sentences, table, write_cost
from .controllers.sampling import SamplingParams
from .data_gen.acceptance import make_acceptance_data
from .data_gen.options import AcceptanceDataOptions
from .data_gen.prompts import PromptRow, load_prompts
from .infer.generation import Generation
from .infer.options import DecodingOptions
from .infer.text_stream import TextStream
from .trace_view import legend, render
from .train.acceptance import train_acceptance
from .train.export import export
from .train.options import LagFreeTrainingOptions, SpecDecTrainingOptions

TARGET, DRAFT = "tiny", "tiny-draft"
OURS, SPECDEC = "lag-free head", "SpecDec++'s head"
FOLDERS = {OURS: "controller", SPECDEC: "specdec"}
VALIDATION = 0.15  # share of the prompts for training by which the epoch is chosen
FEW: dict[str, Any] = {"epochs": 8, "batch_size": 128}  # more steps from less data than by default
CHECKED = 8  # prompts whose greedy output is compared with that of transformers
FLUENT = ("dialogue", "shell", "sql")  # domains whose answers by the included target a person can read
DISTINCT = 0.9  # share of an answer's runs of three tokens that are new
OWNED = ("data", "train", *FOLDERS.values(), "compare", "cost.json", "report.json", "report.md")


def run_demo(
    output: Path, *, prompts: int, held_out: int, max_new_tokens: int, seed: int, console: Console | None = None
) -> dict[str, Any]:
    """Run all stages into ``output`` and return the report that is also written there.

    A demo that was cut short goes on; a finished one starts over (only what a demo wrote is removed).

    Raises:
        InputError: ``output`` holds something that is not a demo's.
    """
    console = console or Console()
    _make_room(output)
    stages = Stages(console)
    train_controllers(output, stages, prompts=prompts, max_new_tokens=max_new_tokens, seed=seed)
    rows = load_prompts("builtin", split="test", limit=held_out)
    base = DecodingOptions(target=TARGET, draft=DRAFT)
    loader = Loader(base)
    with stages.stage("compare", f"4  Comparison: {len(rows)} held-out prompts, every decoder in turn"):
        task = Task(SamplingParams(1.0, 50), max_new_tokens, seed=seed)
        decoders = [
            ComparedDecoder.of(base, OURS, length=str(output / FOLDERS[OURS])),
            ComparedDecoder.of(base, SPECDEC, length=str(output / FOLDERS[SPECDEC]), threshold=0.7),
        ]
        comparison = compare(decoders, rows, loader, task, output / "compare", console=console)
        cost = write_cost(comparison, OURS, output)
    with stages.stage("greedy", "5  Check: greedy output against transformers' own generate"):
        samples, identical = check_greedy(loader, decoders[0], comparison, rows[:CHECKED], max_new_tokens)
        console.print(f"{identical} of {len(samples)} outputs identical, token for token")

    words = {"Decode": f"specpilot generate --length {output / FOLDERS[OURS]} --cost {cost} 'Write a short story.'"}
    report = as_dict(comparison, words) | {
        "greedy": {"checked": len(samples), "identical": identical},
        "settings": {"prompts": prompts, "held_out": len(rows), "max_new_tokens": max_new_tokens, "seed": seed},
        "seconds": stages.seconds | {"total": round(sum(stages.seconds.values()), 2)},
    }
    page = as_markdown(comparison, words)
    page += f"* Greedy output is identical to transformers' on {identical} of {len(samples)} prompts.\n"
    (output / "report.md").write_text(page, encoding="utf-8")
    (output / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")  # last: marks the end
    _show_sample(console, loader, rows, samples)
    console.rule("[bold]Results", align="left")
    for line in [*sentences(comparison), gain_of_training(comparison)]:
        console.print(line, highlight=False)
    console.print(table(comparison))
    console.print(f"[dim]{output}/report.md, report.json, {FOLDERS[OURS]}/; {words['Decode']}", soft_wrap=True)
    return report


class Stages:
    """The stages of a demo: a heading for each, and how long it took.

    Attributes:
        seconds: of the stages done, by name.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str, title: str) -> Iterator[None]:
        self.console.rule(f"[bold]{title}", align="left")
        started = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - started, 2)
        self.console.print(f"[dim]{name}: {self.seconds[name]:.0f} s")


def train_controllers(output: Path, stages: Stages, *, prompts: int, max_new_tokens: int, seed: int) -> None:
    """Data, training and export of both heads, into ``output``; what is complete there is not done again."""
    with stages.stage("data", f"1  Data: {TARGET} answers {prompts} prompts, {DRAFT} drafts along"):
        data = AcceptanceDataOptions(
            target=TARGET, draft=DRAFT, limit=prompts, max_new_tokens=max_new_tokens, seed=seed
        )
        make_acceptance_data(data, output / "data", stages.console)
    defaults = yaml.safe_load(files("specpilot.train.configs").joinpath("tiny.yaml").read_text(encoding="utf-8"))
    folder = str(output / "data")
    runs = {
        FOLDERS[OURS]: LagFreeTrainingOptions(
            data=folder, seed=seed, validation_fraction=VALIDATION, traced=prompts, device="cpu", **FEW
        ),
        FOLDERS[SPECDEC]: SpecDecTrainingOptions(**defaults | {"data": folder, "seed": seed}),
    }
    with stages.stage("training", "2  Training: our predictor of acceptance, and SpecDec++'s head"):
        for name, settings in runs.items():
            train_acceptance(settings, output=output / "train" / name, resume=True)
    with stages.stage("export", "3  Export: controller checkpoints"):
        for name in runs:
            export(output / "train" / name, output / name, overwrite=True)
            written = ", ".join(sorted(path.name for path in (output / name).iterdir()))
            stages.console.print(f"{output / name}: {written}")


def _make_room(output: Path) -> None:
    if output.exists():
        foreign = sorted(path.name for path in output.iterdir() if path.name not in OWNED)
        if foreign:
            raise InputError(f"{output}: holds files that are no demo's ({foreign[0]}); choose another --output")
        if (output / "report.json").exists():
            for name in OWNED:
                path = output / name
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
    output.mkdir(parents=True, exist_ok=True)


def check_greedy(
    loader: Loader, spec: ComparedDecoder, comparison: Comparison, rows: Sequence[PromptRow], max_new_tokens: int
) -> tuple[list[Generation], int]:
    """Greedy outputs with a controller, and how many are those of transformers."""
    decoder = loader.decoder(spec, comparison.costs[spec.name])
    prompts = [row.encode(decoder.tokenizer, chat=True, system=None) for row in rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it was trained for another temperature, which is no matter
        found = [decoder.generate(prompt, max_new_tokens=max_new_tokens, temperature=0) for prompt in prompts]
    model = decoder.target.model
    references = [generate(model, prompt, max_new_tokens=max_new_tokens, do_sample=False) for prompt in prompts]
    return found, sum(one.tokens == other for one, other in zip(found, references, strict=True))


def gain_of_training(comparison: Comparison) -> str:
    """What the training gained over the best rule without training, by replay and whichever way it comes out."""
    speeds = {name: result.replay.value for name, result in comparison.results.items() if result.replay is not None}
    rules = {name: speed for name, speed in speeds.items() if not comparison.results[name].trained}
    best = max(rules, key=lambda name: rules[name])
    change = 100 * (speeds[OURS] / rules[best] - 1)
    word = "faster" if change >= 0 else "slower"
    return (
        f"Without the clock's noise, by replay at the costs measured here, the {OURS} is {abs(change):.1f} % {word} "
        f"than the best rule without training ({best})."
    )


def _show_sample(console: Console, loader: Loader, rows: Sequence[PromptRow], samples: Sequence[Generation]) -> None:
    """Of the greedy answers that read well, the one with the most accepted and rejected drafts to look at."""
    tokenizer = loader.target().tokenizer
    readable = [i for i, sample in enumerate(samples) if rows[i].domain in FLUENT and _reads_well(sample)]
    index = max(
        readable or range(len(samples)),
        key=lambda i: min(samples[i].stats.n_accepted, 4 * samples[i].stats.n_discarded),
    )
    console.print(Panel(rows[index].prompt, title="prompt", title_align="left", style="dim"))
    stream = TextStream(tokenizer, samples[index].prompt_tokens)
    console.print(Panel(render(samples[index], stream), title="answer, drafts and all", title_align="left"))
    console.print(legend())


def _reads_well(sample: Generation) -> bool:
    """Whether the answer came to its end, and hardly repeats itself."""
    tokens = sample.tokens
    runs = list(zip(tokens, tokens[1:], tokens[2:], strict=False))
    return sample.finish_reason == "eos" and len(set(runs)) >= DISTINCT * len(runs)
