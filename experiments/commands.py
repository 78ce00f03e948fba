"""`python -m experiments`: the studies and tables."""

from __future__ import annotations

from typing import Any

from specpilot.commands.measuring import begin, finish
from specpilot.common.options import OutputFileOptions
from specpilot.compare.options import AblationOptions, ForwardBenchOptions, WorkloadOptions

from .options import (
    BatchBenchOptions,
    ClockBenchOptions,
    DecodeBenchOptions,
    MemoryBenchOptions,
    MixingOptions,
    NgramBenchOptions,
    OtmBenchOptions,
    PapersOptions,
    PapersOutputOptions,
    ProfileBenchOptions,
    QuestionsOptions,
    RayBenchOptions,
    RolloutsBenchOptions,
    RouterBenchOptions,
    SweepOptions,
    TrainScaleBenchOptions,
    TreeStudyOptions,
)


def decode(options: DecodeBenchOptions) -> None:
    """Time the decoder against transformers' generate and assisted generation on the same prompts and pair."""
    from specpilot.compare.load import load
    from specpilot.compare.plots import plot_rates
    from specpilot.controllers.sampling import SamplingParams

    from .workloads.decode import as_table, bench_decode

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
    from .workloads.clock import as_table, bench_clock

    console = begin()
    result = bench_clock(options, console)
    console.print(as_table(result))
    finish(result, options, options.output)


def batch(options: BatchBenchOptions) -> None:
    """Time batches of 1 to 16 prompts, and continuous batching against fixed batches."""
    from specpilot.compare.load import load
    from specpilot.controllers.sampling import SamplingParams
    from specpilot.infer.decoder import SpeculativeDecoder

    from .workloads.batch import (
        LENGTHS,
        bench_batch,
        bench_continuous,
        random_llama,
        random_prompts,
        show_continuous,
    )

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
    from .workloads.ngram import as_table, bench_ngram

    console = begin()
    result = bench_ngram(options, console)
    console.print(as_table(result))
    finish(result, options, options.output)


def router(options: RouterBenchOptions) -> None:
    """Compare routers with single drafts, and make the tables of assistant selection on held-out prompts."""
    from .workloads.router.benchmark import bench_router
    from .workloads.router.report import as_tables

    console = begin()
    result = bench_router(options, console)
    for table in as_tables(result):
        console.print(table)
    finish(result, options, options.output)


def questions(options: QuestionsOptions) -> None:
    """Answer a workload's questions with and without drafts; report speed, perplexity and scores.

    Answers are also written in Spec-Bench's format. An interrupted run is continued.
    """
    from .workloads.questions import bench_questions
    from .workloads.questions_report import as_tables

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

    from .papers.command import bench_papers, chosen

    chosen(output.paper, options)  # before anything is loaded
    console = begin(draws=True)
    result = bench_papers(output.paper, options, output.output, console)
    console.print(f"{output.output}: papers.json, papers-*.md, papers-*.png")
    print(json.dumps(result))


def rollouts(options: RolloutsBenchOptions) -> None:
    """Time batched data generation against a batch-1 loop of transformers' generate."""
    from .micro.rollouts import bench_rollouts

    finish(bench_rollouts(options, options.repeats, begin()), options)


def ray(options: RayBenchOptions) -> None:
    """Make data on a Ray cluster of two nodes while workers, nodes and the driver are killed; compare the bytes."""
    from .micro.ray import bench_ray

    finish(bench_ray(options, begin()), options, options.output)


def forward(options: ForwardBenchOptions) -> None:
    """Time one forward of target and draft by number of tokens, on the lean path and that of transformers."""
    from specpilot.compare.forward import as_table, bench_forward

    console = begin()
    result = bench_forward(options, console)
    console.print(as_table(result))
    finish(result, options)


def memory(options: MemoryBenchOptions) -> None:
    """Measure the process's memory over many requests of mixed kinds and random lengths."""
    from specpilot.compare.load import load
    from tests.soak.memory import bench_memory

    console = begin()
    decoder, prompts = load(options)
    finish(bench_memory(decoder, prompts, options.sampling, options.requests, console), options)


