"""Decoding of a real pair by the clock (experiments/real), here with the tiny models."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from specpilot.common.errors import InputError
from specpilot.controllers.checkpoints.checkpoint import load_controller, save_controller
from specpilot.controllers.checkpoints.fingerprint import PairFingerprint, model_fingerprint, tokenizer_fingerprint
from specpilot.controllers.checkpoints.provenance import Provenance
from specpilot.controllers.router import RouterPolicy
from specpilot.controllers.router.policy import RouterConfig
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.prompts import load_prompts
from specpilot.infer.loading.controllers import load_policy
from specpilot.infer.loading.names import load_model, load_tokenizer
from specpilot.infer.loading.routing import load_arms
from specpilot.infer.models import CausalLM

from experiments.real.configurations import AUTOREGRESSIVE, OURS, PREDICTOR_NGRAM
from experiments.real.configurations import ROUTER as ROUTED
from experiments.real.decode import as_tables, compared, measure
from experiments.real.fetch import COPIES, DRAFT, FOLDER, HEAD, INCLUDED, ROUTER, TOKENIZER, _included
from experiments.real.prompts import HELD_OUT, PROMPTS, write_prompts
from experiments.real.settings import RealDecodeOptions

KINDS = ("chat", "code")


def test_every_configuration_is_timed_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [{"id": f"{i}", "domain": KINDS[i % 2], "prompt": f"What is {i} plus 3?"} for i in range(6)]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = RealDecodeOptions(
        target="tiny", draft="tiny-draft", controller="tiny-lag-free", prompts=prompts, per_kind=1,
        max_new_tokens=6, temperatures=(0.0, 1.0), dtypes=("float32",), folder=tmp_path / "times",
        output=tmp_path / "result.json",
    )  # fmt: skip
    result = measure(settings, tmp_path / "result.json")
    rates = result["tokens_per_second"]["float32"]
    assert set(rates) == {"0.0", "1.0"}
    for by_kind in rates.values():
        assert set(by_kind) == {"all", *KINDS}
        assert all(rate > 0 for by_name in by_kind.values() for rate in by_name.values())
        names = set(by_kind["all"])
        assert {OURS, AUTOREGRESSIVE, "transformers-generate", "transformers-assisted-2", "specpilot-2+ngram"} <= names
    *tables, gains = as_tables(result)
    assert [table.title for table in tables] == ["PyTorch, float32, temperature 0", "PyTorch, float32, temperature 1"]
    assert all(row["chat"] for table in tables for row in table.rows)
    assert len(gains.rows) == 2
    again = measure(settings, tmp_path / "again.json")  # from the stored times
    assert again["tokens_per_second"] == result["tokens_per_second"]
    assert json.loads((tmp_path / "result.json").read_text())["ratios"] == result["ratios"]


def test_held_out_prompts_share_no_text_with_the_others(tmp_path: Path) -> None:
    passages = [f"Passage {i} tells a story." for i in range(40)]
    names = ("mbpp", "nl2bash", "python_functions", "gsm8k", "svamp", "aqua", "math500", "books", "self_instruct")
    for name in names:
        of = passages if name == "books" else [f"{name} task {i}" for i in range(24)]
        rows = [{"prompt": text, "response": text.replace("Passage", "Chapter")} for text in of]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_prompts(tmp_path, tmp_path, 30, 10)
    seen, held_out = load_prompts(str(tmp_path / PROMPTS)), load_prompts(str(tmp_path / HELD_OUT))
    assert sorted({row.domain for row in seen}) == ["chat", "code", "maths", "rewriting", "summarising"]
    assert len(seen) == 150
    assert {kind: len([*rows]) for kind, rows in groupby(held_out, lambda row: row.domain)} == {
        "code": 10, "maths": 10, "chat": 10, "summarising": 10, "rewriting": 10
    }  # fmt: skip
    of_seen = {row.prompt.split("\n\n")[-1] for row in seen}
    assert not of_seen & {row.prompt.split("\n\n")[-1] for row in held_out}
    assert len({row.id for row in [*seen, *held_out]}) == 200


def save_router(folder: Path) -> str:
    """A router of ``tiny`` with random weights."""
    target = load_model("tiny")
    tokenizer = load_tokenizer("tiny")
    arms = load_arms(
        ["tiny-draft", "ngram", "exit:2", "autoregressive"], CausalLM(target), tokenizer, dtype="float32", device="cpu"
    )
    size = target.config.hidden_size
    config = RouterConfig(
        provenance=Provenance(
            "tiny", None, PairFingerprint(model_fingerprint(target), None, tokenizer_fingerprint(tokenizer)),
            SamplingParams(),
        ),
        datasets=["d" * 64], hidden_size=size, width=16, arms=tuple(arm.arm for arm in arms), reward="rouge",
        alpha=0.5, cost="parameters",
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        save_controller(folder, RouterPolicy(size, len(arms), 16), config)
    return str(folder)


def test_some_configurations_and_a_router(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"domain": "chat", "prompt": f"Add {i} and 3."}) + "\n" for i in range(2)))
    settings = RealDecodeOptions(
        target="tiny", draft="tiny-draft", controller="tiny-lag-free", router=save_router(tmp_path / "router"),
        only=(AUTOREGRESSIVE, OURS, ROUTED), prompts=prompts, per_kind=2, max_new_tokens=6,
        temperatures=(0.0,), dtypes=("float32",), folder=tmp_path / "times",
        output=tmp_path / "result.json",
    )  # fmt: skip
    result = measure(settings, tmp_path / "result.json")
    assert set(result["tokens_per_second"]["float32"]["0.0"]["all"]) == {AUTOREGRESSIVE, OURS, ROUTED}
    assert result["ratios"]["float32"]["0.0"]["router_over_autoregressive"]["ratio"] > 0
    assert "ours_over_best_rule" not in result["ratios"]["float32"]["0.0"]
    assert "the router over autoregressive" in as_tables(result)[-1].rows[0]
    with pytest.raises(InputError, match=r"only='specpilot-9': no such configuration; they are .*specpilot-router"):
        measure(replace(settings, only=("specpilot-9",)), tmp_path / "result.json")


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


def test_comparison_names_the_best_rule_and_the_worst_kind() -> None:
    tokens = np.array([10.0, 10.0])
    times = {
        AUTOREGRESSIVE: (tokens, np.array([1.0, 1.0])), OURS: (tokens, np.array([0.5, 2.0])),
        "specpilot-1": (tokens, np.array([1.0, 1.0])), "specpilot-2": (tokens, np.array([0.8, 0.8])),
        "transformers-generate": (tokens, np.array([0.1, 0.1])),
    }  # fmt: skip
    masks = {"all": np.array([True, True]), "chat": np.array([True, False]), "code": np.array([False, True])}
    found = compared(times, masks)
    assert found["ours_over_autoregressive"]["ratio"] == pytest.approx(2 / 2.5)
    assert found["worst_over_autoregressive"] == pytest.approx({"ratio": 0.5, "low": 0.5, "high": 0.5, "kind": "code"})
    assert found["ours_over_best_rule"]["rule"] == "specpilot-2"
    assert found["ours_over_best_rule"]["ratio"] == pytest.approx(1.6 / 2.5)
    assert "chains_over_best_rule" not in found
    found = compared(times | {PREDICTOR_NGRAM: (tokens, np.array([0.5, 0.3]))}, masks)  # no rule, though the fastest
    assert found["ours_over_best_rule"]["rule"] == "specpilot-2"
    assert found["chains_over_autoregressive"]["ratio"] == pytest.approx(2 / 0.8)
    assert found["chains_over_best_rule"]["ratio"] == pytest.approx(1.6 / 0.8)
