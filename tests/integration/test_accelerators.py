"""An accelerator's code on a CPU: masks, forwards of fixed shapes, chains drawn and verified where the models are."""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.common.errors import InputError
from specpilot.controllers.acceptance.lag_free_head import LagFreeHead
from specpilot.controllers.acceptance.ngram_index import NgramIndex
from specpilot.controllers.acceptance.specdec_head import AcceptanceHead
from specpilot.controllers.length import (
    AcceptanceLength,
    Confidence,
    Entropy,
    Fallback,
    Fixed,
    HeadPredictor,
    LagFreePredictor,
    RateOptimal,
    Step,
    parse_rule,
)
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.core import Generation, Request, read_together
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.random_source import RandomSource
from specpilot.models import CausalLM, RaggedKVCache, Read, TreeMask, ancestors_of
from specpilot.models.forwards import FixedShapes, Padded
from specpilot.models.fused_layers import FusedLayers
from specpilot.models.masks import CHUNKED, FULL, SLIDING, MaskTypes, layer_masks, place_tokens
from specpilot.models.model_snapshot import ModelSnapshot
from specpilot.models.static_forward import StaticForward
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from ..helpers.architectures import MAKERS
from ..helpers.drafts import options_of, seeded, state_draft, trimmed
from ..helpers.enumeration import PROMPT, assert_same, decoder_distribution, distribution_by_steps
from ..helpers.greedy import each, pair_of
from ..helpers.thoroughness import THOROUGH
from ..helpers.tiny import make

FUSED = {"llama", "mistral-full", "qwen2-full", "qwen3-full"}  # whose forward is another
GROUPED = {"gemma3", "mistral", "mixtral", "olmo2", "phi3", "qwen2", "qwen3"}  # whose layers are replaced
SEVERAL = [name for name in MAKERS if name != "phi3-longrope"]  # read again when the factors change


def of_fixed_shapes(model: PreTrainedModel) -> CausalLM:
    """Return a model with forwards of fixed shapes, as on a GPU, but without graphs."""
    wrapped = CausalLM(model)
    wrapped.packed = model
    wrapped.strategy = FixedShapes(
        wrapped, "a test asks for it", FusedLayers(model) if FusedLayers.fits(model) else None
    )
    wrapped.snapshot = ModelSnapshot(model, hooks=True)
    return wrapped


def operations(seed: int) -> Iterator[tuple[str, Any]]:
    """Return random operations: texts join and leave, chains and trees are read, paths are kept, and buffers grow."""
    rng = random.Random(seed)
    lengths: dict[int, int] = {}
    for turn in range(24):
        if not lengths or (len(lengths) < 4 and rng.random() < 0.3):
            yield "add", (turn, rng.choice([4, 30]))
            lengths[turn] = rng.randrange(1, 40)
            yield "read", [Read(turn, [rng.randrange(1, 60) for _ in range(lengths[turn])])]
        chosen = rng.sample(sorted(lengths), rng.randrange(1, len(lengths) + 1))
        reads = []
        for text in chosen:
            parents = [rng.randrange(-1, i) for i in range(rng.randrange(1, 9))]
            trunk = [rng.randrange(1, 60) for _ in range(rng.randrange(1, 3))]
            tree = rng.random() < 0.5
            mask = TreeMask.from_parents(lengths[text] + len(trunk), parents) if tree else None
            tokens = [*trunk, *(rng.randrange(1, 60) for _ in parents)]
            reads.append(Read(text, tokens, rng.randrange(1, len(tokens) + 1), mask))
        yield "read", reads
        for read in reads:
            kept = lengths[read.text] + len(read.tokens) - (0 if read.tree is None else len(read.tree.above))
            if read.tree is None:
                kept = rng.randrange(lengths[read.text] + 1, kept + 1)
                yield "crop", (read.text, kept)
            else:
                path = rng.choice(read.tree.paths(kept))
                yield "keep", (read.text, kept, path)
                kept += len(path)
            lengths[read.text] = kept
        if len(lengths) > 1 and rng.random() < 0.2:
            yield "remove", (text := rng.choice(sorted(lengths)),)
            del lengths[text]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@each(SEVERAL)
