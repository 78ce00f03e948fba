"""Controllers of drafts that read the target's states: examples from rounds, and the way from rounds to decoding."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import specpilot
import torch
from specpilot.cli import main as cli
from specpilot.compare.run import Comparison
from specpilot.controllers.length import Fixed, Step
from specpilot.data_gen.draft_states import read_rounds
from specpilot.data_gen.kinds import RoundsRow, text_of
from specpilot.data_gen.on_policy import rounds_of
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.models import CausalLM
from specpilot.models.loading.names import load_model
from specpilot.train.features import make_features
from specpilot.train.options import FeatureDataOptions
from transformers import PreTrainedModel

from ..helpers.architectures import HIDDEN, MAKERS, VOCAB
from ..helpers.drafts import PROMPTS, state_draft
from ..helpers.eagle3 import write_draft
from ..helpers.printed import printed_arguments
from ..helpers.refusals import refused
from ..helpers.tiny import byte_tokenizer, make


def eagle3(target: PreTrainedModel, folder: Path) -> PreTrainedModel:
    settings: dict[str, Any] = {"vocab": VOCAB, "kept": [*range(0, VOCAB, 2)], "target": HIDDEN, "layers": [1, 2]}
    return load_model(write_draft(folder / "eagle", **settings), device="cpu", target=target)


def eagle(target: PreTrainedModel, folder: Path) -> PreTrainedModel:
    return state_draft(target)


class Remembering(Fixed):
    """Records the logits and the state of every drafted token, by round."""

    def __init__(self, k: int) -> None:
        super().__init__(k)
        self.rounds: list[list[Step]] = []

    def start_round(self) -> bool:
        self.rounds.append([])
        return super().start_round()

    def observe(self, step: Step) -> bool:
        self.rounds[-1].append(step)
        return super().observe(step)


@pytest.mark.parametrize("kind", [eagle3, eagle])
@pytest.mark.parametrize("name", ["llama", pytest.param("qwen2", marks=pytest.mark.slow), "gemma3"])
def test_examples_are_what_decoding_has_seen(
    name: str, kind: Callable[[PreTrainedModel, Path], PreTrainedModel], tmp_path: Path
) -> None:
    """Examples have the logits and states before every verified token of a round."""
    target = MAKERS[name](4, VOCAB, 0)
    decoder = SpeculativeDecoder(target, kind(target, tmp_path))
    (draft,) = decoder.drafts
    assert isinstance(draft, CausalLM)
    assert isinstance(decoder.target, CausalLM)
    deepest = 0
    for seed, prompt in enumerate([*PROMPTS, [7]]):
        length = Remembering(3)
        output = decoder.generate(
            prompt, max_new_tokens=20, top_k=None, seed=seed, length=length, verifier="token-wise"
        )
        text = text_of(RoundsRow("id", "", prompt, output.tokens, *rounds_of(output)))
        examples = iter(zip(text.tokens, text.depths, *read_rounds(decoder.target, draft, text), strict=True))
        drafts = [round_ for round_ in output.rounds if round_.drafted]
        for steps, round_ in zip(length.rounds, drafts, strict=True):
            for place in range(min(len(round_.drafted), round_.accepted + 1)):
                token, depth, scores, state = next(examples)
                assert (token, depth) == (round_.drafted[place], place)
                if place < len(steps):  # the last token of a text's last draft is not observed
                    torch.testing.assert_close(scores, steps[place].logits[0], rtol=1e-3, atol=1e-4)
                    torch.testing.assert_close(state, steps[place].hidden[0], rtol=1e-3, atol=1e-4)
                    deepest = max(deepest, depth)
        assert next(examples, None) is None
    assert deepest == 2


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a target with a tokenizer, an EAGLE-3 draft with a high acceptance rate, and rounds of the pair."""
    folder = tmp_path_factory.mktemp("states")
    make(vocab=257, hidden=32).save_pretrained(folder / "target")
    byte_tokenizer().save_pretrained(folder / "target")
    settings: dict[str, Any] = {"vocab": 257, "kept": [*range(0, 257, 2)], "target": 32, "layers": [1]}
    write_draft(folder / "eagle", **settings, own_embedding=False)
    (folder / "prompts.txt").write_text("".join(f"prompt number {i}\n" for i in range(24)))
    words = f"data on-policy --target {folder}/target --draft {folder}/eagle --prompts {folder}/prompts.txt --length 3"
    assert cli.main([*words.split(), "--max-new-tokens", "16", "--device", "cpu", "--output", f"{folder}/rounds"]) == 0
    return folder