def profile(options: ProfileBenchOptions) -> None:
    """Measure the share of the decoder's wall time that each part takes."""
    from specpilot.compare.load import load
    from specpilot.controllers.length import Fixed

    from .micro.profile import profile as profile_decoder
    from .micro.profile import show_profile

    console = begin()
    decoder, prompts = load(options)
    result = profile_decoder(decoder, prompts, options.sampling | {"length": Fixed(options.length)})
    show_profile(result, console)
    finish(result, options)


def train_scale(options: TrainScaleBenchOptions) -> None:
    """Measure the memory of training a lag-free head, by the number of examples on disk."""
    from .micro.train_scale import as_table, bench_train_scale

    console = begin()
    result = bench_train_scale(options.examples, options.hidden_size, options.width, options.folder, console)
    console.print(as_table(result))
    finish(result, options, options.output)


def otm(options: OtmBenchOptions) -> None:
    """Compute acceptance of one of k proposals: optimal transport, K-SEQ, closed forms (SpecTr, Figures 1 to 3, 5)."""
    from specpilot.infer.decoder import SpeculativeDecoder

    from .micro.otm import bench_otm, plot_otm

    begin(draws=True)
    decoder = SpeculativeDecoder.from_pretrained(
        options.target, options.draft,
        dtype=options.dtype, device=options.device, trust_remote_code=options.trust_remote_code,
    )  # fmt: skip
    result = bench_otm(decoder, options.prompt) | {"pair": f"{options.target} + {options.draft}"}
    plot_otm(result, options.output)
    finish(result | {"prompt": options.prompt, "picture": str(options.output)}, options)


def spectr(options: WorkloadOptions) -> None:
    """Measure tokens per target forward by number and length of drafts (SpecTr, Table 2)."""
    from specpilot.compare.load import load

    from .micro.spectr import as_table, bench_spectr

    console = begin()
    decoder, prompts = load(options)
    result = bench_spectr(decoder, prompts, options.sampling, console)
    console.print(as_table(result))
    finish(result, options)


def stopping(options: OutputFileOptions) -> None:
    """Compare stopping rules with the optimal policy, computed exactly on a Markov model of acceptance."""
    from .studies.stopping import as_table, bench_stopping

    console = begin()
    result = bench_stopping()
    console.print(as_table(result))
    finish(result, options, options.output)


def ablation(options: AblationOptions) -> None:
    """Replay stopping rules and trained controllers over held-out texts, and compare them by eq. 2.3."""
    from specpilot.compare.ablation import run_ablation
    from specpilot.compare.ablation_tables import as_tables

    console = begin()
    result = run_ablation(options, options.folder, console)
    for table in as_tables(result):
        console.print(table)
    finish(result, options, options.output)


def trees(options: TreeStudyOptions) -> None:
    """Compare rate-optimal trees with the best chain controller, on ideal machines and a measured one."""
    from .studies.trees import as_tables, bench_trees

    console = begin()
    result = bench_trees(options, console)
    for table in as_tables(result):
        console.print(table)
    finish(result, options, options.output)


def sweep(options: SweepOptions) -> None:
    """Train SpecDec++'s grid of heads and compare it with fixed lengths (Tables 1 to 3, Figure 4)."""
    from specpilot.compare.plots import plot_sweep

    from .studies.sweep import run_sweep
    from .studies.sweep_tables import as_tables

    console = begin(draws=True)
    result = run_sweep(options, options.folder, options.cost, console)
    for table in as_tables(result):
        console.print(table)
    picture = options.plot or options.folder / "pareto.png"
    plot_sweep(result["figure_4"], picture, f"{options.target} + {options.draft}, {result['judged_prompts']} prompts")
    console.print(f"{picture}: the plot")
    finish(result, options, options.output)


def mixing(options: MixingOptions) -> None:
    """Train heads with different shares of target tokens, on datasets of different acceptance (SpecDec++ §3.3)."""
    from specpilot.compare.plots import plot_mixing

    from .studies.mixing import as_table, run_mixing

    console = begin(draws=True)
    result = run_mixing(options, options.folder, console)
    console.print(as_table(result))
    picture = options.plot or options.folder / "mixing.png"
    plot_mixing(result["rows"], picture)
    console.print(f"{picture}: the plot")
    finish(result, options, options.output)
