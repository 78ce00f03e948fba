"""`specpilot bench` for single parts: forwards, costs, memory, data generation, verification rules."""

from __future__ import annotations

from ..options import (
    CostBenchOptions,
    ForwardBenchOptions,
    MemoryBenchOptions,
    OtmBenchOptions,
    ProfileBenchOptions,
    RayBenchOptions,
    RolloutsBenchOptions,
    TrainScaleBenchOptions,
    WorkloadOptions,
)
from .measuring import begin, finish


def rollouts(options: RolloutsBenchOptions) -> None:
    """Time batched data generation against a batch-1 loop of transformers' generate."""
    from ..bench.micro.rollouts import bench_rollouts

    finish(bench_rollouts(options, options.repeats, begin()), options)


def ray(options: RayBenchOptions) -> None:
    """Make data on a Ray cluster of two nodes while workers, nodes and the driver are killed; compare the bytes."""
    from ..bench.micro.ray import bench_ray

    finish(bench_ray(options, begin()), options, options.output)


def forward(options: ForwardBenchOptions) -> None:
    """Time one forward of target and draft by number of tokens, on the lean path and that of transformers."""
    from ..bench.micro.forward import as_table, bench_forward

    console = begin()
    result = bench_forward(options, console)
    console.print(as_table(result))
    finish(result, options)


def cost(options: CostBenchOptions) -> None:
    """Measure the costs of drafting and verifying a token on this machine, for controllers that use them."""
    from ..bench.load import load
    from ..bench.micro.cost import CHECK_COST, bench_cost, trained_predictor
    from ..controllers.length import takes_cost
    from ..infer.batch_costs import batch_costs

    console = begin()
    decoder, prompts = load(options)
    controllers = {
        name: decoder.load_length(name, cost=CHECK_COST if takes_cost(name) else None) for name in options.check or ()
    }
    predictor = None if options.judge is None else trained_predictor(decoder, options.judge)
    result = bench_cost(
        decoder, prompts, console,
        repeats=options.repeats, sampling=options.sampling, predictor=predictor, check=controllers,
    )  # fmt: skip
    if options.batch is not None:
        result["batch"] = batch_costs(decoder, sorted({*options.batch})).as_dict()
    for warning in result["warnings"]:
        console.print(f"warning: {warning}")
    for name in controllers:
        ratio = result["loop"]["measured_over_fitted"][name]
        console.print(f"{name}: {'nothing was decoded' if ratio is None else f'{ratio:.3f} of the predicted time'}")
    finish(result, options, options.output)


def memory(options: MemoryBenchOptions) -> None:
    """Measure the process's memory over many requests of mixed kinds and random lengths."""
    from ..bench.load import load
    from ..bench.micro.memory import bench_memory

    console = begin()
    decoder, prompts = load(options)
    finish(bench_memory(decoder, prompts, options.sampling, options.requests, console), options)


def profile(options: ProfileBenchOptions) -> None:
    """Measure the share of the decoder's wall time that each part takes."""
    from ..bench.load import load
    from ..bench.micro.profile import profile as profile_decoder
    from ..bench.micro.profile import show_profile
    from ..controllers.length import Fixed

    console = begin()
    decoder, prompts = load(options)
    result = profile_decoder(decoder, prompts, options.sampling | {"length": Fixed(options.length)})
    show_profile(result, console)
    finish(result, options)


def train_scale(options: TrainScaleBenchOptions) -> None:
    """Measure the memory of training a lag-free head, by the number of examples on disk."""
    from ..bench.micro.train_scale import as_table, bench_train_scale

    console = begin()
    result = bench_train_scale(options.examples, options.hidden_size, options.width, options.folder, console)
    console.print(as_table(result))
    finish(result, options, options.output)


def otm(options: OtmBenchOptions) -> None:
    """Compute acceptance of one of k proposals: optimal transport, K-SEQ, closed forms (SpecTr, Figures 1 to 3, 5)."""
    from ..bench.micro.otm import bench_otm, plot_otm
    from ..infer.decoder import SpeculativeDecoder

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
    from ..bench.load import load
    from ..bench.micro.spectr import as_table, bench_spectr

    console = begin()
    decoder, prompts = load(options)
    result = bench_spectr(decoder, prompts, options.sampling, console)
    console.print(as_table(result))
    finish(result, options)
