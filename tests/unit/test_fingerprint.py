"""Fingerprints: changes of a model that change its fingerprint, and changes that do not."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from specpilot.common.errors import InputError
from specpilot.controllers.checkpoints.fingerprint import (
    config_fingerprint,
    model_fingerprint,
    tokenizer_fingerprint,
    weights_digest,
)
from specpilot.models.loading.names import load_model
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedModel

from ..helpers.architectures import MAKERS
from ..helpers.tiny import byte_tokenizer


def llama(seed: int = 0, layers: int = 1, **changes: Any) -> PreTrainedModel:
    return MAKERS["llama"](layers, 64, seed, **changes)


MODELS = {name: partial(MAKERS[name], 1, 64, 0) for name in ("llama", "gpt2", "qwen2-full", "opt")}
MODELS["tied"] = partial(llama, tie_word_embeddings=True)
PRECISIONS = ("float32", "float64", "bfloat16", "float16")


def reload(model: PreTrainedModel, folder: Path, dtype: str = "float32") -> PreTrainedModel:
    model.save_pretrained(folder)
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return loaded


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        pytest.param(name, stored, marks=[pytest.mark.slow] * (name != "llama" and stored != torch.float16))
        for name in MODELS
        for stored in (torch.float32, torch.bfloat16, torch.float16)
    ],
)
def test_one_file_in_every_precision_is_one_model(name: str, stored: torch.dtype, tmp_path: Path) -> None:
    model = MODELS[name]()
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.mul_(1e-5 if i % 3 == 1 else 1)  # of what is so small float16 keeps a bit or two
        next(model.parameters()).view(-1)[0] = 1e5 if stored != torch.float16 else 1.0  # and of this nothing
    model.to(stored)
    reloaded = {dtype: reload(model, tmp_path, dtype) for dtype in PRECISIONS}
    assert {str(model_copy.dtype).removeprefix("torch.") for model_copy in reloaded.values()} == set(PRECISIONS)
    assert {model_fingerprint(model_copy) for model_copy in reloaded.values()} == {model_fingerprint(model)}
    assert model_fingerprint(reloaded["float32"].to(torch.float16)) == model_fingerprint(model)


def test_a_float16_model_is_told_from_others_of_its_shape(tmp_path: Path) -> None:
    first, second = llama(0), llama(1)
    half = reload(first, tmp_path, "float16")
    second.save_pretrained(tmp_path / "other")
    half.config._name_or_path = str(tmp_path / "other")  # the files of another model do not speak for this one
    assert model_fingerprint(half) not in (model_fingerprint(first), model_fingerprint(second))
    tuned = reload(first, tmp_path, "float16")
    with torch.no_grad():
        tuned.model.layers[0].mlp.up_proj.weight.mul_(1.01)
    assert model_fingerprint(tuned) != model_fingerprint(first)
    expected = model_fingerprint(half)
    (tmp_path / "other" / "model.safetensors").write_bytes(b"damaged")
    assert model_fingerprint(half) == expected
    for elsewhere in (str(tmp_path / "gone"), "gone", "", "an/odd/name"):
        half.config._name_or_path = elsewhere
        assert model_fingerprint(half) == expected


def test_files_of_a_bare_model_are_those_of_the_model_with_its_head(tmp_path: Path) -> None:
    model = MAKERS["gpt2"](1, 64, 0, tie_word_embeddings=True)
    model.base_model.save_pretrained(tmp_path)  # as gpt2 is on the hub: no tensor is called transformer.…
    half = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="float16")
    assert model_fingerprint(half) == model_fingerprint(model)


def test_weights_are_found_in_the_hubs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    snapshots = tmp_path / "models--owner--name" / "snapshots"
    half = reload(llama(0), snapshots / "b", "float16")
    llama(1).save_pretrained(snapshots / "a")  # another revision
    half.config._name_or_path = "owner/name"
    assert model_fingerprint(half) == model_fingerprint(llama(0))


def test_an_offloaded_model_is_the_model(tmp_path: Path) -> None:
    whole = llama(layers=2)
    whole.save_pretrained(tmp_path)
    places = {name: "cpu" for name in ("model.embed_tokens", "model.layers.0", "model.norm", "lm_head")}
    places |= {"model.rotary_emb": "cpu", "model.layers.1": "disk"}
    for dtype in ("float32", "float16"):
        model = load_model(str(tmp_path), dtype=dtype, device_map=places, offload_folder=tmp_path / "offload")
        assert any(parameter.is_meta for parameter in model.parameters())
        assert model_fingerprint(model) == model_fingerprint(whole)
    model.config._name_or_path = str(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"device_map: model.layers.1.* is offloaded"):
        model_fingerprint(model)


def test_how_a_model_is_run_does_not_matter() -> None:
    model = llama()
    before = model_fingerprint(model)
    model.config.use_cache = False
    model.config.output_hidden_states = True
    model.config._name_or_path = "elsewhere"
    model.config.id2label = {0: "no", 1: "yes"}
    model.train()
    assert model_fingerprint(model) == before


@pytest.mark.parametrize("change", [{"rms_norm_eps": 1e-4}, {"max_position_embeddings": 64}, {"hidden_act": "gelu"}])
def test_settings_that_change_results_change_the_fingerprint(change: dict[str, Any]) -> None:
    model, other = llama(), llama(**change)
    assert weights_digest(model) == weights_digest(other)
    assert config_fingerprint(model.config) != config_fingerprint(other.config)
    assert model_fingerprint(model) != model_fingerprint(other)


def test_every_parameter_counts() -> None:
    model = llama()
    before = weights_digest(model)
    for name, parameter in model.named_parameters():
        original = parameter.detach().clone()
        with torch.no_grad():
            parameter.mul_(1.1)
            assert weights_digest(model) != before, name
            parameter.copy_(original)
    assert weights_digest(model) == before


def test_fields_that_a_newer_library_adds_with_their_default_change_nothing() -> None:
    class Newer(LlamaConfig):
        def to_dict(self) -> dict[str, Any]:
            return {**super().to_dict(), "a_new_field": 7}

    config = llama().config
    assert config_fingerprint(Newer(**config.to_dict())) == config_fingerprint(config)


def test_a_parameter_that_is_no_contiguous_block_has_its_digest() -> None:
    dense, transposed = torch.nn.Module(), torch.nn.Module()
    values = torch.arange(1000.0).reshape(10, 100)
    dense.w, transposed.w = torch.nn.Parameter(values), torch.nn.Parameter(values.T.contiguous().T)
    assert weights_digest(dense) == weights_digest(transposed)


def test_a_tokenizer_is_its_vocabulary_and_special_tokens(tmp_path: Path) -> None:
    """Saving, loading and using a tokenizer do not change its fingerprint."""
    tokenizer = byte_tokenizer()
    before = tokenizer_fingerprint(tokenizer)
    tokenizer.save_pretrained(tmp_path)
    loaded, more, special = (AutoTokenizer.from_pretrained(tmp_path) for _ in range(3))
    assert tokenizer_fingerprint(loaded) == before
    loaded.pad_token = loaded.eos_token
    padded = tokenizer_fingerprint(loaded)
    loaded(["the", "the quick brown fox"], padding=True, truncation=True, max_length=3)
    assert tokenizer_fingerprint(loaded) == padded
    more.add_tokens(["zebra"])
    special.eos_token = "a"
    assert len({before, tokenizer_fingerprint(more), tokenizer_fingerprint(special)}) == 3
