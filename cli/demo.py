"""``specpilot demo``: the whole pipeline on the shipped models and the built-in prompts, in a few minutes.

Data → training → export → decoding of held-out prompts by every family of length controllers, with one table, one
picture and one JSON report. Imported by its command only, so its heavy imports cost nothing elsewhere.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from .bench.micro.cost import fit_loop
from .bench.plots import plot_pareto
from .bench.runner import decode_all, rates
from .bench.workloads.assisted import generate
from .controllers.acceptance.acceptance_head import AcceptanceHead
from .controllers.checkpoints.checkpoint import load_controller
from .controllers.errors import InputError
from .controllers.length import AcceptanceLength, CumulativeConfidence, Fixed, HeadPredictor, LengthController
from .data_gen.acceptance import make_acceptance_data
from .data_gen.prompts import PromptRow, load_prompts
from .infer.decoder import SpeculativeDecoder
from .infer.generation import Generation, Stats
from .infer.machine import machine, versions
from .infer.prompting import Prompt, encode_prompt
from .options import AcceptanceDataOptions, AcceptanceTrainingOptions
from .trace_view import legend, render
from .train.acceptance import train_acceptance
from .train.export import export

TARGET, DRAFT = "tiny", "tiny-draft"
FIXED = (1, 2, 3, 4, 6, 8)
CONFIDENCE = (0.1, 0.2, 0.3, 0.5, 0.7)
THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9)
AUTOREGRESSIVE = "autoregressive"
OWNED = ("data", "train", "controller", "report.json", "report.md", "pareto.png")


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
    train_controller(output, stages, prompts=prompts, max_new_tokens=max_new_tokens, seed=seed)

    decoder = SpeculativeDecoder.from_pretrained(TARGET, DRAFT, length=4)
    plain = SpeculativeDecoder(decoder.target, None, decoder.tokenizer)
    rows = load_prompts("builtin", split="test", limit=held_out)
    texts: list[list[int]] = [encode_prompt(decoder.tokenizer, row.prompt, chat=True) for row in rows]
    with stages.stage("decoding", f"4  Decoding: {len(texts)} held-out prompts, every length controller in turn"):
        measured, sample = _decode(decoder, plain, texts, output / "controller", max_new_tokens, console)
    with stages.stage("greedy", "5  Check: greedy output against transformers' own generate"):
        greedy = _check_greedy(decoder, texts, max_new_tokens)
        console.print(f"{greedy['identical']} of {greedy['checked']} outputs identical, token for token")

    settings = {
        "target": TARGET, "draft": DRAFT, "prompts": prompts, "held_out": len(texts),
        "max_new_tokens": max_new_tokens, "temperature": 1.0, "top_k": 50, "seed": seed,
    }  # fmt: skip
    report = make_report(measured, greedy, settings, stages.seconds)
    try:
        plot_pareto(report["decoders"], output / "pareto.png", f"{TARGET} + {DRAFT}, {len(texts)} held-out prompts")
    except InputError as error:
        console.print(f"pareto.png: not drawn: {error}")
    (output / "report.md").write_text(as_markdown(report), encoding="utf-8")
    (output / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")  # last: marks the end

    console.rule("[bold]Results", align="left")
    console.print(_table(report["decoders"], report["best"]))
    _show_sample(console, decoder, rows, sample)
    for line in conclusions(report):
        console.print(line)
    console.print(f"[dim]{output}/report.md, report.json, pareto.png, controller/")
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


def train_controller(output: Path, stages: Stages, *, prompts: int, max_new_tokens: int, seed: int) -> None:
    """Data, training and export of an acceptance head, into ``output``; what is complete there is not done again."""
    with stages.stage("data", f"1  Data: {TARGET} answers {prompts} prompts, {DRAFT} drafts along"):
        data = AcceptanceDataOptions(
            target=TARGET, draft=DRAFT, limit=prompts, max_new_tokens=max_new_tokens, seed=seed
        )
        make_acceptance_data(data, output / "data", stages.console)
    with stages.stage("training", "2  Training: which drafted tokens will the target accept?"):
        defaults = yaml.safe_load(files("specpilot.train.configs").joinpath("tiny.yaml").read_text(encoding="utf-8"))
        training = AcceptanceTrainingOptions(**defaults | {"data": str(output / "data"), "seed": seed})
        train_acceptance(training, output=output / "train", resume=True)
    with stages.stage("export", "3  Export: a controller checkpoint"):
        controller = output / "controller"
        export(output / "train", controller, threshold=None, overwrite=True)
        stages.console.print(f"{controller}: {', '.join(sorted(path.name for path in controller.iterdir()))}")


def make_report(
    measured: dict[str, list[Stats]],
    greedy: dict[str, Any],
    settings: dict[str, Any],
    seconds: dict[str, float],
) -> dict[str, Any]:
    """The JSON report: every decoder's figures, the best of each family, the fitted costs, machine and versions."""
    cost, r_squared = fit_loop([run for runs in measured.values() for run in runs])
    decoders = {name: rates(runs, measured[AUTOREGRESSIVE], cost) for name, runs in measured.items()}
    return {
        "decoders": decoders,
        "best": best_by_family(decoders),
        "cost": {"t_draft": cost.per_token, "t_target": cost.verification(1), "r_squared": r_squared},
        "greedy": greedy,
        "settings": settings,
        "machine": machine(),
        "versions": versions(),
        "seconds": seconds | {"total": round(sum(seconds.values()), 2)},
    }


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


