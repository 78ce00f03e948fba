"""``specpilot demo``: the whole pipeline on the shipped models and the built-in prompts, in a few minutes.

Data → training of a lag-free head and of SpecDec++'s → export → costs → decoding of held-out prompts by every family of
length controllers, and by replay what they could reach at best. Imported by its command only, so its heavy imports cost
nothing elsewhere.
"""

from __future__ import annotations

import json
import shutil
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.panel import Panel

from .common.errors import InputError
from .compare.ablation import baselines, learned
from .compare.ablation_tables import summarise
from .compare.cost import bench_cost, trained_predictor
from .compare.engines.assisted import generate
from .compare.held_out import BATCH, PromptBatch, Tracer
from .compare.plots import plot_pareto
from .compare.replay import replay_rule
from .compare.runner import decode_all
from .controllers.length import CumulativeConfidence, Fixed, LengthController
from .controllers.length.cost_model import CostModel
from .controllers.sampling import SamplingParams
from .data_gen.acceptance import make_acceptance_data
from .data_gen.options import AcceptanceDataOptions
from .data_gen.prompts import PromptRow, load_prompts
from .demo_report import AUTOREGRESSIVE, OURS, as_markdown, best_by_family, decoder_table, gains, make_report
from .infer.decoder import SpeculativeDecoder
from .infer.generation import Generation, Stats
from .infer.prompting import encode_prompt
from .trace_view import legend, render
from .train.acceptance import train_acceptance
from .train.export import export
from .train.options import AcceptanceTrainingOptions, LagFreeTrainingOptions

TARGET, DRAFT = "tiny", "tiny-draft"
FIXED = (1, 2, 3, 4)
CONFIDENCE = (0.1, 0.2, 0.3, 0.5)
THRESHOLDS = (0.7, 0.9)  # SpecDec++'s own, and the one that is best where drafts are cheap
PASSES = 2  # over the prompts with the fastest of each family
VALIDATION = 0.15  # share of the prompts for training by which the epoch is chosen
COST_PROMPTS, COST_TOKENS, COST_REPEATS = 4, 48, 3
FLUENT = ("dialogue", "shell", "sql")  # domains whose answers by the shipped target a person can read
FEW: dict[str, Any] = {"epochs": 8, "batch_size": 128}  # more steps from less data than by default
DISTINCT = 0.9  # share of an answer's runs of three tokens that are new
OWNED = ("data", "train", "controller", "specdec", "cost.json", "report.json", "report.md", "pareto.png")


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

    comparison = Comparison(output, held_out=held_out, max_new_tokens=max_new_tokens, seed=seed)
    with stages.stage("cost", "4  Costs: a draft step with its prediction, and a verification"):
        cost = comparison.measure_cost(console)
        console.print(f"drafting one token more costs {cost.per_token / cost.round(0):.2f} of a target forward")
    with stages.stage("decoding", f"5  Decoding: {len(comparison.rows)} held-out prompts, every controller in turn"):
        measured, final = comparison.decode(cost, console)
    with stages.stage("replay", "6  Replay: the same prompts by all rules, and the informed bound"):
        replayed = comparison.replay(cost)
    with stages.stage("greedy", "7  Check: greedy output against transformers' own generate"):
        greedy, samples = comparison.check_greedy(cost)
        console.print(f"{greedy['identical']} of {greedy['checked']} outputs identical, token for token")

    settings = {
        "target": TARGET, "draft": DRAFT, "prompts": prompts, "held_out": len(comparison.rows),
        "max_new_tokens": max_new_tokens, "temperature": 1.0, "top_k": 50, "seed": seed,
        "stopping_cost": cost.as_dict(),
    }  # fmt: skip
    report = make_report(measured, final, replayed, greedy, settings, stages.seconds)
    _write(report, output, console)
    console.rule("[bold]Results", align="left")
    for line in gains(report):
        console.print(line, highlight=False)
    _show_sample(console, comparison, samples)
    console.print(decoder_table(report["decoders"], report["best"]))
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
        "controller": LagFreeTrainingOptions(
            data=folder, seed=seed, validation_fraction=VALIDATION, traced=prompts, device="cpu", **FEW
        ),
        "specdec": AcceptanceTrainingOptions(**defaults | {"data": folder, "seed": seed}),
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