@torch.inference_mode()
def test_results_are_those_of_other_forwards(name: str, seed: int) -> None:
    static, plain = of_fixed_shapes(pair_of(name)[0]), CausalLM(pair_of(name)[0], graphs="off")
    if not plain.together:
        pytest.skip("its texts do not share a forward")
    caches = static.new_cache(), plain.new_cache()
    read = 0
    for operation, arguments in operations(seed):
        if operation == "read":
            result, expected = (model.forward(c, arguments) for model, c in zip((static, plain), caches, strict=True))
            for actual, reference in zip(result, expected, strict=True):
                finite = reference.isfinite()
                torch.testing.assert_close(actual[finite], reference[finite], rtol=1e-3, atol=1e-3)
            read += 1
            continue
        for key_cache in caches:
            {"add": key_cache.add, "crop": key_cache.crop_text, "keep": key_cache.keep, "remove": key_cache.remove}[
                operation
            ](*arguments)
    assert isinstance(static.strategy, FixedShapes)
    assert static.strategy.fused is not None or name not in FUSED
    assert static.strategy.fixed is not None or name not in GROUPED
    forwards = caches[0].forwards.values()
    assert read > len(forwards) > 2
    assert all(isinstance(forward, StaticForward) for forward in forwards)


@settings(max_examples=150)
@given(data=st.data())
def test_masks_and_positions_are_those_of_each_tokens_own_text(data: st.DataObject) -> None:
    """Rows have several lengths, and chains, trees after new tokens, or trees whose first levels are cached."""
    window, chunk = data.draw(st.integers(1, 5)), data.draw(st.integers(2, 5))
    cache = RaggedKVCache(0)
    reads: list[Read] = []
    paths: dict[int, list[list[int]]] = {}  # by row, the columns of each new token's own text, its own last
    for row in range(data.draw(st.integers(1, 4))):
        past, count = data.draw(st.integers(0, 6)), data.draw(st.integers(1, 5))
        cache.add(row, 0)
        cache.lengths[row] = past
        parents = data.draw(st.sampled_from([[], [-1, -1, 0], [-1, 0, 0, 1], [-1, -1, 1, 2, 2]]))
        cached = data.draw(st.integers(0, len(parents) - 1)) if parents else 0
        trunk = past + count
        if cached:  # the tree's first nodes have been read before: what is new are the others alone
            trunk, count = past, 0
            cache.lengths[row] = past + cached
        above = [[trunk + a for a in ancestors_of(parents, node)] for node in range(len(parents))]
        visible_columns = [[*range(past + i + 1)] for i in range(count)]
        visible_columns += [[*range(trunk), *above[node], trunk + node] for node in range(cached, len(parents))]
        paths[row] = visible_columns
        tree = TreeMask(trunk, above[cached:]) if parents else None
        reads.append(Read(row, [0] * len(visible_columns), 1, tree))
    plan = cache.plan_forward(reads)
    types = MaskTypes({FULL: None, SLIDING: window, CHUNKED: chunk}, True)
    tokens = place_tokens(plan, reads, cache)
    masks = layer_masks(types, tokens, torch.arange(plan.width))
    for row, visible_columns in paths.items():
        for place, path in enumerate(visible_columns, plan.new - len(visible_columns)):
            last = len(path) - 1
            assert tokens[row, place, 1] == last
            expected = {
                FULL: path,
                SLIDING: path[max(0, last - window + 1) :],
                CHUNKED: [column for position, column in enumerate(path) if position // chunk == last // chunk],
            }
            for name, columns in expected.items():
                assert masks[name][row, place].nonzero().squeeze(1).tolist() == sorted(columns), name
        for place in range(plan.new - len(visible_columns)):  # padding attends to something, or attention would be NaN
            assert all(mask[row, place].any() for mask in masks.values())


# Chains drawn and verified where the models are; the signals of their tokens


READS = {
    getattr(torch.Tensor, name)
    for name in ("tolist", "item", "cpu", "nonzero", "__float__", "__int__", "__bool__", "__index__", "masked_select")
}
STOPS = {3, 8}
PROMPTS = [[1, 2, 3], [4, 5], [6, 1, 6, 1, 6]]


def lag_free() -> LagFreePredictor:
    return LagFreePredictor(
        seeded(lambda: LagFreeHead(32, 4)), seeded(lambda: torch.nn.Embedding(64, 32)).weight, mean=0.6
    )


COST = CostModel(0.1, 1.0, 0.0)
PLANNED = {"4": "4", "heuristic": "heuristic:3", "adaptive": "adaptive-length:2"}
ASKING: dict[str, Callable[[], Any]] = {
    "confidence": lambda: Confidence(0.02),
    "entropy": lambda: Entropy(-0.5),
    "fallback": lambda: Fallback(0.05),
    "lag-free": lambda: RateOptimal(lag_free(), COST),
    "head": lambda: AcceptanceLength(HeadPredictor(seeded(lambda: AcceptanceHead(32, 1))), 0.7),
}
DRAFTS: dict[str, Callable[[PreTrainedModel], PreTrainedModel]] = {
    "whole": lambda target: make(seed=1, sharpness=3.0),
    "trimmed": lambda target: trimmed(make(seed=1, sharpness=3.0), [1, 3, 4, 8, 9, 20, 30]),
    "states": state_draft,
}
SAMPLINGS = [
    {"temperature": 1.0, "top_k": 5}, {"temperature": 0.7, "top_k": None}, {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 0.0},
]  # fmt: skip


class Reads(TorchFunctionMode):
    """Counts the operations for which a host waits for an accelerator."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        masks = func is torch.Tensor.__getitem__ and _has_mask(args[1])
        self.count += func in READS or func is torch.nonzero or masks
        return func(*args, **(kwargs or {}))


class OnDevice(torch.Tensor):
    """A tensor that counts reads by the host of its values and of results computed from it.

    Copies in the host's memory are not counted.
    """

    count = 0

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        OnDevice.count += func in READS or func is torch.nonzero
        result = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[arg-type]
        return result.as_subclass(torch.Tensor) if func is torch.Tensor.cpu else result


def mark_results(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the host's reads of the results of the model's forwards."""
    forward = model.forward

    def marked(*arguments: Any) -> Any:
        return tuple(result.as_subclass(OnDevice) for result in forward(*arguments))

    monkeypatch.setattr(model, "forward", marked)


def _has_mask(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, torch.Tensor) and (part.dtype == torch.bool or part.ndim == 0) for part in parts)


