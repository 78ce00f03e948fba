"""Compiled forwards: the same numbers, and a reason where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from specpilot.infer.models import TextReader, language_model
from specpilot.main import main
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.utils import fresh_cache

from .tiny import make, save_pair


@torch.inference_mode()
def test_compiled_forwards_give_the_same_and_are_compiled_once() -> None:
    models = [language_model(make("gpt2", layers=1), compile=on) for on in (False, True)]
    assert models[1].call is not None
    graphs = counters["stats"]["unique_graphs"]
    for room in (20, 30):
        readers = [TextReader.begin(model, [0], room)[0] for model in models]
        for n in (5, 1, 4, 1, 2):
            plain, compiled = (reader.read(list(range(n)))[0] for reader in readers)
            torch.testing.assert_close(compiled, plain)
    assert counters["stats"]["unique_graphs"] == graphs


def test_where_there_is_no_compiler_decoding_goes_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config.cpp, "cxx", ("no-such-compiler",))
    torch.compiler.reset()
    with fresh_cache(), pytest.warns(UserWarning, match="compile: opt could not be compiled"):
        model = language_model(make("opt"), compile=True)
    assert model.call is None
    reader, text = TextReader.begin(model, [1, 2])
    assert reader.read(text)[0].shape == (2, 64)


def test_lean_forwards_are_left_as_they_are() -> None:
    with pytest.warns(UserWarning, match="compile: llama is not compiled, since its lean forward"):
        assert language_model(make("llama"), compile=True).call is None


def test_encoder_decoders_are_not_compiled() -> None:
    with pytest.warns(UserWarning, match="compile: not supported for t5"):
        assert language_model(make("t5"), compile=True).call is None


def test_the_command_line_warns_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, draft = save_pair(tmp_path)
    words = ["--target", target, "--draft", draft, "--compile", "--max-new-tokens", "2"]
    assert main(["generate", "hello", *words]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "compile" in line]
    assert lines[0] == "specpilot: warning: compile: llama is not compiled, since its lean forward is as fast"
