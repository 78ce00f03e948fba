"""The pipeline by the functions of `specpilot`: the class of the options names what is made and trained."""

import json
from pathlib import Path
from typing import Any

import pytest
import specpilot
from specpilot.common.files import MANIFEST
from specpilot.controllers.acceptance import lag_free_head
from specpilot.data_gen.dataset import read_manifest
from specpilot.data_gen.kinds import read_dataset
from specpilot.infer.prompting import encode_prompt
from specpilot.models.loading.names import load_tokenizer
from specpilot.train import pipeline

from ..helpers.refusals import refused
from ..helpers.tiny import pair_and_prompts


def test_from_prompts_to_a_comparison(tmp_path: Path) -> None:
    """The models have no chat template, and no option decides about it."""
    pair = pair_and_prompts(tmp_path, [f"prompt {i}" for i in range(12)])
    del pair["chat"]
    for name in ("target", "draft"):
        (tmp_path / name / "chat_template.jinja").unlink()
    options = specpilot.AcceptanceDataOptions(**pair, max_new_tokens=6, shard_size=4)
    data = specpilot.make_dataset(options, tmp_path / "data")
    assert read_manifest(data).kind == "acceptance"
    assert json.loads((data / MANIFEST).read_text())["settings"]["chat"] is False
    training = specpilot.LagFreeTrainingOptions(
        data=str(data), epochs=1, traced=2, width=4, validation_fraction=0.3, device="cpu"
    )
    result = specpilot.train(training, tmp_path / "run")
    controller = specpilot.export(result.run, tmp_path / "controller")
    names = {key: pair[key] for key in ("target", "draft", "device")}
    comparison = specpilot.compare(
        [controller, 2], ["one", "two"], **names, max_new_tokens=4, clock=False, output=tmp_path / "report"
    )
    assert {str(controller), "2"} <= {*comparison.report.decoders}
    assert comparison.report.task.chat is False
    assert all("--no-chat" in command for command in comparison.commands.values() if " generate " in command)


def test_data_of_models_with_a_chat_template(tmp_path: Path) -> None:
    options = specpilot.AnswersDataOptions(target="tiny", limit=1, max_new_tokens=2, device="cpu")
    data = specpilot.make_dataset(options, tmp_path / "data")
    assert json.loads((data / MANIFEST).read_text())["settings"]["chat"] is True
    (row,) = read_dataset(data)
    tokenizer = load_tokenizer("tiny")
    assert row.prompt_ids == encode_prompt(tokenizer, row.prompt, chat=True) != encode_prompt(tokenizer, row.prompt)


KINDS = {
    "AcceptanceDataOptions": "make_acceptance_data", "AnswersDataOptions": "make_answers",
    "OnPolicyDataOptions": "make_on_policy_data", "RouterDataOptions": "make_router_data",
    "FeatureDataOptions": "make_features", "LagFreeTrainingOptions": "train_acceptance",
    "SpecDecTrainingOptions": "train_acceptance", "FeatureModelTrainingOptions": "train_acceptance",
    "CopyTrainingOptions": "train_copies", "RouterTrainingOptions": "train_router",
    "DraftTrainingOptions": "train_draft",
}  # fmt: skip


@pytest.mark.parametrize(("kind", "function"), KINDS.items(), ids=KINDS)
def test_the_class_of_the_options_names_the_function(kind: str, function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, Any]] = []
    for name in KINDS.values():
        monkeypatch.setattr(pipeline, name, lambda *arguments, name=name, **_: calls.append((name, arguments)))
    training = kind.endswith("TrainingOptions")
    arguments = {"data": "d"} if training or kind == "FeatureDataOptions" else {}
    options = getattr(specpilot, kind)(**arguments)
    (specpilot.train if training else specpilot.make_dataset)(options, "folder")
    assert calls == [(function, (options, "folder"))]


def test_options_that_belong_elsewhere() -> None:
    with refused("options: has the type AnswersDataOptions; pass specpilot's LagFreeTrainingOptions"):
        specpilot.train(specpilot.AnswersDataOptions(), "folder")
    with refused("options: has the type TrainingOptions; pass specpilot's AcceptanceDataOptions"):
        specpilot.make_dataset(specpilot.LagFreeTrainingOptions(data="d"), "folder")
    with refused("workers: would be ignored"):
        specpilot.make_dataset(specpilot.OnPolicyDataOptions(), "folder", workers=specpilot.WorkerOptions(workers=2))
    responses = specpilot.ResponseOptions(responses="openai", base_url="http://localhost:8000/v1")
    for options in (specpilot.OnPolicyDataOptions(), specpilot.AnswersDataOptions()):
        with refused("responses: would be ignored"):
            specpilot.make_dataset(options, "folder", responses=responses)


def test_packages_are_functions_too() -> None:
    """The packages can be called in any order of imports."""
    assert specpilot.LagFreeTrainingOptions is lag_free_head.TrainingOptions
    assert specpilot.train.pipeline is pipeline
    assert callable(specpilot.train)
