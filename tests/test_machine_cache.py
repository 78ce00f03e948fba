"""What is kept, and by which key: costs of a pair on this machine, and results by what is in a controller's files."""

import json
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from specpilot.checkpoints import FOLDER
from specpilot.cli import main as cli
from specpilot.common import machine_cache
from specpilot.common.errors import InputError
from specpilot.common.files import FolderLock
from specpilot.common.machine_cache import BEFORE, cache_folder, described, remembered
from specpilot.controllers.checkpoints.checkpoint import controller_digest, load_controller, save_controller
from specpilot.controllers.length.cost_model import CostModel
from specpilot.data_gen.dataset import read_manifest
from specpilot.data_gen.on_policy import make_on_policy_data
from specpilot.data_gen.options import OnPolicyDataOptions
from specpilot.infer.costs import T_DRAFT, T_TOKEN, pair_costs
from specpilot.infer.loading.controllers import length_digest
from specpilot.models import CausalLM, language_model
from specpilot.models.loading.names import load_model

from .clock import time_forwards
from .tiny import make

COST = CostModel(0.1, 1.0, 0.01)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(machine_cache.FOLDER, str(tmp_path / "cache"))
    return tmp_path / "cache"


def found(cost: CostModel = COST, *, good: bool = True, pair: str = "a") -> tuple[CostModel, bool]:
    value, file, how = remembered({"costs": pair}, CostModel, lambda: (cost, good))
    assert (file is None) == (not how.endswith(("kept in", "read from")))
    return value, how == BEFORE


def test_once_for_each_pair_and_machine(folder: Path) -> None:
    other = CostModel(0.2, 2.0, 0.0)
    assert found() == (COST, False)
    assert found(other) == (COST, True)
    assert found(other, pair="b") == (other, False)
    key, threads = described()["key"], torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert described()["key"] != key
        assert found(other) == (other, False)
    finally:
        torch.set_num_threads(threads)
    assert described() == {"folder": str(folder), "key": key, "files": 2}
    assert len([*folder.iterdir()]) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[:-9],
        lambda text: "[]",
        lambda text: text.replace("0.1", "NaN"),
        lambda text: text.replace("0.1", '"0.1"'),
        lambda text: text.replace('"costs": "a"', '"costs": "b"'),
        lambda text: json.dumps({"key": json.loads(text)["key"]}),
    ],
)
def test_a_damaged_file_is_measured_anew_with_a_line(damage: Callable[[str], str], folder: Path) -> None:
    found()
    (file,) = folder.iterdir()
    file.write_text(damage(file.read_text()))
    other = CostModel(0.2, 2.0, 0.0)
    with pytest.warns(UserWarning, match=f"^{file}: .*measured anew"):
        assert found(other) == (other, False)
    assert found() == (other, True)
    assert [*folder.iterdir()] == [file]


def test_what_cannot_be_kept_is_measured_every_time(folder: Path) -> None:
    assert [found(good=False), found(good=False)] == [(COST, False)] * 2
    folder.write_text("a file")
    assert [found(), found()] == [(COST, False)] * 2
    assert folder.read_text() == "a file"