@cache
def models(draft: str, way: str) -> tuple[CausalLM, CausalLM]:
    """Return a target and a draft as on a CPU, as on an accelerator, or as on an accelerator with fixed shapes."""
    target = make(seed=1, sharpness=4.0)
    pair = target, DRAFTS[draft](target)
    target, small = (of_fixed_shapes(model) if way == "static" else CausalLM(model) for model in pair)
    for model in (target, small):
        if way == "drawn":
            model.strategy = Padded("a test asks for it")
        model.reads_drawn = way != "host"
    return target, small


def decoder(length: str, draft: str = "whole", way: str = "drawn", **options: Any) -> SpeculativeDecoder:
    """Return a decoder with the :func:`models` of this draft and device."""
    rule = parse_rule(PLANNED[length]) if length in PLANNED else ASKING[length]()
    return SpeculativeDecoder(*models(draft, way), length=rule, **{"verifier": "token-wise"} | options)


def rounds(outputs: list[Generation]) -> tuple[Any, list[float]]:
    """Return the texts and traces of outputs, and their ratios."""
    traces = [[(r.drafted, r.path, r.emitted) for r in output.rounds] for output in outputs]
    ratios = [ratio for output in outputs for r in output.rounds for ratio in r.ratios]
    return ([output.tokens for output in outputs], traces), ratios


