"""Drafts of the whole vocabulary as folders of transformers: their files, their logits, assisted generation."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.models.loading.draft_folder import save_draft
from specpilot.models.loading.names import load_model
from specpilot.models.loading.transformers_folder import save_transformers_draft
from specpilot.train.draft_model import new_draft
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from ..helpers.architectures import MAKERS, VOCAB, pair, target_of
from ..helpers.drafts import TEXT, assert_seeded_texts_are_the_targets, shared_pair
from ..helpers.greedy import each, transformers_greedy
from ..helpers.refusals import refused
from ..helpers.tiny import byte_tokenizer, make

NO_SHORTER = ("gemma3n", "gemma4", "gpt-neo")  # architectures of which there is no shorter model
DENSE_FIRST = ("llama4", "deepseek-v2", "deepseek-v3", "glm4-moe")  # a first layer is unlike a last one
FILES = {
    "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    "chat_template.jinja",
}  # fmt: skip
WORDS = [ord(letter) for letter in "some text"]


def written(draft: PreTrainedModel, target: PreTrainedModel, folder: Path, **options: Any) -> Path:
    """The folder of ``draft`` in float32, if ``options`` have no other settings."""
    settings = {"name": "its-target", "dtype": torch.float32} | options
    return save_transformers_draft(draft, folder, byte_tokenizer(), target, **settings)


def logits_of(model: PreTrainedModel, tokens: list[int] = TEXT) -> torch.Tensor:
    return model(input_ids=torch.tensor([tokens])).logits[0]  # type: ignore[no-any-return]


@each([name for name in MAKERS if name not in NO_SHORTER])
def test_transformers_computes_the_same_logits(name: str, tmp_path: Path) -> None:
    """Of a text that is longer than attention windows."""
    target = target_of(name)
    draft = new_draft(target, [0, 1] if name in DENSE_FIRST else [1], None)
    folder = written(draft, target, tmp_path / "draft")
    assert {file.name for file in folder.iterdir()} == FILES
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert type(loaded) is type(target)
    text = [(7 * i) % 90 for i in range(40)]
    expected = logits_of(draft, text)
    for model in (loaded, load_model(folder, device="cpu")):
        torch.testing.assert_close(logits_of(model, text), expected, rtol=1e-5, atol=1e-5)


def test_the_folder_is_complete(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Tied weights are stored once; the tokenizer, its chat template and the end tokens are the target's."""
    target = target_of("llama", tie_word_embeddings=True)
    target.generation_config.eos_token_id = [5, 6]
    target.generation_config.temperature = 0.5  # transformers stores no such settings without do_sample
    folder = written(new_draft(target, [1], None), target, tmp_path / "draft", dtype=torch.bfloat16)
    assert not any(capfd.readouterr())  # no progress bar
    weights = load_file(folder / "model.safetensors")
    assert {value.dtype for value in weights.values()} == {torch.bfloat16}
    assert "lm_head.weight" not in weights
    assert torch.equal(weights["model.embed_tokens.weight"], target.get_input_embeddings().weight.bfloat16())  # type: ignore[operator]
    config = json.loads((folder / "config.json").read_text())
    assert (config["tie_word_embeddings"], config["dtype"], config["architectures"]) == (
        True, "bfloat16", ["LlamaForCausalLM"],
    )  # fmt: skip
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
    assert loaded.generation_config.eos_token_id == [5, 6]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.get_vocab() == byte_tokenizer().get_vocab()
    assert tokenizer.chat_template == byte_tokenizer().chat_template
    for file in folder.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == stat.S_IMODE((folder / "config.json").stat().st_mode), file


def test_an_output_of_its_own_is_stored(tmp_path: Path) -> None:
    target = target_of("llama", tie_word_embeddings=True)
    draft = new_draft(target, [1], None)
    draft.get_output_embeddings().weight.mul_(1.5)  # type: ignore[operator]
    loaded = AutoModelForCausalLM.from_pretrained(written(draft, target, tmp_path / "draft"))
    torch.testing.assert_close(logits_of(loaded), logits_of(draft), rtol=1e-5, atol=1e-5)
    ratio = loaded.get_output_embeddings().weight / loaded.get_input_embeddings().weight
    torch.testing.assert_close(ratio, torch.full_like(ratio, 1.5))


