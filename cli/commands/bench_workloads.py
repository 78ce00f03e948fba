"""`specpilot bench` for whole workloads: decoding, batches, routers, questions, the papers' tables."""

from __future__ import annotations

from typing import Any

from ..controllers.errors import InputError
from ..options import (
    BatchBenchOptions,
    ClockBenchOptions,
    DecodeBenchOptions,
    FaultsOptions,
    NgramBenchOptions,
    PapersOptions,
    PapersOutputOptions,
    QuestionsOptions,
    RouterBenchOptions,
    ServeBenchOptions,
    SoakOptions,
    VllmBenchOptions,
)
from .measuring import begin, finish


def decode(options: DecodeBenchOptions) -> None:
    """Time the decoder against transformers' generate and assisted generation on the same prompts and pair."""
    from ..bench.load import load
    from ..bench.plots import plot_rates
    from ..bench.workloads.decode import as_table, bench_decode
    from ..controllers.sampling import SamplingParams

    console = begin(draws=True)
    decoder, prompts = load(options)
    controller = options.controller
    if controller is None and (options.target, options.draft) == ("tiny", "tiny-draft"):
        controller = "tiny-head"
    result = bench_decode(
        decoder,
        prompts,
        SamplingParams(options.temperature, options.top_k, options.top_p),
        console,
        max_new_tokens=options.max_new_tokens,
        repeats=options.repeats,
        controller=controller,
    )
    console.print(as_table(result))
    console.print(
        f"{result['overhead_at']}: {result['overhead_share']:.1%} of the wall time is outside model forwards; all "
        f"forwards at their median time would take {result['bound_share']:.1%} of it"
    )
    plot_rates(result, options.plot)
    console.print(f"{options.plot}: the plot")
    finish(result, options)


def clock(options: ClockBenchOptions) -> None:
    """Time a trained controller against every rule of stopping over its grid, on held-out prompts.

    A run that was cut short is continued.
    """
    from ..bench.workloads.clock import as_table, bench_clock

    console = begin()
    result = bench_clock(options, console)
    console.print(as_table(result))
    finish(result, options, options.output)


def serve(options: ServeBenchOptions) -> None:
    """Time servers under concurrent requests: a trained controller, a fixed length, and no drafts."""
    from ..bench.workloads.serve import as_table, bench_serve
    from ..bench.workloads.served_texts import summary

    console = begin()
    result = bench_serve(options, console)
    console.print(as_table(result))
    console.print(summary(result["sampled_texts"], options.temperature))
    finish(result, options, options.output)


def soak(options: SoakOptions) -> None:
    """Send thousands of requests to a server, by clients that leave, send rubbish or read slowly, and check each."""
    from ..bench.workloads.soak import bench_soak

    finish(bench_soak(options, begin()), options, options.output)


def faults(options: FaultsOptions) -> None:
    """Kill, starve and damage every stage, and check that it ends as if nothing had happened."""
    from ..bench.faults.campaign import as_table, run_campaign
    from ..main import main

    console = begin()
    result = run_campaign(options, main)
    console.print(as_table(result))
    finish(result, options, options.output)
    if result["held"] < result["cases"]:
        raise InputError(f"{result['cases'] - result['held']} cases did not hold; see the table")


def vllm(options: VllmBenchOptions) -> None:
    """Time vLLM with the plugin's controllers, with its own drafts and without: one request alone, and 64 at once."""
    from ..bench.workloads.vllm import as_table, bench_vllm

    console = begin()
    result = bench_vllm(options, console)
    console.print(as_table(result))
    finish(result, options, options.output)


def batch(options: BatchBenchOptions) -> None:
    """Time batches of 1 to 16 prompts, and continuous batching against fixed batches."""
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

    console = begin()
    result: dict[str, Any] = {}
    if options.shape is not None:
        decoder, prompts = SpeculativeDecoder(random_llama(options.shape), None), random_prompts(options.requests)
    else:
        decoder, prompts = load(options)
        result = bench_batch(decoder, prompts, options.sampling, options.repeats, console)
    result["continuous"] = bench_continuous(
        decoder,
        prompts,
        SamplingParams(options.temperature, options.top_k, options.top_p),
        console,
        requests=options.requests,
        running=options.running,
        lengths=(0,) if options.shape is not None else LENGTHS,
        repeats=options.repeats,
    )
    show_continuous(result["continuous"], console)
    finish(result, options, options.output)


def ngram(options: NgramBenchOptions) -> None:
    """Time n-gram drafts, a draft model, and the choice between them, on prompts that invite copying and on others."""
    from ..bench.workloads.ngram import as_table, bench_ngram

    console = begin()
    result = bench_ngram(options, console)
    console.print(as_table(result))
    finish(result, options, options.output)


def router(options: RouterBenchOptions) -> None:
    """Compare routers with single drafts, and make the tables of assistant selection on held-out prompts."""
    from ..bench.workloads.router.benchmark import bench_router
    from ..bench.workloads.router.report import as_tables

    console = begin()
    result = bench_router(options, console)
    for table in as_tables(result):
        console.print(table)
    finish(result, options, options.output)


def questions(options: QuestionsOptions) -> None:
    """Answer a workload's questions with and without drafts; report speed, perplexity and scores.

    Answers are also written in Spec-Bench's format. An interrupted run is continued.
    """
    from ..bench.workloads.questions import bench_questions
    from ..bench.workloads.questions_report import as_tables

    console = begin()
    result = bench_questions(options, console)
    for table in as_tables(result):
        console.print(table)
    finish(result, options)


def papers(options: PapersOptions, output: PapersOutputOptions) -> None:
    """Make the papers' tables with the papers' figures beside ours: Markdown, JSON and a plot for each paper.

    An interrupted run is continued.
    """
    import json

    from ..bench.papers.command import bench_papers, chosen

    chosen(output.paper, options)  # before anything is loaded
    console = begin(draws=True)
    result = bench_papers(output.paper, options, output.output, console)
    console.print(f"{output.output}: papers.json, papers-*.md, papers-*.png")
    print(json.dumps(result))
