"""GGUF files as users have them: their tokenizers, bad ones, and controllers trained on them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from specpilot import main as cli
from specpilot.common.errors import InputError
from specpilot.controllers.checkpoints.fingerprint import model_fingerprint, tokenizer_fingerprint
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.loading.gguf_tokenizer import OWN, PROBE
from specpilot.infer.loading.names import load_any_model, load_model, load_tokenizer
from specpilot.infer.models import GgufModel, output_embedding

from .files import random_llama, write_gguf  # skips where the extra is missing


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    for name in ("tiny", "tiny-draft"):
        write_gguf(name, folder / f"{name}.gguf", "f32")
    return folder


def rewrite(source: Path, target: Path, change: Callable[[str, Any], Any]) -> Path:
    """``source`` as ``target``, with the metadata that ``change`` makes of each key and value; None leaves one out."""
    from gguf import GGUFReader, GGUFValueType, GGUFWriter

    reader = GGUFReader(source)
    architecture = change("general.architecture", reader.fields["general.architecture"].contents())
    writer = GGUFWriter(str(target), architecture)
    for key, entry in reader.fields.items():
        value = change(key, entry.contents())
        if not key.startswith("GGUF.") and key != "general.architecture" and value is not None:
            kind = entry.types[0]
            writer.add_key_value(key, value, kind, entry.types[-1] if kind == GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def test_the_tokenizer_is_transformers_own(folder: Path) -> None:
    ours, theirs = load_tokenizer(folder / "tiny.gguf"), load_tokenizer("tiny")
    assert tokenizer_fingerprint(ours) == tokenizer_fingerprint(theirs)
    assert ours.chat_template == theirs.chat_template
    assert ours(PROBE)["input_ids"] == theirs(PROBE)["input_ids"]
    model = load_any_model(folder / "tiny.gguf")
    assert isinstance(model, GgufModel)
    assert model.tokenize(PROBE) == theirs(PROBE)["input_ids"]


def test_a_file_without_it_has_one_made_of_llama_cpps(folder: Path, tmp_path: Path) -> None:
    path = rewrite(folder / "tiny.gguf", tmp_path / "plain.gguf", lambda key, value: None if key == OWN else value)
    ours, theirs = load_tokenizer(path), load_tokenizer("tiny")
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours(PROBE)["input_ids"] == theirs(PROBE)["input_ids"]
    chat = [{"role": "user", "content": "hello"}]
    assert ours.apply_chat_template(chat, tokenize=False) == theirs.apply_chat_template(chat, tokenize=False)
    greedy = {"temperature": 0, "max_new_tokens": 20, "chat": True}
    expected = SpeculativeDecoder.from_pretrained("tiny").generate("hello", **greedy)
    for options in ({}, {"tokenizer": "tiny"}):
        found = SpeculativeDecoder.from_pretrained(path, folder / "tiny-draft.gguf", **options)
        assert found.generate("hello", **greedy).text == expected.text


def test_splitting_otherwise_than_llama_cpp_is_a_warning(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    other = rewrite(folder / "tiny.gguf", path, lambda key, value: value[:900] if key.endswith(".merges") else value)
    with pytest.warns(UserWarning, match="splits text otherwise than llama"):
        SpeculativeDecoder.from_pretrained(other)


def test_weights_and_fingerprints(folder: Path, tmp_path: Path) -> None:
    exact = load_any_model(folder / "tiny-draft.gguf")
    theirs = output_embedding(load_model("tiny-draft"))
    assert torch.equal(output_embedding(exact), theirs)
    prints = {model_fingerprint(exact)}
    for kind, tolerance in (("bf16", 0.0), ("q8_0", 0.02)):  # the shipped weights are bfloat16
        write_gguf("tiny-draft", tmp_path / f"{kind}.gguf", kind)
        found = load_any_model(tmp_path / f"{kind}.gguf")
        assert float((output_embedding(found) - theirs).abs().max() / theirs.abs().max()) <= tolerance
        prints.add(model_fingerprint(found))
    assert len(prints) == 3
    copied = tmp_path / "copy.gguf"
    copied.write_bytes((folder / "tiny-draft.gguf").read_bytes())
    assert model_fingerprint(load_any_model(copied)) in prints


BAD: dict[str, str] = {
    "head": "the GGUF file is truncated or damaged; fetch it again",
    "tensors": "the GGUF file is truncated or damaged; fetch it again",
    "magic": "no GGUF file, though its name ends so",
    "missing": "no such GGUF file",
    "architecture": "llama.cpp cannot load it (",
    "tokenizer": "is of another tokenizer: ",
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_files_are_one_line(folder: Path, tmp_path: Path, bad: str, capfd: pytest.CaptureFixture[str]) -> None:
    source, path = folder / "tiny-draft.gguf", tmp_path / "bad.gguf"
    match bad:
        case "head":
            path.write_bytes(source.read_bytes()[:9000])
        case "tensors":
            path.write_bytes(source.read_bytes()[:-9000])
        case "magic":
            path.write_bytes(b"not a model")
        case "architecture":
            rewrite(source, path, lambda key, value: "toaster" if key == "general.architecture" else value)
        case "tokenizer":
            random_llama(tmp_path, "random")[0].rename(path)
    capfd.readouterr()
    assert cli.main(["generate", "hello", "--target", str(folder / "tiny.gguf"), "--draft", str(path)]) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert BAD[bad] in printed.err
    assert "bad.gguf" in printed.err or bad == "tokenizer"


def test_options_that_a_gguf_file_has_not(folder: Path) -> None:
    path = folder / "tiny.gguf"
    for options, message in (
        ({"dtype": "float64"}, "dtype='float64': a GGUF model's keys and values are float32, float16, bfloat16, auto"),
        ({"device_map": "auto"}, "device_map='auto': none for"),
        ({"revision": "main"}, "revision='main': none for"),
    ):
        with pytest.raises(InputError, match=message):
            SpeculativeDecoder.from_pretrained(path, **options)
    with pytest.raises(InputError, match="a GGUF file, where a model in transformers' format is needed"):
        load_model(path)


def test_controllers_are_trained_on_gguf_pairs(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Data, training, export and decoding, by the command line, which says nothing of its own."""
    pair = ["--target", str(folder / "tiny.gguf"), "--draft", str(folder / "tiny-draft.gguf")]
    data, run, exported = (str(tmp_path / name) for name in ("data", "run", "head"))
    assert cli.main(["data", "acceptance", *pair, "--limit", "12", "--max-new-tokens", "16", "--output", data]) == 0
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_text())
    same = str(tmp_path / "same")
    assert cli.main(["data", "acceptance", "--limit", "12", "--max-new-tokens", "16", "--output", same]) == 0
    theirs = json.loads((tmp_path / "same" / "manifest.json").read_text())
    assert manifest["mean_acceptance"] == pytest.approx(theirs["mean_acceptance"], abs=1e-3)
    training = ["--data", data, "--output", run, "--validation-fraction", "0.4", "--epochs", "1"]
    assert cli.main(["train", "acceptance", *training]) == 0
    assert cli.main(["export", run, "--output", exported]) == 0
    capfd.readouterr()
    assert cli.main(["generate", "hello", *pair, "--length", exported, "--max-new-tokens", "8"]) == 0
    assert capfd.readouterr().err == ""
    with pytest.raises(InputError, match="another target and draft is given"):
        SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length=exported)
