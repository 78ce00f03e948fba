"""`specpilot bench …`: measurements, one JSON document as the last line of standard output."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bench.router_work import RouterBenchOptions
from ..bench.workload import CostOptions, PapersOptions, QuestionsOptions, WorkloadOptions
from ..data_gen.settings import AcceptanceDataOptions

if TYPE_CHECKING:
    from rich.console import Console


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

    from rich.console import Console

    from ..bench.micro.forward import bench_forward
    from ..controllers.errors import InputError
    from ..infer.machine import machine, versions
    from ..infer.quiet import quiet

    if repeats < 1:
        raise InputError(f"repeats={repeats}: must be at least 1")
    quiet()
    result = bench_forward(target, draft, repeats, Console(stderr=True), compile=compile)
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
    from ..bench.micro.cost import CHECK_COST, bench_cost
    from ..controllers.errors import InputError
    from ..controllers.length import AcceptancePredictor, RateOptimal, parse_rule
    from ..infer.lengths import load_length

    console = _begin(repeats=repeats)
    decoder, prompts = load(settings)
    (draft,), tokenizer = decoder.drafts, decoder.tokenizer
    assert tokenizer is not None, "loaded by name"
    pair = decoder.target.model, draft.model, tokenizer
    controllers = {
        name: parse_rule(name) or load_length(name, *pair, cost=CHECK_COST) for name in dict.fromkeys(check or [])
    }
    predictor: AcceptancePredictor | None = None
    if judge is not None:
        if parse_rule(judge) is not None:
            raise InputError(f"judge={judge!r}: a rule judges nothing; name a trained controller")
        controller = load_length(judge, *pair, cost=CHECK_COST)
        assert isinstance(controller, RateOptimal), "given costs, it goes by them"
        predictor = controller.source
    result = bench_cost(
        decoder, prompts, console, repeats=repeats, sampling=settings.sampling, predictor=predictor, check=controllers
    )
    for warning in result["warnings"]:
        console.print(f"warning: {warning}")
    for name in controllers:
        ratio = result["loop"]["measured_over_fitted"][name]
        console.print(f"{name}: {'nothing was decoded' if ratio is None else f'{ratio:.3f} of the predicted time'}")
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

    console = _begin(repeats=repeats)
    decoder, prompts = load(settings)
    if controller is None and (settings.target, settings.draft) == ("tiny", "tiny-draft"):
        controller = "tiny-head"
    result = bench_decode(
        decoder,
        prompts,
        SamplingParams(settings.temperature, settings.top_k, settings.top_p),
        console,
        max_new_tokens=settings.max_new_tokens,
        repeats=repeats,
        controller=controller,
    )
    console.print(as_table(result))
    console.print(
        f"{result['overhead_at']}: {result['overhead_share']:.1%} of the wall time is outside model forwards; the cost "
        f"model's bound, forwards at their median time, is {result['bound_share']:.1%} of it"
    )
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
    from ..bench.workloads.batch import (
        LENGTHS,
        bench_batch,
        bench_continuous,
        random_llama,
        random_prompts,
        show_continuous,
    )
    from ..controllers.sampling import SamplingParams
    from ..infer.decoder import SpeculativeDecoder

    console = _begin(repeats=repeats, requests=requests, running=running)
    result: dict[str, Any] = {}
    if shape is not None:
        decoder, prompts = SpeculativeDecoder(random_llama(shape), None), random_prompts(requests)
    else:
        decoder, prompts = load(settings)
        result = bench_batch(decoder, prompts, settings.sampling, repeats, console)
    lengths = (0,) if shape is not None else LENGTHS
    sampling = SamplingParams(settings.temperature, settings.top_k, settings.top_p)
    result["continuous"] = bench_continuous(
        decoder, prompts, sampling, console, requests=requests, running=running, lengths=lengths, repeats=repeats
    )
    show_continuous(result["continuous"], console)
    _end(result, settings, output, repeats=repeats, shape=shape)


def memory(settings: WorkloadOptions, *, requests: int = 1000) -> None:
    """Watch the process's memory over many requests of mixed kinds and random lengths.

    Args:
        requests: How many; a reading is taken after every hundredth.
    """
    from ..bench.load import load
    from ..bench.micro.memory import bench_memory

    console = _begin(requests=requests)
    decoder, prompts = load(settings)
    result = bench_memory(decoder, prompts, settings.sampling, requests, console)
    _end(result, settings, requests=requests)


def profile(settings: WorkloadOptions, *, length: int = 5) -> None:
    """Break the decoder's wall time down into its parts.

    Args:
        length: Tokens a draft; 0 is autoregressive.
    """
    from ..bench.load import load
    from ..bench.micro.profile import profile as profile_decoder
    from ..bench.micro.profile import show_profile
    from ..controllers.length import Fixed

    console = _begin()
    decoder, prompts = load(settings)
    result = profile_decoder(decoder, prompts, settings.sampling | {"length": Fixed(length)})
    show_profile(result, console)
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

    from ..bench.micro.otm import bench_otm, plot_otm
    from ..infer.decoder import SpeculativeDecoder
    from ..infer.machine import versions
    from ..infer.quiet import quiet

    quiet()
    result = bench_otm(SpeculativeDecoder.from_pretrained(target, draft), prompt) | {"pair": f"{target} + {draft}"}
    plot_otm(result, output)
    print(json.dumps(result | {"prompt": prompt, "picture": str(output), "versions": versions()}))


def spectr(settings: WorkloadOptions) -> None:
    """Tokens per target forward by number and length of drafts (SpecTr, Table 2)."""
    from ..bench.load import load
    from ..bench.micro.spectr import as_table, bench_spectr

    console = _begin()
    decoder, prompts = load(settings)
    result = bench_spectr(decoder, prompts, settings.sampling, console)
    console.print(as_table(result))
    _end(result, settings)


def router(settings: RouterBenchOptions, *, output: Path | None = None) -> None:
    """Routers against single drafts, and the tables of assistant selection on held-out prompts.

    Args:
        output: File that gets the same JSON.
    """
    from ..bench.workloads.router.benchmark import bench_router
    from ..bench.workloads.router.report import as_tables

    console = _begin()
    result = bench_router(settings, console)
    for table in as_tables(result):
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
    from ..bench.workloads.questions import bench_questions
    from ..bench.workloads.questions_report import as_tables

    console = _begin()
    result = bench_questions(settings, output, console, length=length, verifier=verifier, tree=tree, beams=beams)
    for table in as_tables(result):
        console.print(table)
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
    console = _begin()
    result = bench_papers(paper, settings, output, console)
    console.print(f"{output}: papers.json, papers-*.md, papers-*.png")
    print(json.dumps(result))


def _begin(**counts: int) -> Console:
    """A console for what is not the result; ``counts`` must be positive."""
    from rich.console import Console

    from ..controllers.errors import InputError
    from ..infer.quiet import quiet

    for name, value in counts.items():
        if value < 1:
            raise InputError(f"{name}={value}: must be at least 1")
    quiet()
    return Console(stderr=True)


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