class Comparison:
    """The pair with the trained controllers, on held-out prompts.

    Args:
        folder: the demo's, which holds the controllers.
    """

    def __init__(self, folder: Path, *, held_out: int, max_new_tokens: int, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.decoder = SpeculativeDecoder.from_pretrained(TARGET, DRAFT, length=4)
        self.rows = load_prompts("builtin", split="test", limit=held_out)
        self.prompts = self._encode(self.rows)
        self.settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": 1.0, "top_k": 50}

    def _encode(self, rows: Sequence[PromptRow]) -> list[list[int]]:
        return [encode_prompt(self.decoder.tokenizer, row.prompt, chat=True) for row in rows]

    def _trained(self, name: str, **rule: Any) -> LengthController:
        return self.decoder.load_length(str(self.folder / name), **rule)

    def measure_cost(self, console: Console) -> CostModel:
        """What tokens cost with our predictor at work, on prompts that were trained on; written to ``cost.json``."""
        predictor = trained_predictor(self.decoder, str(self.folder / "controller"))
        prompts = self._encode(load_prompts("builtin", limit=COST_PROMPTS))
        sampling = self.settings | {"max_new_tokens": min(COST_TOKENS, self.settings["max_new_tokens"])}
        result = bench_cost(
            self.decoder, prompts, console, repeats=COST_REPEATS, sampling=sampling, predictor=predictor
        )
        (self.folder / "cost.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
        return CostModel(**result["cost"])

    def lengths(self, cost: CostModel) -> dict[str, LengthController]:
        """The length controllers that are compared."""
        lengths: dict[str, LengthController] = {f"fixed-{k}": Fixed(k) for k in FIXED}
        lengths |= {f"confidence-{threshold}": CumulativeConfidence(threshold) for threshold in CONFIDENCE}
        lengths |= {f"head-{h}": self._trained("specdec", threshold=h) for h in THRESHOLDS}
        return lengths | {OURS: self._trained("controller", cost=cost)}

    def decode(self, cost: CostModel, console: Console) -> tuple[dict[str, list[Stats]], dict[str, list[Stats]]]:
        """Counters and times of all configurations; and of the fastest of each family with other random draws.

        The figures that are compared come from the latter: the fastest of several owes its place to noise in part.
        """
        plain = SpeculativeDecoder(self.decoder.target, None, self.decoder.tokenizer)
        decoders = {AUTOREGRESSIVE: partial(plain.generate)}
        decoders |= {n: partial(self.decoder.generate, length=length) for n, length in self.lengths(cost).items()}
        measured = decode_all(decoders, self.prompts, self.settings, console)
        best = best_by_family({name: sum(runs, Stats()).tokens_per_second for name, runs in measured.items()})
        finalists, count = {name: decoders[name] for name in best.values()}, len(self.prompts)
        again = decode_all(finalists, self.prompts * PASSES, self.settings, console, first_seed=count)
        final = {name: [sum(runs[i::count], Stats()) for i in range(count)] for name, runs in again.items()}
        return measured, final

    def replay(self, cost: CostModel) -> dict[str, float]:
        """Speed-ups over autoregressive decoding by eq. 2.3 at ``cost``, of the same prompts' texts.

        Returns:
            by ``ours``, ``best_fixed``, ``best_confidence`` and ``informed_bound``.
        """
        budget = self.settings["max_new_tokens"]
        tracer = Tracer(self.decoder, SamplingParams(1.0, 50, 1.0), budget, self.seed)
        starts = range(0, len(self.rows), BATCH)
        traces = [t for i in starts for t in tracer.traces(PromptBatch("builtin", tuple(self.rows[i : i + BATCH])))]
        rules = [*baselines(greedy=False), *learned(OURS, str(self.folder / "controller"), self.decoder, {"": cost})]
        counted = {
            (rule.name, parameter): {"builtin": counts}
            for rule in rules
            for parameter, counts in zip(rule.parameters, replay_rule(tracer, traces, rule), strict=True)
        }
        ratios = summarise(counted, {"": cost}, ["builtin"], OURS)["ratios"][""]["in_domain"]
        return {name: ratios[name] for name in ("ours", "best_fixed", "best_confidence", "informed_bound")}

    def check_greedy(self, cost: CostModel) -> tuple[dict[str, int], list[Generation]]:
        """How many greedy outputs of our controller are those of transformers; and these outputs."""
        length, budget = self._trained("controller", cost=cost), self.settings["max_new_tokens"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # it was trained for another temperature, which is no matter
            generations = [
                self.decoder.generate(p, max_new_tokens=budget, temperature=0, length=length) for p in self.prompts
            ]
        model = self.decoder.target.model
        references = [generate(model, p, max_new_tokens=budget, do_sample=False) for p in self.prompts]
        identical = sum(one.tokens == other for one, other in zip(generations, references, strict=True))
        return {"checked": len(self.prompts), "identical": identical}, generations


def _write(report: dict[str, Any], output: Path, console: Console) -> None:
    title = f"{TARGET} + {DRAFT}, {report['settings']['held_out']} held-out prompts"
    try:
        plot_pareto(report["decoders"], output / "pareto.png", title)
    except InputError as error:
        console.print(f"pareto.png: not drawn: {error}")
    (output / "report.md").write_text(as_markdown(report), encoding="utf-8")
    (output / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")  # last: marks the end


def _show_sample(console: Console, comparison: Comparison, samples: Sequence[Generation]) -> None:
    """Of the greedy answers that read well, the one with the most accepted and rejected drafts to look at."""
    rows, tokenizer = comparison.rows, comparison.decoder.tokenizer
    assert tokenizer is not None
    readable = [i for i, row in enumerate(rows) if row.domain in FLUENT and _reads_well(samples[i])]
    index = max(
        readable or range(len(rows)), key=lambda i: min(samples[i].stats.n_accepted, 4 * samples[i].stats.n_discarded)
    )
    console.print(Panel(rows[index].prompt, title="prompt", title_align="left", style="dim"))
    console.print(Panel(render(samples[index], tokenizer), title="answer, drafts and all", title_align="left"))
    console.print(legend())


def _reads_well(sample: Generation) -> bool:
    """Whether the answer came to its end, and hardly repeats itself."""
    tokens = sample.tokens
    runs = list(zip(tokens, tokens[1:], tokens[2:], strict=False))
    return sample.finish_reason == "eos" and len(set(runs)) >= DISTINCT * len(runs)
