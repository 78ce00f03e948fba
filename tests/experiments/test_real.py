"""The prompts of the real pair, what is included for it, and the decoders that are compared on it."""

import json
from itertools import groupby
from pathlib import Path

import pytest
from safetensors.torch import load_file
from specpilot.controllers.checkpoints.checkpoint import load_controller
from specpilot.data_gen.prompts import load_prompts
from specpilot.infer.loading.controllers import load_policy

from experiments.__main__ import main
from experiments.real.fetch import COPIES, DRAFT, FOLDER, HEAD, INCLUDED, ROUTER, TOKENIZER, _included
from experiments.real.prompts import HELD_OUT, PROMPTS

KINDS = ("chat", "code")


def test_held_out_prompts_share_no_text_with_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    passages = [f"Passage {i} tells a story." for i in range(40)]
    names = ("mbpp", "nl2bash", "python_functions", "gsm8k", "svamp", "aqua", "math500", "books", "self_instruct")
    for name in names:
        of = passages if name == "books" else [f"{name} task {i}" for i in range(24)]
        rows = [{"prompt": text, "response": text.replace("Passage", "Chapter")} for text in of]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(f"real-prompts --data {tmp_path}/nowhere --output {tmp_path}/prompts".split()) == 2
    assert "has no file" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "prompts").exists()
    words = f"real-prompts --data {tmp_path} --per-kind 30 --held-out 10 --output {tmp_path}/prompts"
    assert main(words.split()) == 0
    folder = tmp_path / "prompts"
    assert capsys.readouterr().out.split() == [str(folder / PROMPTS), str(folder / HELD_OUT)]
    training_prompts, held_out = load_prompts(str(folder / PROMPTS)), load_prompts(str(folder / HELD_OUT))
    assert sorted({row.domain for row in training_prompts}) == ["chat", "code", "maths", "rewriting", "summarising"]
    assert len(training_prompts) == 150
    assert {kind: len([*rows]) for kind, rows in groupby(held_out, lambda row: row.domain)} == {
        "code": 10, "maths": 10, "chat": 10, "summarising": 10, "rewriting": 10
    }  # fmt: skip
    of_seen = {row.prompt.split("\n\n")[-1] for row in training_prompts}
    assert not of_seen & {row.prompt.split("\n\n")[-1] for row in held_out}
    assert len({row.id for row in [*training_prompts, *held_out]}) == 200


def test_included_draft_predictor_and_router_belong_together(tmp_path: Path) -> None:
    target = tmp_path / FOLDER
    target.mkdir()
    for name in TOKENIZER:
        (target / name).write_text(name)
    names = (DRAFT, HEAD, COPIES, ROUTER)
    draft, head, copies, router = (_included(name, tmp_path, target) for name in names)
    assert (draft / "tokenizer.json").read_text() == "tokenizer.json"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([FOLDER, *names])
    description = json.loads((draft / "draft.json").read_text())
    assert 576 in {value.shape[-1] for value in load_file(draft / "draft.safetensors").values()}
    controller = load_controller(head)
    assert controller.config.provenance.fingerprint.target == description["target"]["fingerprint"]
    assert load_controller(copies).config.provenance.fingerprint.target == description["target"]["fingerprint"]
    _, config = load_policy(router)
    assert config.provenance.fingerprint.target == description["target"]["fingerprint"]
    assert [arm.name for arm in config.arms] == [DRAFT, "ngram", "exit:6", "autoregressive"]
    assert config.arms[0].fingerprint == controller.config.provenance.fingerprint.draft
    for file in INCLUDED.rglob("*.json"):
        assert '"/' not in file.read_text(), f"{file}: names a path of some machine"