@pytest.mark.parametrize(
    ("system", "environment", "expected"),
    [
        ("Linux", {"XDG_CACHE_HOME": "/tmp/x"}, "/tmp/x/specpilot"),
        ("Linux", {"XDG_CACHE_HOME": "x"}, "/home/me/.cache/specpilot"),
        ("Linux", {}, "/home/me/.cache/specpilot"),
        ("Darwin", {}, "/home/me/Library/Caches/specpilot"),
        ("Windows", {"LOCALAPPDATA": "/local"}, "/local/specpilot"),
        ("Linux", {"SPECPILOT_CACHE": "/mine"}, "/mine"),
    ],
)
def test_the_folder(system: str, environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", machine_cache.FOLDER):
        monkeypatch.delenv(name, raising=False)
    for name, value in (environment | {"HOME": "/home/me"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(platform, "system", lambda: system)
    assert cache_folder() == Path(expected)


@pytest.mark.parametrize("seconds", [0.001, 0.03, 0.1, 0.2, 0.25, 0.3, 0.9, 3.0])
@pytest.mark.usefixtures("folder")
def test_a_second_at_most(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or one forward of each model, if that takes longer. Nothing is measured twice."""
    target, draft = language_model(load_model("tiny")), language_model(load_model("tiny-draft"))
    forwards: list[CausalLM] = []

    def takes(model: CausalLM, tokens: int) -> float:
        forwards.append(model)
        return seconds * (1.0 if model is target else 0.1) * (1 + 0.05 * min(tokens, 9))

    clock = time_forwards(monkeypatch, takes)
    cost = pair_costs(target, draft)
    assert clock.now <= 1.0 or forwards == [target, draft]
    if seconds < 0.1:
        assert cost.verification(1) == pytest.approx(1.05 * seconds)
        assert cost.t_draft == pytest.approx(0.105 * seconds)
        assert cost.t_verify_token == pytest.approx(0.05 * seconds)
    if seconds >= 0.9:
        assert cost.t_draft == pytest.approx(T_DRAFT * cost.verification(1))
        assert cost.t_verify_token == pytest.approx(T_TOKEN * cost.verification(1))


@pytest.mark.usefixtures("folder")
def test_another_pair_or_precision_is_measured_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = time_forwards(monkeypatch, lambda model, n: 0.001)
    target, draft = (CausalLM(make(seed=seed)) for seed in range(2))
    for pair in ((target, None), (draft, None), (target, draft), (target, CausalLM(make(seed=1).bfloat16()))):
        before = clock.now
        cost = pair_costs(*pair)
        measured = clock.now
        assert pair_costs(*pair) == cost
        assert clock.now == measured > before


# Results are filed by what is in a controller's files: trained again in its old place it is measured again

Train = Callable[[int], str]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Writes a head of the included pair with the weights of a seed to one and the same folder."""
    trained = load_controller("tiny-head")

    def write(seed: int) -> str:
        torch.manual_seed(seed)
        torch.nn.init.normal_(next(trained.head.parameters()))
        return str(save_controller(tmp_path / "head", trained.head, trained.config, overwrite=True))

    return write


def test_a_controllers_digest_is_that_of_its_weights_and_configuration(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = train(0)
    first = controller_digest(head)
    assert first == controller_digest(Path(head)) == length_digest(head)
    (Path(head) / "README.md").write_text("another card")
    assert controller_digest(head) == first
    assert controller_digest(train(1)) != first
    assert controller_digest(train(0)) == first
    config = json.loads((Path(head) / "config.json").read_text())
    (Path(head) / "config.json").write_text(json.dumps(config | {"threshold": 0.5}))
    assert controller_digest(head) != first
    assert controller_digest("tiny-head") == controller_digest(FOLDER / "tiny-head")
    with pytest.raises(InputError, match="no such controller"):
        controller_digest("./nowhere")
    (tmp_path / "4").mkdir()  # a folder of that name is not what length=4 means
    monkeypatch.chdir(tmp_path)
    for length in (None, 4, "4", "none", "cumulative-confidence:0.3"):
        assert length_digest(length) is None


def test_on_policy_data_of_another_controller_is_other_data(train: Train, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one\ntwo\n")
    (tmp_path / "cost.json").write_text(json.dumps({"cost": CostModel(0.1, 1.0, 0.0).as_dict()}))
    settings = OnPolicyDataOptions(
        target="tiny", draft="tiny-draft", prompts=str(tmp_path / "p.txt"), chat=False, max_new_tokens=6,
        length=train(0), cost=str(tmp_path / "cost.json"), device="cpu",
    )  # fmt: skip
    folder = make_on_policy_data(settings, str(tmp_path / "rounds"))
    assert make_on_policy_data(settings, folder) == folder  # complete, and left as it is
    assert read_manifest(folder)["cost"] == CostModel(0.1, 1.0, 0.0).as_dict()
    train(1)
    with pytest.raises(InputError, match=r"other settings: controller was"):
        make_on_policy_data(settings, folder)
    train(0)
    (tmp_path / "cost.json").write_text(json.dumps({"cost": CostModel(0.2, 1.0, 0.0).as_dict()}))
    with pytest.raises(InputError, match=r"other settings: cost\."):
        make_on_policy_data(settings, folder)
    make_on_policy_data(replace(settings, cost=0.1), folder)  # a number that comes to the same
    rule = make_on_policy_data(replace(settings, length="3", cost=None), tmp_path / "rule")
    assert "controller" not in read_manifest(rule)


def test_a_folder_has_one_holder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a" / "b"
    with FolderLock(folder, "is at work"):
        with pytest.raises(InputError, match=rf"^{folder}: another process is at work; wait for it, or stop it$"):
            FolderLock(folder, "is at work")
        with FolderLock(tmp_path / "a", "is at work"):
            pass
        before = sorted(folder.iterdir())
        assert cli.main(["compare", "--target", "./nowhere", "--output", str(folder)]) == 2
        assert f"{folder}: another process" in capsys.readouterr().err
        assert sorted(folder.iterdir()) == before
    FolderLock(folder, "is at work").release()
    with pytest.raises(ZeroDivisionError), FolderLock(folder, "is at work"):
        _ = 1 / 0
    FolderLock(folder, "is at work").release()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file; give a folder"):
        FolderLock(tmp_path / "file", "is at work")
