"""What is computed on a GPU: texts, laws, data, training and decoding with what was trained."""

import json
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from specpilot.cli.main import main
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.engine import RoundTimer
from specpilot.models import LanguageModel, language_model
from specpilot.models.causal_lm import Graphs
from transformers import PreTrainedModel

from ..drafts import options_of
from ..enumeration import assert_same, decoder_distribution, target_distribution
from ..test_architectures import PROMPTS, WAYS, one_by_one, pair_of, references, together
from ..tiny import make

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def on_gpu(model: PreTrainedModel, graphs: Graphs = "on") -> LanguageModel:
    return language_model(deepcopy(model).to("cuda"), graphs=graphs)


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
        assert target.static  # type: ignore[attr-defined]
        forwards = decoder.scheduler.engine.cache.forwards  # type: ignore[attr-defined]
        assert any(forward.graph is not None for forward in forwards.values())
    assert graphs != "compiled" or target.fixed is not None


def test_rounds_are_timed_without_waiting_for_them() -> None:
    timer, told = RoundTimer(torch.device("cuda")), []
    for cycles in (10**9, 10**8):
        mark = timer.mark()
        torch.cuda._sleep(cycles)
        timer.stop(mark, told.append)
    assert told == []
    torch.cuda.synchronize()
    timer.stop(timer.mark(), told.append)
    assert told[0] > 5 * told[1] > 0.0


@pytest.mark.parametrize("way", ["2", "block", "cumulative confidence", "spec-infer 2x1", "mcss 2x1"])
@pytest.mark.parametrize("sampling", [SamplingParams(1.0, 2), SamplingParams(1.0, None), SamplingParams(0.0)])
def test_the_law_is_the_targets(way: str, sampling: SamplingParams) -> None:
    """Every outcome is enumerated, with graphs."""
    sizes = {"layers": 1, "hidden": 8, "context": 32, "vocab": 3}
    target, draft = (on_gpu(make(seed=seed, sharpness=6.0, **sizes).double()) for seed in (3, 1003))
    decoder = SpeculativeDecoder(target, draft, **options_of(way))
    if way == "mcss 2x1" and sampling.top_k is None:
        pytest.skip("too many outcomes")
    assert_same(decoder_distribution(decoder, sampling, 4), target_distribution(target, sampling))


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
    found = run(*words, "--length", tmp_path / "controller", "--cost", 0.2)
    plain = run(*words, "--length", "none")
    assert json.loads(found)["tokens"] == json.loads(plain)["tokens"]