@pytest.mark.parametrize("predictor", ["lag-free", "features"])
def test_from_rounds_to_a_controller(
    work: Path,
    tmp_path: Path,
    predictor: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    features, run, controller = (str(tmp_path / name) for name in ("features", "run", "controller"))
    words = f"--data {work}/rounds --predictor {predictor} --traced 0 --validation-fraction 0.3 --device cpu"
    assert cli.main(["data", "features", *words.split(), "--output", features]) == 0
    training = ["train", "acceptance", "--data", features, "--epochs", "1", "--output", run, "--predictor"]
    assert cli.main([*training, "specdec"]) == 2
    assert "features of another predictor" in capsys.readouterr().err
    assert cli.main([*training, predictor]) == 0
    capsys.readouterr()
    assert cli.main(["export", run, controller]) == 0
    printed = printed_arguments(capsys.readouterr().out)
    assert printed[:5] == ["generate", "--target", "target", "--draft", "eagle"]  # the names in the manifest
    monkeypatch.chdir(work)
    assert cli.main([*printed, "--max-new-tokens", "4"]) == 0
    decoder = SpeculativeDecoder.from_pretrained(
        work / "target", work / "eagle", device="cpu", length=controller, cost=0.01
    )
    assert decoder.generate("hello", max_new_tokens=20, seed=1).stats.n_drafted > 0


@pytest.mark.parametrize(
    ("predictor", "traced", "problem"),
    [
        ("lag-free", 5, "^traced=5:"),
        ("specdec", 0, "'rounds'"),
    ],
)
def test_traces_and_mixed_texts_are_refused(
    work: Path, tmp_path: Path, predictor: Any, traced: int, problem: str
) -> None:
    options = FeatureDataOptions(data=str(work / "rounds"), predictor=predictor, traced=traced, device="cpu")
    with refused(problem):
        make_features(options, tmp_path / "features")
    assert not (tmp_path / "features").exists()


COMPARED: dict[str, Any] = {"chat": False, "max_new_tokens": 16, "top_k": None, "rules": False, "device": "cpu"}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_settings_for_engines_from_a_comparison(work: Path, tmp_path: Path, temperature: float) -> None:
    """A draft that reads states has no replay, so that rounds with long drafts are logged."""

    def compared() -> Comparison:
        return specpilot.compare(
            [1], [f"prompt {i}" for i in range(12)], target=str(work / "target"), draft=str(work / "eagle"),
            temperature=temperature, minutes=0.05, cost=0.001, output=tmp_path / "report", **COMPARED,
        )  # fmt: skip

    settings = compared().engine_settings
    assert settings is not None
    assert [setting.engine for setting in settings.engines] == ["vLLM", "SGLang", "TensorRT-LLM"]
    choices = [setting.choice for setting in settings.engines]
    assert choices[0] == choices[1] == choices[2]
    assert "drafts of 12 tokens" in settings.acceptance
    assert ("greedily" in settings.acceptance) == (temperature > 0)
    if temperature > 0:
        options = {setting.engine: setting.options for setting in settings.engines}
        eagle = work / "eagle"
        config = {"method": "eagle3", "model": str(eagle), "num_speculative_tokens": choices[0].length}
        assert options["vLLM"] == f"--speculative-config '{json.dumps(config)}'"
        assert f"--speculative-algorithm EAGLE3 --speculative-draft-model-path {eagle}" in options["SGLang"]
        assert f"decoding_type: Eagle3, speculative_model: {eagle}" in options["TensorRT-LLM"]
    assert compared().engine_settings == settings  # of the stored rounds


def test_settings_for_engines_from_rounds_name_the_method(work: Path, tmp_path: Path) -> None:
    comparison = specpilot.compare(data=str(work / "rounds"), engine_cost=0.001, output=tmp_path / "report")
    settings = comparison.engine_settings
    assert settings is not None
    assert [setting.engine for setting in settings.engines] == ["vLLM", "SGLang", "TensorRT-LLM"]
    assert f'"method": "eagle3", "model": "{work}/eagle"' in settings["vLLM"].options
    assert any("reads the target's states" in note for note in comparison.notes)