@pytest.fixture
def saved_pair(tmp_path: Path) -> tuple[Path, Path]:
    """Folders of a target and of a draft that often agrees with it."""
    target, draft = pair("llama")
    target.save_pretrained(tmp_path / "target")
    byte_tokenizer().save_pretrained(tmp_path / "target")
    return tmp_path / "target", written(draft, target, tmp_path / "draft")


def test_assisted_generation_of_transformers(saved_pair: tuple[Path, Path]) -> None:
    """Its greedy text is that of the target alone, and that of specpilot with the same draft."""
    target, draft = (AutoModelForCausalLM.from_pretrained(folder) for folder in saved_pair)
    decoder = SpeculativeDecoder(*(load_model(folder, device="cpu") for folder in saved_pair), length=3)
    for prompt in (TEXT, [3, 1], [7]):
        expected = transformers_greedy(target, prompt)
        ids = torch.tensor([prompt])
        calls: list[int] = []
        counter = draft.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        output = target.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), assistant_model=draft, do_sample=False,
            max_new_tokens=len(expected), pad_token_id=0,
        )  # fmt: skip
        counter.remove()
        assert calls
        assert output[0, len(prompt) :].tolist() == expected
        result = decoder.generate(prompt, max_new_tokens=len(expected), temperature=0)
        assert result.tokens == expected
        assert result.stats.n_accepted


def test_sampled_texts_are_the_targets(saved_pair: tuple[Path, Path]) -> None:
    target, draft = (load_model(folder, device="cpu") for folder in saved_pair)
    assert_seeded_texts_are_the_targets(target, draft, [TEXT, [3, 1], [7]])


def test_a_target_with_another_tokenizer_is_refused(saved_pair: tuple[Path, Path]) -> None:
    target, draft = saved_pair
    byte_tokenizer(extra=1).save_pretrained(target)
    with refused(f"target {target.name} and draft {draft.name} do not share a tokenizer: they differ in 1 token"):
        SpeculativeDecoder.from_pretrained(target, draft, device="cpu")


def test_a_draft_replaces_only_a_draft(saved_pair: tuple[Path, Path], tmp_path: Path) -> None:
    model, folder = make(vocab=VOCAB), saved_pair[1]
    before = (folder / "model.safetensors").read_bytes()
    with refused("pass --overwrite"):
        written(model, model, folder)
    written(model, model, folder, overwrite=True)
    assert (folder / "model.safetensors").read_bytes() != before
    with refused("holds other files than a draft"):
        written(model, model, saved_pair[0], overwrite=True)
    with refused("holds other files than a draft"):
        save_draft(model, folder, byte_tokenizer(), target=None, dtype=torch.float32, overwrite=True)
    model.get_parameter("model.norm.weight").data[0] = torch.nan
    with refused(r"model\.norm\.weight holds NaN"):
        written(model, model, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_draft_in_specpilots_format_becomes_a_folder_of_transformers(tmp_path: Path) -> None:
    """The embedding of its target is stored with it, so that it loads without the target."""
    shared_pair(tmp_path, kept=None)
    target = load_model(tmp_path / "target", device="cpu")
    draft = load_model(tmp_path / "draft", device="cpu", target=target)
    folder = written(draft, target, tmp_path / "new")
    assert {file.name for file in folder.iterdir()} == FILES
    for loaded in (AutoModelForCausalLM.from_pretrained(folder), load_model(folder, device="cpu")):
        torch.testing.assert_close(logits_of(loaded), logits_of(draft), rtol=1e-5, atol=1e-5)
    paths = [file.read_text() for file in folder.glob("*.json")]
    assert not any(str(tmp_path) in text or "specpilot_draft" in text for text in paths)