@pytest.mark.parametrize("way", ["2", "block", "spec-infer 2x1"])
def test_the_law_of_forwards_of_fixed_shapes_is_the_targets(way: str) -> None:
    """Every outcome is enumerated. The host draws here; that the device draws the same is tested below, by seed.

    Of three tokens the models keep the two most probable: not always the same two, and mostly those of the other model,
    without which no second child of a tree is accepted.
    """
    sizes, sampling = {"layers": 1, "hidden": 8, "context": 32, "vocab": 3}, SamplingParams(1.0, 2)
    target, draft = (of_fixed_shapes(make(seed=seed, sharpness=6.0, **sizes).double()) for seed in (24, 1024))
    target.reads_drawn = draft.reads_drawn = False
    pair_decoder = SpeculativeDecoder(target, draft, **options_of(way))
    pair_decoder.generate(PROMPT, max_new_tokens=1)  # makes the buffers, before which prompts are read in another way
    assert_same(decoder_distribution(pair_decoder, sampling, 4), distribution_by_steps(target, sampling))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["llama", "qwen2-full", "qwen3-full"])
@torch.inference_mode()
def test_compiled_parts_of_layers_compute_the_same(layout: str) -> None:
    model = pair_of(layout)[0]
    readers = [of_fixed_shapes(model), of_fixed_shapes(model)]
    readers[1].strategy = FixedShapes(readers[1], "a test asks for it", FusedLayers(model, compiled=True))
    caches = [reader.new_cache() for reader in readers]
    reads = [[Read(0, [1, 2, 3])], [Read(1, [3])], [Read(0, [4])], [Read(0, [5, 6], 2)], [Read(0, [7]), Read(1, [8])]]
    for texts in caches:
        texts.add(0, 20)
        texts.add(1, 20)
    for together in reads:
        plain, compiled = (reader.forward(c, together)[0] for reader, c in zip(readers, caches, strict=True))
        torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-4)


SAME_ROUNDS = [
    ("4", "whole", "static"), ("4", "whole", "drawn"), ("4", "trimmed", "static"),
    ("confidence", "whole", "static"), ("lag-free", "whole", "static"), ("lag-free", "states", "static"),
]  # fmt: skip
MORE_SAME_ROUNDS = [
    *((length, "whole", "static") for length in ("heuristic", "adaptive", "entropy", "fallback", "head")),
    ("4", "states", "static"), ("lag-free", "trimmed", "static"),
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("length", "draft", "way"),
    [*SAME_ROUNDS, *(pytest.param(*row, marks=pytest.mark.slow) for row in MORE_SAME_ROUNDS)],
)
def test_a_seed_gives_the_same_rounds(length: str, draft: str, way: str) -> None:
    """Also where a stop token was drafted and refused: nothing of what follows it was drawn or verified.

    Each rule with half of the samplings in `make test`, and with all in `make test-slow`.
    """
    stops = 0
    for number, verifier in enumerate(("token-wise", "block", "invariant")):
        decoders = [decoder(length, draft, place, verifier=verifier) for place in ("host", way)]
        for turn, sampling in enumerate(SAMPLINGS):
            if turn % 2 == number % 2 and not THOROUGH:
                continue
            outputs = []
            for pair_decoder in decoders:
                pair_decoder.stop_tokens = frozenset(STOPS)
                outputs.append(pair_decoder.generate(PROMPTS, max_new_tokens=24, seed=turn, **sampling))
            (same, ratios), (expected, expected_ratios) = map(rounds, outputs)
            assert same == expected
            assert ratios == pytest.approx(expected_ratios, rel=1e-3)
            stops += sum(bool(STOPS & {*r.drafted}) for output in outputs[0] for r in output.rounds)
    assert stops > 0 or draft == "trimmed"


