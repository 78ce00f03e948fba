"""Results on a GPU: texts, distributions, data, training, and decoding with trained controllers."""

import gc
import json
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from specpilot.cli.main import main
from specpilot.common.errors import InputError
from specpilot.controllers.sampling import SamplingParams
from specpilot.controllers.shared_noise import exponentials
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.hooks import RoundTimer
from specpilot.infer.random_source import RandomSource
from specpilot.models import CausalLM, LanguageModel, Read, language_model
from specpilot.models.forwards import FixedShapes, Graphs
from specpilot.models.fused_layers import FusedLayers
from transformers import PreTrainedModel

from ..helpers.drafts import options_of
from ..helpers.enumeration import PROMPT, assert_same, decoder_distribution, distribution_by_steps
from ..helpers.greedy import PROMPTS, WAYS, one_by_one, pair_of, references, together
from ..helpers.tiny import make

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def on_gpu(model: PreTrainedModel, graphs: Graphs = "on") -> LanguageModel:
    return language_model(deepcopy(model).to("cuda"), graphs=graphs)


def has_graphs(decoder: SpeculativeDecoder) -> bool:
    """Return true if a forward of the target has been captured, alone or as a step that draws."""
    parts = decoder.scheduler.engine.cache.forwards.values()  # type: ignore[attr-defined]
    forwards = [forward for part in parts for forward in (part, *getattr(part, "forwards", {}).values())]
    return any(getattr(forward, "graph", None) is not None for forward in forwards)


@pytest.mark.parametrize("generate", [one_by_one, together])
@pytest.mark.parametrize(
    ("name", "way", "graphs"),
    [*product(["llama", "gemma3", "gpt2", "mixtral"], WAYS, ["on", "off"]), ("llama", "chain", "compiled")],
)
def test_every_way_is_transformers_greedy(name: str, way: str, generate: Any, graphs: Graphs) -> None:
    target, draft = (on_gpu(model, graphs) for model in pair_of(name))
    decoder = SpeculativeDecoder(target, draft, **WAYS[way])
    expected = references(name)
    outputs = generate(decoder, PROMPTS[: len(expected)])
    assert [output.tokens for output in outputs] == expected
    if graphs != "off" and name != "mixtral":
        assert isinstance(target.strategy, FixedShapes)  # type: ignore[attr-defined]
        assert has_graphs(decoder)
    if graphs != "off" and name == "llama":
        assert target.strategy.fused is not None  # type: ignore[attr-defined]


def test_rounds_are_timed_without_waiting_for_them() -> None:
    timer, reports = RoundTimer(torch.device("cuda")), []
    for cycles in (10**9, 10**8):
        mark = timer.mark()
        torch.cuda._sleep(cycles)
        timer.stop(mark, reports.append)
    assert reports == []
    torch.cuda.synchronize()
    timer.stop(timer.mark(), reports.append)
    assert reports[0] > 5 * reports[1] > 0.0


@pytest.mark.parametrize("way", ["2", "block", "cumulative confidence", "spec-infer 2x1", "mcss 2x1"])
@pytest.mark.parametrize("sampling", [SamplingParams(1.0, 2), SamplingParams(1.0, None), SamplingParams(0.0)])
def test_the_law_is_the_targets(way: str, sampling: SamplingParams) -> None:
    """Every outcome is enumerated, with graphs. The host draws the tokens, because the test chooses outcomes there.

    The next test checks that the device draws the same tokens.
    """
    sizes = {"layers": 1, "hidden": 8, "context": 32, "vocab": 3}
    target, draft = (on_gpu(make(seed=seed, sharpness=6.0, **sizes).double()) for seed in (3, 1003))
    target.reads_drawn = draft.reads_drawn = False
    decoder = SpeculativeDecoder(target, draft, **options_of(way))
    if way == "mcss 2x1" and sampling.top_k is None:
        pytest.skip("too many outcomes")
    decoder.generate(PROMPT, max_new_tokens=1)  # makes the buffers, before which prompts are read in another way
    assert_same(decoder_distribution(decoder, sampling, 4), distribution_by_steps(target, sampling))


@pytest.mark.parametrize("length", ["4", "confidence:0.3"])
@pytest.mark.parametrize("verifier", ["token-wise", "block", "invariant"])
@pytest.mark.parametrize(
    "sampling", [{"temperature": 1.0, "top_k": 5}, {"temperature": 0.7, "top_k": None}, {"temperature": 0.0}]
)
def test_the_device_draws_what_the_host_draws(length: str, verifier: str, sampling: dict[str, Any]) -> None:
    """In float64, a seed gives the same rounds if the device or the host draws and verifies the chains."""
    texts = []
    for drawn in (True, False):
        models = [on_gpu(make(seed=1, sharpness=sharpness).double()) for sharpness in (4.0, 3.0)]
        for model in models:
            model.reads_drawn = drawn
        decoder = SpeculativeDecoder(*models, length=length, verifier=verifier)
        prompts = [[1, 2, 3], [4, 5], [6, 1, 6, 1, 6]]
        outputs = [
            output
            for seed in range(3)
            for output in decoder.generate(prompts, max_new_tokens=24, seed=seed, **sampling)
        ]
        texts.append([(output.tokens, [(r.drafted, r.path) for r in output.rounds]) for output in outputs])
    assert texts[0] == texts[1]