def _decode(
    decoder: SpeculativeDecoder,
    plain: SpeculativeDecoder,
    prompts: Sequence[Prompt],
    controller: Path,
    max_new_tokens: int,
    console: Console,
) -> tuple[dict[str, list[Stats]], dict[int, Generation]]:
    head = load_controller(controller).head.to(decoder.target.device)
    assert isinstance(head, AcceptanceHead), "the demo has exported one"
    lengths: dict[str, LengthController] = {f"fixed-{k}": Fixed(k) for k in FIXED}
    lengths |= {f"confidence-{threshold}": CumulativeConfidence(threshold) for threshold in CONFIDENCE}
    lengths |= {f"head-{h}": AcceptanceLength(HeadPredictor(head), h) for h in THRESHOLDS}
    decoders = {AUTOREGRESSIVE: partial(plain.generate)}
    decoders |= {name: partial(decoder.generate, length=length) for name, length in lengths.items()}
    sample: dict[int, Generation] = {}

    def keep(name: str, index: int, generation: Generation) -> None:
        if name == f"head-{THRESHOLDS[len(THRESHOLDS) // 2]}":
            sample[index] = generation

    settings = {"max_new_tokens": max_new_tokens, "temperature": 1.0, "top_k": 50}
    return decode_all(decoders, prompts, settings, console, on_generation=keep), sample


def _check_greedy(decoder: SpeculativeDecoder, prompts: list[list[int]], max_new_tokens: int) -> dict[str, int]:
    identical = 0
    model = decoder.target.model
    for prompt in prompts:
        reference = generate(model, prompt, max_new_tokens=max_new_tokens, do_sample=False)
        ours = decoder.generate(prompt, max_new_tokens=max_new_tokens, temperature=0).tokens
        identical += ours == reference
    return {"checked": len(prompts), "identical": identical}


def best_by_family(decoders: dict[str, dict[str, float]]) -> dict[str, str]:
    """The configuration of each family with the highest throughput by eq. 2.3."""
    best: dict[str, str] = {}
    for name, row in decoders.items():
        family = name.partition("-")[0]
        if family not in best or row["throughput_eq23"] > decoders[best[family]]["throughput_eq23"]:
            best[family] = name
    return best


COLUMNS = {
    "tokens_per_second": ("tokens/s", ".0f"),
    "speedup": ("speed-up", ".2f"),
    "discard_rate": ("discard", ".3f"),
    "verification_rate": ("verification", ".3f"),
    "acceptance_rate": ("acceptance", ".3f"),
    "block_efficiency": ("block eff.", ".2f"),
    "throughput_eq23": ("eq. 2.3 tok/s", ".0f"),
}


def _table(decoders: dict[str, dict[str, float]], best: dict[str, str]) -> Table:
    table = Table("decoder", *(title for title, _ in COLUMNS.values()))
    for column in table.columns[1:]:
        column.justify = "right"
    for name, row in decoders.items():
        cells = [format(row[key], form) for key, (_, form) in COLUMNS.items()]
        table.add_row(name, *cells, style="bold" if name in best.values() else "")
    return table


def _show_sample(
    console: Console, decoder: SpeculativeDecoder, rows: list[PromptRow], sample: dict[int, Generation]
) -> None:
    """The generation with the most rejected and accepted drafts to look at."""
    assert decoder.tokenizer is not None
    index = max(sample, key=lambda i: min(sample[i].stats.n_accepted, 4 * sample[i].stats.n_discarded))
    console.print(Panel(rows[index].prompt, title="prompt", title_align="left", style="dim"))
    console.print(Panel(render(sample[index], decoder.tokenizer), title="answer, drafts and all", title_align="left"))
    console.print(legend())


def conclusions(report: dict[str, Any]) -> list[str]:
    """The three sentences a reader wants, whichever way they come out."""
    decoders, best, cost = report["decoders"], report["best"], report["cost"]
    lines = [
        f"one draft forward {cost['t_draft'] * 1e3:.2f} ms, one target forward {cost['t_target'] * 1e3:.2f} ms "
        f"(fit over all generations, R² = {cost['r_squared']:.3f})"
    ]
    for family, what in (("head", "acceptance head"), ("confidence", "cumulative confidence"), ("fixed", "fixed K")):
        row = decoders[best[family]]
        lines.append(
            f"best {what}: {best[family]}, {row['throughput_eq23']:.0f} tokens/s by eq. 2.3; measured "
            f"{row['tokens_per_second']:.0f} tokens/s, {row['speedup']:.2f}× autoregressive"
        )
    return lines


def as_markdown(report: dict[str, Any]) -> str:
    """The report as a page."""
    settings = report["settings"]
    head = f"{settings['held_out']} held-out prompts, {settings['max_new_tokens']} tokens, temperature 1, top-k 50"
    lines = [
        f"# {settings['target']} + {settings['draft']}",
        "",
        head + f", on {report['machine']['cores']} cores of {report['machine']['processor']}.",
        "",
        "| decoder | " + " | ".join(title for title, _ in COLUMNS.values()) + " |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for name, row in report["decoders"].items():
        cells = [format(row[key], form) for key, (_, form) in COLUMNS.items()]
        lines.append("| " + " | ".join([f"**{name}**" if name in report["best"].values() else name, *cells]) + " |")
    lines += ["", "Bold: best of its family by eq. 2.3 with the measured costs.", ""]
    lines += [f"* {line}" for line in conclusions(report)]
    greedy = report["greedy"]
    lines += [
        f"* greedy output identical to transformers' on {greedy['identical']} of {greedy['checked']} prompts",
        "",
        "![discard rate against verification rate](pareto.png)",
        "",
    ]
    return "\n".join(lines)