def without_drafts(way: str) -> SpeculativeDecoder:
    """Return a decoder without drafts, as on a CPU, or with fixed shapes and draws as on an accelerator."""
    target = make(seed=1, sharpness=4.0)
    model = of_fixed_shapes(target) if way == "static" else CausalLM(target)
    model.reads_drawn = way == "static"
    target_decoder = SpeculativeDecoder(model, None)
    target_decoder.stop_tokens = frozenset(STOPS)
    return target_decoder


@pytest.mark.parametrize("sampling", [*SAMPLINGS, {"temperature": 1.0, "top_k": None, "top_p": 0.8}])
@pytest.mark.parametrize("verifier", ["token-wise", pytest.param("block", marks=pytest.mark.slow), "invariant"])
def test_a_target_alone_draws_what_the_host_draws(verifier: str, sampling: dict[str, Any]) -> None:
    """Every token is a round, also if the host looks at several at once. Texts end as on the host."""
    drawn = []
    for way in ("host", "static"):
        target_decoder = without_drafts(way)
        outputs = [
            output
            for seed in range(4)
            for output in target_decoder.generate(PROMPTS, max_new_tokens=40, seed=seed, verifier=verifier, **sampling)
        ]
        stats = [
            (o.stats.n_generated, o.stats.n_target_forwards, o.stats.n_verified_tokens, o.stats.n_draft_forwards)
            for o in outputs
        ]
        drawn.append((rounds(outputs), stats, [output.finish_reason for output in outputs]))
    assert drawn[0] == drawn[1]
    assert {"eos", "length"} <= {*drawn[0][2]} or sampling["temperature"] == 0


def test_the_host_looks_at_several_steps_of_a_target_alone() -> None:
    """The host looks once for all texts, except in the round that reads prompts."""
    target_decoder = without_drafts("static")
    target_decoder.stop_tokens = frozenset()
    target_decoder.generate(PROMPTS, max_new_tokens=6, seed=0)  # what models check once
    step, reads = target_decoder.scheduler.engine.step, []

    def counted(requests: Any) -> None:
        with Reads() as counter:
            step(requests)
        reads.append(counter.count)

    target_decoder.scheduler.engine.step = counted  # type: ignore[method-assign]
    outputs = target_decoder.generate(PROMPTS, max_new_tokens=41, seed=0, top_k=None)
    assert [len(output.tokens) for output in outputs] == [41] * 3
    assert {*reads[1:]} == {1}
    assert len(reads) <= 5


@torch.inference_mode()
def test_buffers_for_the_longest_text_are_made_once() -> None:
    model = of_fixed_shapes(make(seed=1, context=2048)).limited(1000)
    cache = model.new_cache()
    columns = set()
    for text, length in enumerate((3, 300, 900)):
        model.begin(cache, text, [1] * length, 100)
        model.forward(cache, [Read(text, [1] * length)])
        model.forward(cache, [Read(text, [2])])
        columns.add(cache.n_columns)
    assert len(columns) == 1
    assert 1000 < min(columns) < 1100


class Timed(Fixed):
    """Drafts nothing, and records the number of forwards of each round whose time is reported."""

    def __init__(self) -> None:
        super().__init__(0)
        self.rounds: list[int] = []

    def timed(self, tokens: int, forwards: int, seconds: float) -> None:
        self.rounds.append(forwards)


def test_a_length_of_the_user_observes_every_step_of_a_target_alone() -> None:
    target_decoder, length = without_drafts("static"), Timed()
    target_decoder.stop_tokens = frozenset()
    observed = target_decoder.generate(PROMPTS[0], max_new_tokens=20, seed=0, length=length)
    assert length.rounds == [0] * 19  # all but the round that read the prompt
    assert observed.tokens == target_decoder.generate(PROMPTS[0], max_new_tokens=20, seed=0).tokens


def test_the_host_looks_at_every_token_that_someone_waits_for() -> None:
    target_decoder = without_drafts("static")
    target_decoder.stop_tokens = frozenset()
    pieces: list[list[int]] = []
    streamed = target_decoder.generate(PROMPTS[0], max_new_tokens=20, seed=0, on_tokens=pieces.append)
    assert pieces == [[token] for token in streamed.tokens]
    assert streamed.tokens == target_decoder.generate(PROMPTS[0], max_new_tokens=20, seed=0).tokens


