"""`specpilot bench …`: measurements, one JSON document as the last line of standard output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bench.router_work import RouterBenchOptions
from ..bench.workload import CostOptions, PapersOptions, QuestionsOptions, WorkloadOptions
from ..data_gen.settings import AcceptanceDataOptions

if TYPE_CHECKING:
    from rich.console import Console

    Advance = Callable[[], None]


def rollouts(settings: AcceptanceDataOptions, *, repeats: int = 3) -> None:
    """Time batched data generation against a batch-1 loop of transformers' generate.

    Args:
        repeats: How often both are timed, in turn; medians are reported.
    """
    import json

    from rich.console import Console

    from ..bench.micro.rollouts import bench_rollouts
    from ..controllers.errors import InputError
    from ..infer.machine import machine, versions
    from ..infer.quiet import quiet

    if repeats < 1:
        raise InputError(f"repeats={repeats}: must be at least 1")
    quiet()
    result = bench_rollouts(settings, repeats, Console(stderr=True))
    print(json.dumps(result | {"machine": machine(), "versions": versions()}))


def forward(*, target: str = "tiny", draft: str = "tiny-draft", repeats: int = 50, compile: bool = False) -> None:
    """Time one forward of target and draft by how many tokens it reads, on both paths.

    Args:
        target: Target model.
        draft: Draft model.
        repeats: Forwards timed for each figure; medians are reported.
        compile: Time the compiled path too.
    """
    import json

    from ..bench.micro.forward import bench_forward
    from ..controllers.errors import InputError
    from ..infer.machine import machine, versions
    from ..infer.quiet import quiet

    if repeats < 1:
        raise InputError(f"repeats={repeats}: must be at least 1")
    quiet()
    result = bench_forward(target, draft, repeats, compile=compile)
    print(json.dumps(result | {"machine": machine(), "versions": versions()}))


def cost(
    settings: CostOptions,
    *,
    repeats: int = 5,
    judge: str | None = None,
    check: list[str] | None = None,
    output: Path | None = None,
) -> None:
    """Measure what drafting and verifying a token cost on this machine, for controllers that decide by it.

    Args:
        repeats: How often each generation, and ten times that how often each forward is timed; medians are taken.
        judge: A trained controller that judges every drafted token meanwhile: the costs are then those of decoding with
            it, its own time among them.
        check: Length controllers, as in `specpilot generate`, to compare the model's times of with the clock's; trained
            ones stop at draft steps of 0.2 verifications.
        output: File that gets the same JSON; `specpilot generate --cost` reads it.
    """
    from ..bench.load import load
    from ..bench.micro.cost import CHECK_COST, bench_cost, total_generations
    from ..controllers.errors import InputError
    from ..controllers.length import AcceptancePredictor, RateOptimal, parse_rule
    from ..infer.lengths import load_length

    console, progress = _begin(settings, repeats=repeats)
    decoder, prompts = load(settings)
    (draft,), tokenizer = decoder.drafts, decoder.tokenizer
    assert tokenizer is not None, "loaded by name"
    pair = decoder.target.model, draft.model, tokenizer
    controllers = {
        name: parse_rule(name) or load_length(name, *pair, cost=CHECK_COST) for name in dict.fromkeys(check or [])
    }
    judging: AcceptancePredictor | None = None
    if judge is not None:
        if parse_rule(judge) is not None:
            raise InputError(f"judge={judge!r}: a rule judges nothing; name a trained controller")
        controller = load_length(judge, *pair, cost=CHECK_COST)
        assert isinstance(controller, RateOptimal), "given costs, it goes by them"
        judging = controller.source
    with progress("generations", total_generations(len(prompts), repeats, len(controllers))) as advance:
        result = bench_cost(
            decoder,
            prompts,
            repeats=repeats,
            sampling=settings.sampling,
            judge=judging,
            check=controllers,
            on_progress=advance,
        )
    for name in controllers:
        console.print(
            f"{name}: {result['loop']['measured_over_fitted'][name]:.3f} of the time that the model foretells"
        )
    _end(result, settings, output, repeats=repeats, judge=judge)


def decode(
    settings: WorkloadOptions, *, controller: str | None = None, repeats: int = 3, plot: Path = Path("runs/decode.png")
) -> None:
    """Time the decoder against transformers' generate and assisted generation: same prompts, same pair, one process.

    Args:
        controller: Trained acceptance head for this pair (folder or hub id); the shipped pair has its own.
        repeats: Passes over all prompts; medians are reported.
        plot: Where the picture goes.
    """
    from ..bench.load import load
    from ..bench.plots import plot_rates
    from ..bench.workloads.decode import as_table, bench_decode
    from ..controllers.sampling import SamplingParams

    console, _ = _begin(settings, repeats=repeats)
    decoder, prompts = load(settings)
    if controller is None and (settings.target, settings.draft) == ("tiny", "tiny-draft"):
        controller = "tiny-head"
    result = bench_decode(
        decoder,
        prompts,
        SamplingParams(settings.temperature, settings.top_k, settings.top_p),
        max_new_tokens=settings.max_new_tokens,
        repeats=repeats,
        controller=controller,
        console=console,
    )
    console.print(as_table(result))
    console.print(
        f"{result['overhead_at']}: {result['overhead_share']:.1%} of the wall time is outside model forwards; the cost "
        f"model's bound, forwards at their median time, is {result['bound_share']:.1%} of it"
    )
    plot.parent.mkdir(parents=True, exist_ok=True)
    plot_rates(result, plot)
    console.print(f"{plot}: the picture")
    _end(result, settings, repeats=repeats)


def batch(
    settings: WorkloadOptions,
    *,
    repeats: int = 3,
    requests: int = 64,
    running: int = 16,
    shape: str | None = None,
    output: Path | None = None,
) -> None:
    """Time batches of 1 to 16 prompts, and continuous batching against fixed batches.

    Args:
        repeats: Passes over all prompts; medians are reported.
        requests: Requests of the comparison with fixed batches; their budgets vary from 8 to 128 tokens.
        running: How many of them run together.
        shape: Instead of the pair a Llama with random weights, as in "30x576": layers and width. Its prompts are 32
            random tokens each, it has no draft, and only continuous batching is measured.
        output: File that gets the same JSON.
    """
    from ..bench.load import load
    from ..bench.workloads.batch import LENGTHS, SIZES, bench_batch, bench_continuous, random_llama, random_prompts
    from ..controllers.sampling import SamplingParams
    from ..infer.decoder import SpeculativeDecoder

    console, progress = _begin(settings, repeats=repeats, requests=requests, running=running)
    result: dict[str, Any] = {}
    if shape is not None:
        decoder, prompts = SpeculativeDecoder(random_llama(shape), None), random_prompts(requests)
    else:
        decoder, prompts = load(settings)
        with progress("passes", (repeats + 1) * len(LENGTHS) * len(SIZES)) as advance:
            result = bench_batch(decoder, prompts, settings.sampling, repeats, advance)
    lengths = (0,) if shape is not None else LENGTHS
    sampling = SamplingParams(settings.temperature, settings.top_k, settings.top_p)
    with progress("passes", (repeats + 1) * len(lengths)) as advance:
        result["continuous"] = bench_continuous(
            decoder, prompts, sampling,
            requests=requests, running=running, lengths=lengths, repeats=repeats, on_progress=advance,
        )  # fmt: skip
    for name, rates in result["continuous"]["tokens_per_second"].items():
        console.print(
            f"{name}: {rates['continuous']:.0f} tokens/s by continuous batching, {rates['fixed_batches']:.0f} in fixed "
            f"batches of {running} (ratio {rates['ratio']:.2f}), {rates['fixed_batches_leaving']:.0f} where finished "
            f"rows leave them (ratio {rates['ratio_leaving']:.2f})"
        )
    _end(result, settings, output, repeats=repeats, shape=shape)


def memory(settings: WorkloadOptions, *, requests: int = 1000) -> None:
    """Watch the process's memory over many requests of mixed kinds and random lengths.

    Args:
        requests: How many; a reading is taken after every hundredth.
    """
    from ..bench.load import load
    from ..bench.micro.memory import bench_memory

    _, progress = _begin(settings, requests=requests)
    decoder, prompts = load(settings)
    with progress("requests", requests) as advance:
        result = bench_memory(decoder, prompts, settings.sampling, requests, advance)
    _end(result, settings, requests=requests)


def profile(settings: WorkloadOptions, *, length: int = 5) -> None:
    """Break the decoder's wall time down into its parts.

    Args:
        length: Tokens a draft; 0 is autoregressive.
    """
    from ..bench.load import load
    from ..bench.micro.profile import profile as measure
    from ..controllers.length import Fixed

    console, _ = _begin(settings)
    decoder, prompts = load(settings)
    result = measure(decoder, prompts, settings.sampling | {"length": Fixed(length)})
    for label, part in result["parts"].items():
        console.print(f"{part['share']:6.1%} {part['calls']:7d} × {part['microseconds']:7.1f} µs  {label}")
    console.print(f"{result['rest_share']:6.1%}                       the loop around them")
    _end(result, settings, length=length)


def stopping(*, output: Path | None = None) -> None:
    """How near rules of stopping come to the best policy there is, exactly, on a Markov model of acceptance.

    Args:
        output: File that gets the same JSON.
    """
    import json

    from rich.console import Console

    from ..bench.studies.stopping import as_table, bench_stopping

    result = bench_stopping()
    Console(stderr=True).print(as_table(result))
    line = json.dumps(result)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(line + "\n", encoding="utf-8")
    print(line)


def otm(
    *,
    target: str = "tiny",
    draft: str = "tiny-draft",
    prompt: str = "He said he also has asked prosecutors to",
    output: Path = Path("runs/otm.png"),
) -> None:
    """Acceptance of one of k proposals: optimal transport, K-SEQ, closed forms (SpecTr, Figures 1, 2, 3 and 5).

    Args:
        target: Target model of the last figure.
        draft: Draft model of the last figure.
        prompt: Text after which the two models' next tokens are compared.
        output: Where the picture goes.
    """
    import json

    import torch

    from ..bench.micro.otm import coins, models, plot_otm, uniforms
    from ..infer.decoder import SpeculativeDecoder
    from ..infer.machine import versions
    from ..infer.models import TextReader
    from ..infer.prompting import encode_prompt
    from ..infer.quiet import quiet

    quiet()
    decoder = SpeculativeDecoder.from_pretrained(target, draft)
    ids = encode_prompt(decoder.tokenizer, prompt)
    size = min(decoder.target.vocab_size, decoder.drafts[0].vocab_size)
    laws = []
    for model in (decoder.target, *decoder.drafts):
        reader, text = TextReader.begin(model, ids)
        with torch.inference_mode():
            logits, _ = reader.read(text, keep=1)
        laws.append(logits[-1, :size].cpu().double().softmax(-1))
    p, q = laws
    result = {"uniforms": uniforms(), "coins": coins(), "models": models(p, q), "pair": f"{target} + {draft}"}
    output.parent.mkdir(parents=True, exist_ok=True)
    plot_otm(result, output)
    print(json.dumps(result | {"prompt": prompt, "picture": str(output), "versions": versions()}))


def spectr(settings: WorkloadOptions) -> None:
    """Tokens per target forward by number and length of drafts (SpecTr, Table 2)."""
    from rich.table import Table

    from ..bench.load import load
    from ..bench.micro.spectr import DRAFTS, LENGTHS, RULES, bench_spectr

    console, progress = _begin(settings)
    decoder, prompts = load(settings)
    with progress("generations", len(prompts) * len(RULES) * len(LENGTHS) * len(DRAFTS)) as advance:
        result = bench_spectr(decoder, prompts, settings.sampling, advance)
    table = Table("rule", "L", *(f"K = {drafts}" for drafts in DRAFTS), title="tokens per target forward")
    for rule, by_length in result["block_efficiency"].items():
        for length, by_drafts in by_length.items():
            cells = [f"{x['value']:.2f} ({x['low']:.2f}-{x['high']:.2f})" for x in by_drafts.values()]
            table.add_row(rule, length, *cells)
    console.print(table)
    _end(result, settings)


def router(settings: RouterBenchOptions, *, output: Path | None = None) -> None:
    """Routers against single drafts, and the tables of assistant selection on held-out prompts.

    Args:
        output: File that gets the same JSON.
    """

    from ..bench.papers.studies import policy_fit
    from ..bench.workloads.router import bench_router
    from ..bench.workloads.router_report import tables

    console, progress = _begin(settings)
    result = bench_router(settings, policy_fit(settings), console, progress)
    for table in tables(result):
        console.print(table)
    _end(result, settings, output)


def questions(
    settings: QuestionsOptions,
    *,
    length: int | str | None = None,
    verifier: str = "token-wise",
    tree: str | None = None,
    beams: int | None = None,
    output: Path = Path("runs/questions"),
) -> None:
    """Answer a workload's questions with and without drafts; speed, perplexity and scores, and Spec-Bench's files.

    A run that was cut short goes on where it stopped.

    Args:
        length: What ends a draft, as in `specpilot generate`.
        verifier: Verification rule, as in `specpilot generate`.
        tree: Draft a tree instead, such as "3x2x1".
        beams: Sequences that mtad searches among.
        output: Folder of the two files of answers, and of what was measured for them, in `records`.
    """
    from ..data_gen.lock import locked

    with locked(output, "is answering questions there"):
        _questions(settings, length, verifier, tree, beams, output)


def _questions(
    settings: QuestionsOptions, length: int | str | None, verifier: str, tree: str | None, beams: int | None,
    output: Path,
) -> None:  # fmt: skip
    from rich.table import Table

    from ..bench.energy import Meter, counters
    from ..bench.store import Store
    from ..bench.workloads.questions import answer, report, summary, write_answers
    from ..controllers.checkpoints.content import length_digest
    from ..controllers.checkpoints.fingerprint import PairFingerprint
    from ..data_gen.tasks import load_questions
    from ..infer.decoder import SpeculativeDecoder
    from ..infer.drafters import Beams
    from ..infer.machine import machine

    console, progress = _begin(settings)
    asked = load_questions(
        settings.task,
        settings.prompts,
        column=settings.column,
        split=settings.split,
        limit=settings.skip + settings.limit,
        databases=settings.databases,
    )[settings.skip :]
    drafting = SpeculativeDecoder.from_pretrained(
        settings.target,
        settings.draft,
        length=length,
        verifier=verifier,
        tree=tree,
        beams=None if beams is None else Beams(beams),
        compile=settings.compile,
        dtype=settings.dtype,
        device=settings.device,
    )
    tokenizer = drafting.tokenizer
    assert tokenizer is not None
    plain = SpeculativeDecoder(drafting.target, None, tokenizer)
    meter = Meter(counters(drafting.target.device.type))
    idle = meter.idle_watts()
    common = {
        "sampling": settings.sampling,
        "chat": settings.chat,
        "dtype": settings.dtype,
        "compile": settings.compile,
        "device": str(drafting.target.device),
        "machine": machine(),
    }
    (draft,) = drafting.drafts
    models = {"pair": PairFingerprint.of(drafting.target.model, draft.model, tokenizer).as_dict()}
    rules = {
        "length": str(length),
        "content": length_digest(length),
        "verifier": verifier,
        "tree": tree,
        "beams": beams,
    }
    identities = {"autoregressive": common | models, verifier: common | models | rules}
    with progress("answers", 2 * len(asked)) as advance:
        found = answer(
            {"autoregressive": plain, verifier: drafting},
            asked,
            settings.sampling,
            chat=settings.chat,
            run_code=settings.run_code,
            meter=meter,
            store=Store(output / "records"),
            identities=identities,
            on_progress=advance,
        )
    lines = {name: [one.line for one in given] for name, given in found.items()}
    speeds = report(lines[verifier], lines["autoregressive"], tokenizer)
    table = Table("category", "questions", "tokens/s", "speed-up", "by Spec-Bench's count", "tokens a round")
    for category, row in speeds.items():
        cells = (f"{row[name]:.2f}" for name in ("speedup", "spec_bench", "mean_accepted_tokens"))
        table.add_row(category, str(row["questions"]), f"{row['tokens_per_second']:.0f}", *cells)
    console.print(table)
    quality = Table("configuration", "perplexity", "score", "tokens per target forward", "J/token")
    summaries = {name: summary(one) for name, one in found.items()}
    for name, judged in summaries.items():
        ppl, energy = judged["perplexity"], judged["joules_per_token"]
        quality.add_row(
            name,
            f"{ppl['value']:.2f} ({ppl['low']:.2f}–{ppl['high']:.2f})",
            "not scored" if judged["score"] is None else f"{judged['score']:.3f}",
            f"{judged['tokens_per_target_forward']:.2f}",
            energy if isinstance(energy, str) else f"{energy:.3f}",
        )
    console.print(quality)
    files = {name: output / f"{name.replace(':', '-')}.jsonl" for name in found}
    for name, file in files.items():
        write_answers(lines[name], file)
    console.print(f"{' and '.join(map(str, files.values()))}: the answers, as Spec-Bench's scripts read them")
    result = {"speed": speeds, "quality": summaries, "idle_watts": "not available" if idle is None else idle}
    _end(result | {"length": str(length), "verifier": verifier, "tree": tree}, settings)


def papers(settings: PapersOptions, paper: str = "all", *, output: Path = Path("runs/papers")) -> None:
    """Make the papers' tables, with their figures beside ours: Markdown, JSON and a picture a paper.

    A run that was cut short goes on where it stopped.

    Args:
        paper: Which one, or all; see `bench/papers`.
        output: Folder of the tables, and of what was measured, in `records`.
    """
    import json

    from ..bench.papers.command import bench_papers, chosen

    chosen(paper, settings)  # before anything is loaded
    from ..bench.papers.studies import papers_studies

    console, progress = _begin(settings)
    studies = papers_studies(settings, output, console, progress)
    result = bench_papers(paper, settings, output, studies, console)
    console.print(f"{output}: papers.json, papers-*.md, papers-*.png")
    print(json.dumps(result))


def _begin(
    settings: WorkloadOptions | RouterBenchOptions, **counts: int
) -> tuple[Console, Callable[[str, int], AbstractContextManager[Advance]]]:
    """A console for what is not the result, and a progress bar on it; ``counts`` must be positive."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ..controllers.errors import InputError
    from ..infer.quiet import quiet

    for name, value in counts.items():
        if value < 1:
            raise InputError(f"{name}={value}: must be at least 1")
    quiet()
    console = Console(stderr=True)

    @contextmanager
    def progress(what: str, total: int) -> Iterator[Advance]:
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=total)
            yield lambda: bar.advance(task)

    return console, progress


def _end(
    result: dict[str, Any], settings: WorkloadOptions | RouterBenchOptions, output: Path | None = None, **more: object
) -> None:
    """The result as one line of JSON, with what it was made of and on; also in the file ``output``."""
    import json
    from dataclasses import asdict

    from ..infer.machine import machine, versions

    made = {"settings": asdict(settings) | more, "machine": machine(), "versions": versions()}
    line = json.dumps(result | made, default=str)  # paths
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(line + "\n", encoding="utf-8")
    print(line)