def rounds_by_seed(reads_drawn: bool, options: dict[str, Any], sampling: dict[str, Any]) -> Any:
    """Return texts and rounds of three seeds, of a pair in float64 with graphs.

    Args:
        reads_drawn: whether the models read tokens that the host has not read.
        options: options of the decoder; without options, it has no draft.
        sampling: sampling parameters.
    """
    models = [on_gpu(make(seed=1, sharpness=sharpness).double()) for sharpness in (4.0, 3.0)]
    for model in models:
        model.reads_drawn = reads_drawn
    decoder = SpeculativeDecoder(models[0], models[1] if options else None, **options)
    prompts = [[1, 2, 3], [4, 5], [6, 1, 6, 1, 6]]
    outputs = [
        output for seed in range(3) for output in decoder.generate(prompts, max_new_tokens=40, seed=seed, **sampling)
    ]
    return [(output.tokens, [(r.drafted, r.path) for r in output.rounds]) for output in outputs]


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0, "top_k": 5},
        {"temperature": 0.7, "top_k": None},
        {"temperature": 1.0, "top_k": None, "top_p": 0.8},
        {"temperature": 0.0},
    ],
)
def test_a_target_alone_draws_what_the_host_draws(sampling: dict[str, Any]) -> None:
    assert rounds_by_seed(True, {}, sampling) == rounds_by_seed(False, {}, sampling)


@torch.inference_mode()
def test_the_noise_of_target_and_draft_has_the_same_bits_as_on_a_processor() -> None:
    tokens, keys = torch.arange(200_000).expand(3, -1), torch.tensor([[5], [-7], [2**62]])
    computed = exponentials(keys.to("cuda"), tokens.to("cuda")).cpu()
    torch.testing.assert_close(computed, exponentials(keys, tokens), rtol=1e-14, atol=0)


@pytest.mark.parametrize("options", [{"length": 4}, {"length": "confidence:0.3"}, {"tree": (2, 2)}], ids=str)
def test_the_text_of_a_seed_is_that_of_a_processor_without_drafts(options: dict[str, Any]) -> None:
    models = [make(seed=1, sharpness=sharpness).double() for sharpness in (4.0, 3.0)]
    prompts: list[list[int]] = [[1, 2, 3], [4, 5], [6, 1, 6, 1, 6]]
    plain = SpeculativeDecoder(models[0], None)
    on_device = SpeculativeDecoder(*map(on_gpu, deepcopy(models)), **options)
    for sampling in ({"temperature": 1.0, "top_k": None}, {"temperature": 0.7, "top_k": 8}):
        texts = [
            [output.tokens for output in decoder.generate(prompts, max_new_tokens=40, seed=3, **sampling)]  # type: ignore[arg-type]
            for decoder in (on_device, plain)
        ]
        assert texts[0] == texts[1]


@pytest.mark.parametrize("sampling", [{"temperature": 1.0, "top_k": 5}, {"temperature": 0.0}])
@pytest.mark.parametrize(
    "options",
    [
        {"tree": (3, 2, 1), "verifier": "spec-infer"},
        {"tree": (2, 2), "verifier": "mcss"},
        {"tree": "auto", "length": "online-confidence", "cost": 0.05, "verifier": "token-wise"},
        {"tree": (3, 2, 1), "verifier": "invariant"},
    ],
    ids=["spec-infer", "mcss", "auto", "invariant"],
)
def test_trees_are_those_of_a_processor(options: dict[str, Any], sampling: dict[str, Any]) -> None:
    """In float64, a seed gives the same rounds as on a CPU."""
    models = [make(seed=1, sharpness=sharpness).double() for sharpness in (4.0, 3.0)]
    texts = []
    for device in ("cuda", "cpu"):
        decoder = SpeculativeDecoder(*(deepcopy(model).to(device) for model in models), **options)
        outputs = decoder.generate([[1, 2, 3], [4, 5]], max_new_tokens=40, seed=0, **sampling)
        texts.append([(output.tokens, [(r.drafted, r.path) for r in output.rounds]) for output in outputs])
    assert texts[0] == texts[1]


