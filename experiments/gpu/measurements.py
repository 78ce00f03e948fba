"""The parts that measure a :class:`.subject.Subject`: forwards, rounds, speed, profiles, long texts, stages."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from specpilot.controllers import MAX_DRAFT
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.core import TokenDistribution
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.random_source import RandomSource
from specpilot.models import CausalLM, Read
from specpilot.models.sampled import DraftedTokens, Sampled
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from transformers import PreTrainedModel

from . import stages
from .subject import PAIRS, Subject, milliseconds, reader, seconds


def text(length: int) -> list[int]:
    """Return ``length`` token ids, always the same ones."""
    return [(7 * i) % 1000 + 1 for i in range(length)]


PROMPT = text(128)
NEW = 128  # tokens of a text
SAMPLING = SamplingParams(1.0, 50)
PASSES = 2
FORWARDS = [(1, 1), (1, 2), (1, 4), (1, 8), (4, 1), (4, 4), (16, 1), (16, 4)]  # texts and tokens of each
TREES: dict[str, dict[str, Any]] = {
    "3x2x1": {"tree": (3, 2, 1), "verifier": "spec-infer"},
    "auto": {"tree": "auto", "length": "online-confidence", "cost": 0.2},
}
LENGTHS = (0, 4, 2, 1, 3, 6, 8)  # planned ones, by worth
RULES = ("cumulative-confidence:0.3", "entropy:0.5", "heuristic:5", "online-confidence:0.4")
COLUMNS = (2048, 8192)
ROOM = 64  # tokens that are reserved after a long prompt
TEXTS = 64
PROMPTS = range(70, 1500, 75)  # lengths
PROFILED = 5  # forwards
TOP = 25  # kernels
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")
Task = tuple[str, Callable[[Subject], Any]]


def tasks(part: str, subject_name: str, graphs: str) -> Iterator[Task]:
    """Yield the measurements of a part with their names, the most important ones first.

    Args:
        part: name of the part, such as ``steps`` or ``rounds``.
        subject_name: name of the pair's sizes.
        graphs: ``on``, ``compiled`` or ``off``; with ``off`` only the part ``steps`` has measurements.
    """
    kind = f"{subject_name}, graphs {graphs}"
    if graphs == "off" and part != "steps":
        return
    if part == "steps":
        yield f"steps: {kind}", steps
    if part == "profile":
        for tokens in (1, 8):
            yield f"profile: {kind}, {tokens} tokens", partial(kernels_of_forward, tokens=tokens)
    if part == "rounds" and subject_name in PAIRS:
        yield f"rounds: {kind}", rounds
    if part == "speed" and subject_name in PAIRS:
        for name, way in ways(graphs == "on"):
            yield f"speed: {kind}, {name}", way
    if part == "long":
        for columns in COLUMNS:
            for rows, tokens in ((1, 1), (1, 8), (TEXTS, 1)):
                name = f"long: {kind}, {columns} columns, {rows}x{tokens}"
                yield name, partial(long_forward, columns=columns, rows=rows, tokens=tokens)
        yield f"long: {kind}, captures", captures
        yield f"long: {kind}, prompts", prompts
    if part == "stages":
        for name, stage in stages.STAGES.items():
            yield f"stages: {kind}, {name}", stage
        yield f"stages: {kind}, reading", reading


def late_tasks(part: str, subject_name: str, graphs: str) -> Iterator[Task]:
    """Yield the measurements that take minutes, because transformers compiles its forward; run after all others.

    The arguments are those of :func:`tasks`.
    """
    if part == "speed" and graphs == "on" and subject_name in PAIRS:
        way = partial(timed_way, partial(transformers_way, cache_implementation="static"), 1)
        yield f"speed: {subject_name}, graphs {graphs}, transformers, static cache, compiled", way


def floor(device: torch.device) -> dict[str, float]:
    """Measure the read bandwidth of the memory in TB/s, and the microseconds of the launch of an eager kernel."""
    large = torch.ones(2**32 if device.type == "cuda" else 2**20, dtype=torch.bfloat16, device=device)
    read = large.numel() * 2 / milliseconds(device, lambda: large.sum(dtype=torch.float32)) / 1e9
    small = torch.zeros(1, device=device)
    launches = milliseconds(device, lambda: [small.add_(1) for _ in range(100)]) * 10
    return {"read TB/s": round(read, 6), "launch µs": round(launches, 2)}


def weight_bytes(model: PreTrainedModel) -> int:
    """Return the bytes of the weights that a forward reads: all weights except an embedding that is not tied."""
    embedding: Any = model.get_input_embeddings()
    head: Any = model.get_output_embeddings()
    unread = 0 if embedding.weight is head.weight else embedding.weight.nbytes
    return int(sum(parameter.nbytes for parameter in model.parameters()) - unread)


def repeated_forward(
    model: CausalLM, rows: int, tokens: int, prompt: Sequence[int] = PROMPT, room: int = NEW
) -> Callable[[], None]:
    """Return a function that runs the same forward at each call, and removes its tokens from the cache.

    Args:
        model: the model.
        rows: number of texts.
        tokens: number of tokens that the forward reads of each text.
        prompt: the prompt of every text.
        room: number of tokens that the cache has room for after the prompt.
    """
    cache = model.new_cache()
    for row in range(rows):
        model.begin(cache, row, prompt, room)
    for row in range(rows):
        model.forward(cache, [Read(row, list(prompt))])
    reads = [Read(row, text(tokens), tokens) for row in range(rows)]

    def forward() -> None:
        model.forward(cache, reads)
        for row in range(rows):
            cache.crop_text(row, len(prompt))

    return forward


def timed_forward(model: CausalLM, rows: int, tokens: int) -> float:
    """Return the milliseconds of a forward that reads ``tokens`` tokens of each of ``rows`` texts."""
    return milliseconds(model.device, repeated_forward(model, rows, tokens))


def draft_step(model: CausalLM) -> float:
    """Return the milliseconds of a draft step: a forward of one token, its distribution, and a draw on the host."""
    cache, rng = model.new_cache(), RandomSource(0)
    model.begin(cache, 0, PROMPT, NEW)
    model.forward(cache, [Read(0, PROMPT)])

    def draw() -> None:
        logits, _ = model.forward(cache, [Read(0, [1])])
        TokenDistribution.from_logits(SAMPLING, logits).sample(0, rng)
        cache.crop_text(0, len(PROMPT))

    return milliseconds(model.device, draw)


@torch.inference_mode()
def planned_step(model: CausalLM) -> float | None:
    """Return the milliseconds of a draft step in a chain of eight tokens that are drawn on the device.

    None if the model cannot draw them there.
    """
    cache, count = model.new_cache(), 8
    model.begin(cache, 0, PROMPT, NEW)
    model.forward(cache, [Read(0, PROMPT)])
    sampled = Sampled(SAMPLING, model.vocab_size)

    def draft() -> DraftedTokens | None:
        drafted = model.draft_unread(cache, [Read(0, [1])], [count], [[0.5] * count], sampled, MAX_DRAFT)
        cache.crop_text(0, len(PROMPT))
        return drafted

    return None if draft() is None else round(milliseconds(model.device, draft) / count, 4)


@torch.inference_mode()
def steps(subject: Subject) -> dict[str, Any]:
    """Measure forwards of several numbers of texts and tokens, and draft steps, in milliseconds.

    If the bandwidth is known, the result also has the share of it that a forward of one token reaches.
    """
    model = reader(subject.target, subject.graphs)
    times: dict[str, Any] = {}
    first = seconds(subject.device, lambda: times.update({"1x1": timed_forward(model, 1, 1)}))
    times = {"first seconds": round(first, 1)} | times
    times |= {f"{rows}x{n}": timed_forward(model, rows, n) for rows, n in FORWARDS if (rows, n) != (1, 1)}
    times |= {"draft step": draft_step(model), "planned step": planned_step(model)}
    if subject.bandwidth is not None:
        share = weight_bytes(subject.target) / (times["1x1"] * subject.bandwidth * 1e9)
        times["share of the floor"] = round(share, 3)
    return times


def rounds(subject: Subject) -> dict[str, Any]:
    """Measure rounds of K drafted tokens and their parts in milliseconds, with launches and reads by the host."""
    target, draft = (reader(model, subject.graphs) for model in (subject.target, subject.draft))
    with torch.inference_mode():
        verification = {n: timed_forward(target, 1, n) for n in (1, 2, 3, 5, 9)}
        single, planned = draft_step(draft), planned_step(draft)
    drafting = planned or single
    result: dict[str, Any] = {"draft step": single, "planned step": planned, "verification": verification}
    decoder = subject.decoder
    for k in (1, 2, 4, 8):
        decode(decoder, length=k)
        outputs = [decode(decoder, length=k) for _ in range(PASSES)]
        round_milliseconds = median(output.stats.seconds / max(1, len(output.rounds) - 1) for output in outputs) * 1e3
        stats = outputs[0].stats
        result[f"K={k}"] = {
            "ms": round(round_milliseconds, 3),
            "to its parts": round(round_milliseconds / (k * drafting + verification[k + 1]), 3),
            "acceptance": round(stats.n_accepted / max(1, stats.n_drafted), 3),
        }
    result["K=4"] |= per_round(decoder, 1, length=4)
    for texts in (1, 4, 16):
        result[f"confidence, {texts} texts"] = per_round(decoder, texts, length="confidence:0.4")
    return result


def per_round(decoder: SpeculativeDecoder, texts: int, **options: Any) -> dict[str, float]:
    """Return the numbers of kernel launches, replayed graphs and reads by the host of a round.

    Args:
        decoder: the decoder.
        texts: number of texts that share the round.
        options: keywords of ``generate``.
    """
    decode(decoder, [PROMPT] * texts, **options)  # captures the graphs
    with profiler() as profiled:
        outputs = decode(decoder, [PROMPT] * texts, max_new_tokens=min(16, NEW), **options)
    rounds = max(len(output.rounds) for output in outputs)
    counts = {event.key: event.count / rounds for event in profiled.key_averages()}
    return {
        name: round(sum(counts.get(key, 0) for key in keys), 1)
        for name, keys in {
            "launches": LAUNCHES,
            "graphs": ("cudaGraphLaunch",),
            "reads": ("Memcpy DtoH (Device -> Pageable)", "Memcpy DtoH (Device -> Pinned)"),
        }.items()
    }


def profiler() -> Any:
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * torch.cuda.is_available()]
    return profile(activities=activities)


def decode(decoder: SpeculativeDecoder, prompts: Any = PROMPT, **options: Any) -> Any:
    return decoder.generate(prompts, **{"max_new_tokens": NEW, "temperature": 1.0, "top_k": 50, "seed": 1} | options)


@torch.inference_mode()
def kernels_of_forward(subject: Subject, tokens: int) -> dict[str, Any]:
    """Return the kernels of a forward that reads ``tokens`` tokens of one text, ordered by their time.

    With CUDA graphs the forward is a replay. On a CPU the operators are counted instead.
    """
    forward = repeated_forward(reader(subject.target, subject.graphs), 1, tokens)
    wall = milliseconds(subject.device, forward)
    with profiler() as profiled:
        for _ in range(PROFILED):
            forward()
    cuda = subject.device.type == "cuda"
    kind = DeviceType.CUDA if cuda else DeviceType.CPU
    counts: dict[str, tuple[float, float]] = {}
    for event in profiled.key_averages():
        time = event.self_device_time_total if cuda else event.self_cpu_time_total
        if event.device_type == kind and event.count:
            counts[event.key] = event.count / PROFILED, time / PROFILED
    order = sorted(counts, key=lambda key: -counts[key][1])
    layers = subject.target.config.num_hidden_layers
    computing = {key: count for key, (count, _) in counts.items() if not key.startswith(("Memcpy", "Memset"))}
    return {
        "ms": wall,
        "µs": round(sum(time for _, time in counts.values()), 1),
        "kernels": round(sum(computing.values()), 1),
        "kernels a layer": sum(int(count // layers) for count in computing.values()),
        "top": [[key[:160], round(counts[key][0], 1), round(counts[key][1], 1)] for key in order[:TOP]],
    }


def ways(beside_transformers: bool) -> Iterator[Task]:
    """Yield measurements of the speed of decoding in several ways, the most important ones first.

    Args:
        beside_transformers: whether transformers' ``generate`` is also measured.
    """

    def specpilot_task(length: Any, texts: int = 1) -> Task:
        name = f"ours, {'' if isinstance(length, str) else 'K='}{length}"
        return name + f", {texts} texts" * (texts > 1), partial(timed_way, partial(specpilot_way, length=length), texts)

    def transformers_tasks(name: str, texts: int = 1, assisted: bool = False, **options: Any) -> Iterator[Task]:
        if beside_transformers:
            way = partial(transformers_way, assisted=assisted, **options)
            # What is compiled or captured depends on the length; eager forwards need but their libraries.
            timed = partial(timed_way, way, texts, warm=None if options else 8)
            yield f"transformers{name}" + f", {texts} texts" * (texts > 1), timed

    yield specpilot_task(0)
    yield from transformers_tasks("")
    yield specpilot_task(4)
    yield specpilot_task(2)
    yield from transformers_tasks(", assisted", assisted=True)
    yield specpilot_task("confidence:0.4")
    for texts in (4, 16):
        yield specpilot_task(0, texts)
        yield specpilot_task(4, texts)
        yield from transformers_tasks("", texts)
    for tree, options in TREES.items():
        yield f"ours, tree {tree}", partial(timed_way, partial(tree_way, **options), 1)
    for length in (*LENGTHS, *RULES):
        if length not in (0, 2, 4):
            yield specpilot_task(length)
    yield from transformers_tasks(", static cache", cache_implementation="static", disable_compile=True)


Way = Callable[[Subject, int, int], Any]  # of the texts and the tokens of each


def timed_way(way: Way, texts: int, subject: Subject, warm: int | None = None) -> dict[str, Any]:
    """Measure the tokens per second of all texts together, as the median over passes.

    Args:
        way: decodes the texts.
        texts: number of texts.
        subject: the pair.
        warm: number of tokens of the texts that are decoded before the measurement. Default: as many as measured.
    """
    way(subject, texts, min(warm or NEW, NEW))
    passes = [seconds(subject.device, lambda: way(subject, texts, NEW)) for _ in range(PASSES)]
    return {"tokens/s": round(texts * NEW / median(passes), 1), "passes": [round(duration, 3) for duration in passes]}


def specpilot_way(subject: Subject, texts: int, new: int, *, length: Any) -> None:
    decode(subject.decoder, [PROMPT] * texts, length=length, max_new_tokens=new)


def tree_way(subject: Subject, texts: int, new: int, **options: Any) -> None:
    decode(subject.decoder_with(**options), [PROMPT] * texts, max_new_tokens=new)


def transformers_way(subject: Subject, texts: int, new: int, *, assisted: bool = False, **options: Any) -> None:
    model: Any = subject.target
    ids = torch.tensor([PROMPT] * texts, device=subject.device)
    if assisted:
        options["assistant_model"] = subject.draft
    model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=50, max_new_tokens=new, min_new_tokens=new,
        pad_token_id=0, **options,
    )  # fmt: skip


@torch.inference_mode()
def long_forward(subject: Subject, columns: int, rows: int, tokens: int) -> dict[str, float]:
    """Measure the milliseconds of a forward after long prompts.

    Args:
        subject: the pair.
        columns: number of columns of the cache, which the prompt and ``ROOM`` tokens after it fill.
        rows: number of texts.
        tokens: number of tokens that the forward reads of each text.
    """
    model = reader(subject.target, subject.graphs)
    forward = repeated_forward(model, rows, tokens, text(columns - ROOM - 1), ROOM)
    return {"ms": milliseconds(subject.device, forward)}


@torch.inference_mode()
def captures(subject: Subject) -> dict[str, Any]:
    """Measure the first calls of forwards in milliseconds, one of which captures a graph, and the MiB it reserves."""
    model = reader(subject.target, subject.graphs)
    result: dict[str, Any] = {}
    for rows, tokens in ((1, 1), (1, 8), (16, 1), (16, 4)):
        forward = repeated_forward(model, rows, tokens)
        clear(subject.device)
        before, times = reserved(subject.device), []
        for _ in range(6):
            times.append(round(seconds(subject.device, forward) * 1e3, 2))
        clear(subject.device)
        result[f"{rows}x{tokens}"] = {"ms": times, "MiB": round((reserved(subject.device) - before) / 2**20, 1)}
    return result


def reserved(device: torch.device) -> int:
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0


def clear(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


@torch.inference_mode()
def prompts(subject: Subject) -> dict[int, list[float]]:
    """Measure the milliseconds in which prompts of several lengths are read for the first and for the second time."""
    model = reader(subject.target, subject.graphs)
    cache = model.new_cache()
    model.begin(cache, 0, [1] * max(PROMPTS), NEW)
    model.forward(cache, [Read(0, PROMPT)])  # the buffers
    result: dict[int, list[float]] = {}
    for length in PROMPTS:
        reads = [Read(0, text(length))]
        result[length] = []
        for _ in range(2):
            cache.crop_text(0, 0)
            spent = seconds(subject.device, partial(model.forward, cache, reads))
            result[length].append(round(spent * 1e3, 3))
    return result


@torch.inference_mode()
def reading(subject: Subject) -> dict[str, float]:
    """Measure the tokens per second at which the target reads a text of 1,024 tokens in one forward."""
    model = reader(subject.target, subject.graphs)
    return {"tokens/s": round(1024 / timed_forward(model, 1, 1024) * 1e3)}
