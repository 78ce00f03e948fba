"""Digests of controllers, by which results are filed, and folders that one process holds at a time."""

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from specpilot.checkpoints import FOLDER
from specpilot.cli import main as cli
from specpilot.common.errors import InputError
from specpilot.common.files import FolderLock
from specpilot.controllers.checkpoints.checkpoint import controller_digest, load_controller, save_controller
from specpilot.controllers.length.cost_model import CostModel
from specpilot.data_gen.dataset import read_manifest
from specpilot.data_gen.on_policy import make_on_policy_data
from specpilot.data_gen.options import OnPolicyDataOptions
from specpilot.infer.loading.controllers import length_digest

# Results are filed by what is in a controller's files: trained again in its old place it is measured again

Train = Callable[[int], str]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Return a function that writes a head of the included pair, with the weights of a seed, to the same folder."""
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
    (tmp_path / "cost.json").write_text(json.dumps({"cost": CostModel(0.1, 1.0, 0.0).to_dict()}))
    settings = OnPolicyDataOptions(
        target="tiny", draft="tiny-draft", prompts=str(tmp_path / "p.txt"), chat=False, max_new_tokens=6,
        length=train(0), cost=str(tmp_path / "cost.json"), device="cpu",
    )  # fmt: skip
    folder = make_on_policy_data(settings, str(tmp_path / "rounds"))
    assert make_on_policy_data(settings, folder) == folder  # complete, and left as it is
    assert read_manifest(folder).cost == CostModel(0.1, 1.0, 0.0)
    train(1)
    with pytest.raises(InputError, match=r"other settings: controller was"):
        make_on_policy_data(settings, folder)
    train(0)
    (tmp_path / "cost.json").write_text(json.dumps({"cost": CostModel(0.2, 1.0, 0.0).to_dict()}))
    with pytest.raises(InputError, match=r"other settings: cost\."):
        make_on_policy_data(settings, folder)
    make_on_policy_data(replace(settings, cost=0.1), folder)  # a number that comes to the same
    rule = make_on_policy_data(replace(settings, length="3", cost=None), tmp_path / "rule")
    assert read_manifest(rule).controller is None


def test_a_folder_has_one_holder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a" / "b"
    with FolderLock(folder, "is at work"):
        with pytest.raises(InputError, match=rf"^{folder}: another process is at work; wait for it, or stop it$"):
            FolderLock(folder, "is at work")
        with FolderLock(tmp_path / "a", "is at work"):
            pass
        before = sorted(folder.iterdir())
        assert cli.main(["compare", "--target", "./nowhere", "--output", str(folder)]) == 2
        assert f"output='{folder}': another process" in capsys.readouterr().err
        assert sorted(folder.iterdir()) == before
    FolderLock(folder, "is at work").release()
    with pytest.raises(ZeroDivisionError), FolderLock(folder, "is at work"):
        _ = 1 / 0
    FolderLock(folder, "is at work").release()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file; choose a folder"):
        FolderLock(tmp_path / "file", "is at work")


@pytest.mark.parametrize("number", [errno.ENOLCK, 524])
def test_a_folder_that_cannot_be_locked_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The error is that of some network file systems. No file remains in the folder."""

    def flock(*_: object) -> None:
        raise OSError(number, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(InputError, match=rf"^{tmp_path / 'a'}: .*choose a folder on another disk"):
        FolderLock(tmp_path / "a", "is at work")
    assert list(tmp_path.iterdir()) == []