def test_requests_wait_for_memory_and_are_refused() -> None:
    decoder = SpeculativeDecoder(make(seed=1, context=4096).to("cuda"), None)
    engine = decoder.scheduler.engine
    free = engine.free_bytes()
    assert free is not None
    assert free > 0
    prompts = [[i + 1] * 20 for i in range(6)]
    expected = [output.tokens for output in decoder.generate(prompts, max_new_tokens=20, temperature=0)]
    engine.clear()
    room = int(1.2 * decoder_growth(decoder, prompts[:2]))
    layers = engine.cache.ragged_layers  # type: ignore[attr-defined]
    engine.free_bytes = lambda: room - sum(0 if layer.pair is None else layer.pair.nbytes for layer in layers)  # type: ignore[assignment]
    assert [output.tokens for output in decoder.generate(prompts, max_new_tokens=20, temperature=0)] == expected
    with pytest.raises(InputError, match="max_new_tokens=3,000"):
        decoder.generate(prompts[0], max_new_tokens=3000)


def decoder_growth(decoder: SpeculativeDecoder, prompts: list[list[int]]) -> int:
    requests = [decoder.new_request(prompt, SamplingParams(0.0), 20, RandomSource(0)) for prompt in prompts]
    return decoder.scheduler.engine.growth(requests)


def test_a_failed_capture_leaves_nothing_behind() -> None:
    """After a failed capture, the stream is the caller's, the model decodes without graphs, and other captures work."""
    failing, healthy = (CausalLM(deepcopy(pair_of("llama")[0]).to("cuda")) for _ in range(2))
    assert isinstance(failing.strategy, FixedShapes)
    fused = failing.strategy.fused
    assert fused is not None

    def reading(*arguments: Any) -> Any:
        logits, hidden = FusedLayers.__call__(fused, *arguments)
        assert float(logits.sum()) == float(logits.sum())  # the host reads, which no capture allows
        return logits, hidden

    failing.strategy.fused = reading  # type: ignore[assignment]
    reading.tables = fused.tables  # type: ignore[attr-defined]
    stream = torch.cuda.current_stream()
    expected = references("llama")[0]
    with pytest.warns(UserWarning, match="cannot be captured"):
        output = SpeculativeDecoder(failing, None).generate(PROMPTS[0], max_new_tokens=40, temperature=0)
    assert output.tokens == expected
    assert torch.cuda.current_stream() == stream
    assert "cannot be captured" in failing.forward_description
    decoder = SpeculativeDecoder(healthy, None)
    assert decoder.generate(PROMPTS[0], max_new_tokens=40, temperature=0).tokens == expected
    assert has_graphs(decoder)


def test_a_cache_is_freed_without_the_collector() -> None:
    model = CausalLM(deepcopy(pair_of("llama")[0]).to("cuda"))
    gc.disable()
    try:
        SpeculativeDecoder(model, None).generate(PROMPTS[0], max_new_tokens=8, temperature=0)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        for _ in range(3):
            cache = model.new_cache()
            with torch.inference_mode():
                for _ in range(5):
                    if 0 not in cache:
                        cache.add(0, 1000)
                        model.forward(cache, [Read(0, PROMPTS[0])])
                    model.forward(cache, [Read(0, [1])])
            del cache
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() <= before + 2**20
    finally:
        gc.enable()


def test_half_precision_autocast_and_device_map() -> None:
    half = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length=3, dtype="bfloat16", device="cuda")
    output = half.generate("What is 12 plus 30?", chat=True, max_new_tokens=24, temperature=0)
    assert output.stats.n_accepted > 0
    whole = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length=3, device="cuda")
    spread = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length=3, device_map={"": "cuda:0"})
    expected = whole.generate("What is 12 plus 30?", chat=True, max_new_tokens=24, temperature=0).tokens
    assert spread.generate("What is 12 plus 30?", chat=True, max_new_tokens=24, temperature=0).tokens == expected
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert whole.generate("What is 12 plus 30?", chat=True, max_new_tokens=24, temperature=0).tokens


@pytest.mark.parametrize("predictor", ["lag-free", "specdec"])
def test_data_training_export_and_decoding(predictor: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: Any) -> str:
        assert main([*map(str, words)]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    small = ("--limit", 40, "--max-new-tokens", 16, "--device", "cuda")
    run("data", "acceptance", *small, "--output", tmp_path / "data")
    run("data", "acceptance", *small, "--output", tmp_path / "data")  # goes on, and finds nothing to do
    train = ("train", "acceptance", "--predictor", predictor, "--data", tmp_path / "data", "--device", "cuda")
    run(*train, "--epochs", 2, "--output", tmp_path / "run")
    run("export", tmp_path / "run", tmp_path / "controller")
    words = (
        "generate",
        "What is 12 plus 30?",
        "--device",
        "cuda",
        "--json",
        "--max-new-tokens",
        16,
        "--temperature",
        0,
    )
    computed = run(*words, "--length", tmp_path / "controller", "--cost", 0.2)
    plain = run(*words, "--length", "none")
    assert json.loads(computed)["tokens"] == json.loads(plain)["tokens"]