def test_a_request_without_drafts_takes_one_step_in_a_round_that_others_draft_in() -> None:
    static_decoder = decoder("4", way="static")
    kinds = [static_decoder.setup, static_decoder.setup_for(length=0)]
    requests = [
        static_decoder.new_request(PROMPTS[i], SamplingParams(1.0, 5), 30, RandomSource(i), setup=kind)
        for i, kind in enumerate(kinds)
    ]
    static_decoder.scheduler.submit(requests)
    for _ in range(4):
        static_decoder.scheduler.step()
    assert len(requests[1].output.tokens) == 4
    static_decoder.scheduler.run([])
    host = decoder("4", way="host").generate(PROMPTS[1], max_new_tokens=4, seed=1, length=0, temperature=1.0, top_k=5)
    assert requests[1].output.tokens == host.tokens


@pytest.mark.parametrize(
    ("length", "verifier", "sampling"),
    [
        pytest.param(
            length,
            verifier,
            sampling,
            marks=[pytest.mark.slow] * (verifier != "token-wise" and length not in ("4", "lag-free")),
        )
        for length in [*PLANNED, *ASKING]
        for verifier in ("token-wise", "block", "invariant")
        for sampling in SAMPLINGS[:2]
    ],
)
def test_reads_by_the_host(
    length: str, verifier: str, sampling: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None while a planned length is drafted, else one a token of the longest draft; one for all verifications."""
    static_decoder = decoder(length, way="static", verifier=verifier)
    static_decoder.generate(PROMPTS, max_new_tokens=6, seed=0)  # what models check once
    engine = static_decoder.scheduler.engine
    propose, step = engine._propose, engine.step
    drafting: list[int] = []

    def counted(*arguments: Any) -> Any:
        with Reads() as reads:
            drafts = propose(*arguments)
        longest = max(len(draft.tokens) for draft in drafts.values())
        assert reads.count <= (0 if length in PLANNED else longest)
        drafting.append(reads.count)
        return drafts

    def whole(requests: Any) -> None:
        joining = any(not request.text for request in requests)
        with Reads() as reads:
            step(requests)
        drawn = all(request.output.rounds and request.output.rounds[-1].drafted for request in requests)
        if not joining and drawn:
            assert reads.count == drafting[-1] + 1

    monkeypatch.setattr(engine, "_propose", counted)
    monkeypatch.setattr(engine, "step", whole)
    static_decoder.generate(PROMPTS, max_new_tokens=16, seed=0, **sampling)
    assert len(drafting) > 3
    assert length in PLANNED or max(drafting) > 1


TREES: dict[str, dict[str, Any]] = {
    "3x2x1": {"tree": (3, 2, 1), "verifier": "spec-infer"},
    "mcss": {"tree": (3, 2, 1), "verifier": "mcss"},
    "grown": {"tree": "auto", "verifier": "token-wise"},
    "shared noise": {"tree": (3, 2, 1), "verifier": "invariant"},
    "grown, shared noise": {"tree": "auto", "verifier": "invariant"},
}


def tree_decoder(tree: str, way: str, draft: str = "whole") -> SpeculativeDecoder:
    target = make(seed=1, sharpness=4.0)
    models = [
        of_fixed_shapes(model) if way == "static" else CausalLM(model) for model in (target, DRAFTS[draft](target))
    ]
    for model in models:
        model.reads_drawn = way == "static"
    length = RateOptimal(lag_free(), CostModel(0.01, 0.9, 0.02)) if "grown" in tree else None
    return SpeculativeDecoder(*models, length=length, **TREES[tree])


@pytest.mark.parametrize(
    ("tree", "draft"),
    [
        pytest.param(tree, draft, marks=[pytest.mark.slow] * ((tree == "mcss") != (draft == "trimmed")))
        for tree in TREES
        for draft in ("whole", "trimmed")
    ],
)
def test_a_seed_gives_the_same_trees(tree: str, draft: str) -> None:
    nodes = 0
    for seed, sampling in enumerate(SAMPLINGS):
        outputs = [
            rounds(tree_decoder(tree, way, draft).generate(PROMPTS, max_new_tokens=24, seed=seed, **sampling))[0]
            for way in ("host", "static")
        ]
        assert outputs[0] == outputs[1]
        nodes += sum(len(drafted) for trace in outputs[0][1] for drafted, _, _ in trace)
    assert nodes > 100


@pytest.mark.parametrize("sampling", [{"temperature": 1.0, "top_k": 5}, {"temperature": 0.0}])
@pytest.mark.parametrize("tree", TREES)
def test_reads_of_trees_by_the_host(tree: str, sampling: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The host reads once for each level, twice if a head reads states or logits, and once for the target's results."""
    static_decoder = tree_decoder(tree, "static")
    static_decoder.generate(PROMPTS, max_new_tokens=6, seed=0)  # what models check once
    engine, nodes = static_decoder.scheduler.engine, list[int]()
    propose, step = engine._propose, engine.step
    for model in (static_decoder.target, static_decoder.drafts[0]):
        mark_results(model, monkeypatch)
    each = 1 + ("grown" in tree) * (1 + (sampling["temperature"] == 0))

    def proposing(*arguments: Any) -> Any:
        OnDevice.count = 0
        drafts = propose(*arguments)
        nodes.append(max(len(draft.tokens) for draft in drafts.values()))
        assert OnDevice.count <= each * max(draft.n_forwards for draft in drafts.values())
        OnDevice.count = 0
        return drafts

    def whole(requests: Any) -> None:
        joining = not requests[0].text
        step(requests)
        if not joining and nodes[-1]:
            assert OnDevice.count == 1

    monkeypatch.setattr(engine, "_propose", proposing)
    monkeypatch.setattr(engine, "step", whole)
    static_decoder.generate(PROMPTS[:1], max_new_tokens=24, seed=0, **sampling)
    assert max(nodes) >= 3


@pytest.mark.parametrize("seed", range(3))
def test_planned_and_other_requests_of_several_samplings_share_a_draw(seed: int) -> None:
    outputs = []
    for way in ("host", "static"):
        pair_decoder = decoder("4", way=way)
        kinds = [pair_decoder.setup, *(pair_decoder.setup_for(length=make_rule()) for make_rule in ASKING.values())]
        samplings = [SamplingParams(**SAMPLINGS[(i + seed) % 4]) for i in range(9)]
        requests = [
            pair_decoder.new_request(PROMPTS[i % 3], sampling, 16, RandomSource(i), setup=kinds[i % 6])
            for i, sampling in enumerate(samplings)
        ]
        pair_decoder.scheduler.run(requests)
        outputs.append(rounds([request.output for request in requests])[0])
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    ("length", "way"), [("4", "host"), ("4", "static"), ("confidence", "drawn"), ("confidence", "static")]
)
@pytest.mark.parametrize("broken_model", ["target", "draft"])
def test_a_model_without_numbers_fails_its_request_alone(
    broken_model: str, length: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request also fails alone if the host reads each token, because the length depends on it."""
    pair_decoder = decoder(length, way=way)
    model = pair_decoder.target if broken_model == "target" else pair_decoder.setup.arms[0].drafter.model  # type: ignore[attr-defined]
    forward = model.forward

    def failing(cache: Any, reads: Any) -> Any:
        logits, hidden = forward(cache, reads)
        ends = accumulate(read.keep for read in reads)
        for read, end in zip(reads, ends, strict=True):
            if isinstance(read.text, Request) and read.text.prompt == PROMPTS[1] and read.text.output.tokens:
                logits[end - read.keep : end] = float("nan")
        return logits, hidden

    def failing_steps(cache: Any, reads: Any, *arguments: Any) -> Any:
        drafted = draft_unread(cache, reads, *arguments)
        if drafted is not None:
            for place, read in enumerate(reads):
                if read.text.prompt == PROMPTS[1]:
                    drafted.probabilities[:, place] = drafted.chosen[:, place] = float("nan")
            drafting.append(len(reads))
        return drafted

    draft_unread, drafting = model.draft_unread, list[int]()
    monkeypatch.setattr(model, "forward", failing)
    monkeypatch.setattr(model, "draft_unread", failing_steps)
    requests = [pair_decoder.new_request(p, SamplingParams(1.0, 5), 12, RandomSource(0)) for p in PROMPTS]
    with pytest.raises(InputError, match="NaN"):
        pair_decoder.scheduler.run(requests)
    assert [type(request.error) for request in requests] == [type(None), InputError, type(None)]
    assert bool(drafting) == (broken_model == "draft" and way == "static" and length == "4")


def test_a_target_alone_without_numbers_fails_its_request_alone() -> None:
    target_decoder = without_drafts("static")
    draft_unread = target_decoder.target.draft_unread

    def failing(cache: Any, reads: Any, *arguments: Any) -> Any:
        drafted = draft_unread(cache, reads, *arguments)
        assert drafted is not None
        for place, read in enumerate(reads):
            if read.text.prompt == PROMPTS[1]:
                drafted.chosen[:, place] = float("nan")
        return drafted

    target_decoder.target.draft_unread = failing  # type: ignore[method-assign]
    requests = [target_decoder.new_request(p, SamplingParams(1.0, 5), 12, RandomSource(0)) for p in PROMPTS]
    with pytest.raises(InputError, match="NaN"):
        target_decoder.scheduler.run(requests)
    assert [type(request.error) for request in requests] == [type(None), InputError, type(None)]


@pytest.mark.parametrize("kind", ["few", "all", "greedy"])
def test_signals_are_the_same_however_they_are_read(kind: str) -> None:
    """As lists, as tensors, and of a trimmed vocabulary.

    Tokens are drawn from few, whose probabilities the host has, from all, or from a point mass.
    """
    generator, index, predictor = torch.Generator().manual_seed(1), NgramIndex([3, 1, 4, 1, 5, 9, 2, 6, 5]), lag_free()
    for place in range(1, 6):
        logits, hidden = (torch.randn(1, size, generator=generator) for size in (64, 32))
        token = int(logits.argmax())
        kept = torch.tensor(sorted({token, *range(0, 64, 3)}))
        excluded = torch.full_like(logits, -torch.inf).index_copy(1, kept, logits[:, kept])
        for scores in (logits, excluded):
            q = {"few": scores.topk(4).values.softmax(-1), "all": scores.softmax(-1), "greedy": torch.ones(1, 1)}[kind]
            listed, match = None if kind == "all" else q[0].tolist(), partial(index.match, [token])
            step = Step(place, token, float(q.max()), q, scores, hidden, match, listed=listed)
            one_by_one = step.confidence(), step.top_probability(), step.entropy()
            assert step.signals_tensor()[0].tolist() == pytest.approx(one_by_one, abs=1e-6)
            assert step.signals() == pytest.approx(one_by_one, abs=1e-6)
            longer = torch.nn.functional.pad(step.q, (0, 4096))  # too long to be handled as a list
            assert predictor.predict(replace(step, q=longer, listed=None)) == pytest.approx(predictor.predict(step))
        trimmed = replace(step, kept_tokens=kept)
        assert trimmed.signals() == pytest.approx(step.signals(), abs=1e-6)
        for other in range(65):
            assert trimmed.unwarped_of(other) == pytest.approx(step.unwarped_of(other), abs=1e-6)


def test_large_tokens_are_read_exactly() -> None:
    """Token ids are read together with their probabilities, in float32."""
    tokens = torch.tensor([[2**23, 2**24 - 1]])
    assert read_together(torch.tensor([[0.25, 0.75]]), tokens) == [([0.25, 0.75], tokens[0].tolist())]
