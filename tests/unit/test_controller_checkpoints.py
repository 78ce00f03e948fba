"""Controller checkpoints of every kind: their contents, refused files, upload and download."""

import ast
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from specpilot.controllers.acceptance import copy_head, specdec_head
from specpilot.controllers.checkpoints import checkpoint
from specpilot.controllers.checkpoints.card import model_card
from specpilot.controllers.checkpoints.checkpoint import load_controller, push_controller, save_controller
from specpilot.controllers.checkpoints.config import ControllerConfig
from specpilot.controllers.length import TrainedLength, load_trained
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.registry import CONTROLLERS, controller_module
from specpilot.controllers.router import policy
from specpilot.infer.loading.controllers import load_policy
from specpilot.train.best_epoch import BestEpoch
from specpilot.train.callbacks import RunLog
from torch import nn

from ..helpers.controllers import CONFIG, CONFIGS, PAIR, PROVENANCE
from ..helpers.refusals import refused


def make(config: ControllerConfig) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = config.module()
        for parameter in module.parameters():
            nn.init.normal_(parameter)
    return module


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_controller(tmp_path / "controller", make(CONFIG), CONFIG)


@pytest.fixture(params=CONFIGS)
def any_kind(request: pytest.FixtureRequest) -> ControllerConfig:
    return CONFIGS[request.param]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("kl_undone", 0.3, "kl_unweighted"), ("regret_sampled", 0.2, "expected_regret"), ("auroc", 0.8, "auroc")],
)
def test_metrics_of_earlier_versions_have_their_current_names(
    name: str, old: float, new: str, saved: Path, tmp_path: Path
) -> None:
    """Checkpoints keep old names until they are written again; files of runs are read with current names."""
    edit(metrics={name: old})(saved)
    controller = load_controller(saved)
    assert controller.config.metrics == {new: old}
    written = save_controller(tmp_path / "again", controller.head, controller.config)
    assert json.loads((written / "config.json").read_text())["metrics"] == {new: old}
    assert f"| {new} | {old} |" in (written / "README.md").read_text()
    best = {"epoch": 1, "step": 5, "metrics": {name: old}}
    assert BestEpoch.from_dict(best).metrics == {new: old}
    log = RunLog(tmp_path / "metrics.csv", 1)
    log.load_state_dict({"rows": [{"step": 5, f"val_{name}": old}]})
    assert log.rows == [{"step": 5, f"val_{new}": old}]


def edit(**changes: Any) -> Callable[[Path], object]:
    """Return a function that changes keys of a controller's configuration, and removes keys with the value ``...``."""

    def change(folder: Path) -> None:
        file = folder / "config.json"
        values = {**json.loads(file.read_text(encoding="utf-8")), **changes}
        file.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}), encoding="utf-8")

    return change


def seal(folder: Path) -> None:
    """Write the hash of the changed weights to the configuration."""
    edit(weights_sha256=checkpoint.sha256(folder / "model.safetensors"))(folder)


def weights(**changes: torch.Tensor) -> Callable[[Path], object]:
    """Return a function that replaces or adds tensors, whose names have ``__`` for a dot."""

    def change(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        tensors |= {name.replace("__", "."): tensor for name, tensor in changes.items()}
        save_file(tensors, folder / "model.safetensors")
        seal(folder)

    return change


def content(change: Callable[[bytes], bytes], name: str = "model.safetensors") -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def test_save_and_load(tmp_path: Path, any_kind: ControllerConfig) -> None:
    assert set(CONFIGS) == {controller_module(name).Config.kind for name in CONTROLLERS}
    head = make(any_kind)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    folder = save_controller(tmp_path / "new" / "controller", head, any_kind)
    controller = load_controller(folder)
    assert torch.equal(torch.get_rng_state(), state)
    assert controller.config == any_kind == load_controller(str(folder)).config
    assert controller.head.state_dict().keys() == head.state_dict().keys()
    for name, value in controller.head.state_dict().items():
        assert torch.equal(value, head.state_dict()[name])
    assert not controller.head.training
    assert not any(p.requires_grad for p in controller.head.parameters())
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "README.md"}
    assert len({path.stat().st_mode & 0o777 for path in folder.iterdir()}) == 1  # who reads one may read all
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["controller"]
    (tmp_path / "again").mkdir()  # an empty folder is taken
    again = save_controller(tmp_path / "again", controller.head, controller.config)
    for file in folder.iterdir():
        assert file.read_bytes() == (again / file.name).read_bytes()


def test_a_controller_serves_where_its_kind_belongs(tmp_path: Path, any_kind: ControllerConfig) -> None:
    folder = save_controller(tmp_path / "c", make(any_kind), any_kind)
    pair, embedding = any_kind.provenance.fingerprint, torch.zeros(4, 8)
    length = f"length='{folder}': "
    if isinstance(any_kind, policy.Config):
        assert load_policy(folder)[1] == any_kind
        with refused(f"^{length}is of kind 'router', which predicts no acceptance"):
            load_trained(folder, pair, torch.device("cpu"), embedding)
        return
    with refused(rf"^router='{folder}':"):
        load_policy(folder)
    if isinstance(any_kind, copy_head.Config):
        with refused(rf"^{length}is of kind 'copy-head', .*; give it as copies"):
            load_trained(folder, pair, torch.device("cpu"), embedding)
        return
    cost = CostModel.load(0.2)
    for name in (folder, str(folder)):
        assert isinstance(load_trained(name, pair, torch.device("cpu"), embedding, cost=cost), TrainedLength)
    if not isinstance(any_kind, specdec_head.Config):
        with refused(f"^{length}has no threshold of its own"):
            load_trained(folder, pair, torch.device("cpu"), embedding)


def test_weights_are_float32_whatever_the_head_was_trained_in(tmp_path: Path) -> None:
    head = make(CONFIG).to(torch.bfloat16)
    controller = load_controller(save_controller(tmp_path / "c", head, CONFIG))
    for loaded, trained in zip(controller.head.parameters(), head.parameters(), strict=True):
        assert loaded.dtype == torch.float32
        assert torch.equal(loaded, trained.float())


def test_no_place_on_this_machine_is_published(tmp_path: Path, any_kind: ControllerConfig) -> None:
    local = replace(any_kind, provenance=replace(any_kind.provenance, target=f"{tmp_path}/models/target"))
    if isinstance(local, policy.Config):
        arm = replace(local.arms[0], name=f"{tmp_path}/models/draft")
        local = replace(local, arms=(arm, *local.arms[1:]))
    folder = save_controller(tmp_path / "c", make(any_kind), local)
    assert str(tmp_path) not in "".join((folder / name).read_text() for name in ("config.json", "README.md"))
    assert load_controller(folder).config.provenance.target == "target"


@pytest.mark.parametrize("name", ["", 30 * "x", 60 * "x"])
def test_the_card_names_the_pair_and_the_metrics(any_kind: ControllerConfig, name: str) -> None:
    """The code of the card is Python in short lines, for target names of any length."""
    target = f"org/target-{name}"
    card = model_card(replace(any_kind, provenance=replace(any_kind.provenance, target=target)))
    (metric, value), *_ = any_kind.metrics.items()
    for words in (target, f"- {any_kind.kind}\n", "top-k off", f"| {metric} | {value} |", *any_kind.datasets):
        assert words in card
    code = card.partition("```python\n")[2].partition("```")[0]
    ast.parse(code)
    assert f'target="{target}"' in code
    assert max(map(len, code.splitlines())) <= 120


def test_only_a_controllers_folder_is_overwritten_and_only_when_asked(saved: Path) -> None:
    new = replace(CONFIG, threshold=0.5)
    with refused("--overwrite"):
        save_controller(saved, make(CONFIG), new)
    assert load_controller(saved).config == CONFIG
    save_controller(saved, make(CONFIG), new, overwrite=True)
    assert load_controller(saved).config.threshold == 0.5
    assert [path.name for path in saved.parent.iterdir()] == ["controller"]
    (saved / "thesis.txt").write_text("years of work")
    for place, words in ((saved, r"thesis\.txt"), (saved / "thesis.txt", "is a file")):
        with refused(words):
            save_controller(place, make(CONFIG), CONFIG, overwrite=True)
    assert (saved / "thesis.txt").exists()


def test_a_failed_write_leaves_the_old_checkpoint(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with refused("No space left on device"):
        save_controller(saved, make(CONFIG), replace(CONFIG, threshold=0.1), overwrite=True)
    assert load_controller(saved).config == CONFIG
    assert [path.name for path in saved.parent.iterdir()] == ["controller"]


def test_only_weights_of_the_configured_sizes_that_are_finite_are_saved(
    tmp_path: Path, any_kind: ControllerConfig
) -> None:
    with refused("is missing or not expected"):
        save_controller(tmp_path / "c", nn.ModuleDict({"a": nn.Linear(3, 2)}), any_kind)
    head = make(any_kind)
    with torch.no_grad():
        next(head.parameters()).view(-1)[0] = float("nan")
    with refused("holds NaN"):
        save_controller(tmp_path / "c", head, any_kind)
    with refused(r"blocks\.0\.linear\.weight has shape \[16, 16\]"):
        save_controller(tmp_path / "c", make(replace(CONFIG, hidden_size=16)), CONFIG)
    assert not list(tmp_path.iterdir())


NESTED = CONFIG.to_dict()["provenance"]


CONFIGURATIONS: dict[str, list[tuple[dict[str, Any], str]]] = {  # of each kind of controller
    "acceptance-head": [
        ({"kind": "toaster"}, "kind='toaster':"),
        ({"kind": ["router"]}, "kind="),
        ({"kind": "router"}, "unknown key 'depth'"),
        ({"schema_version": 5}, "schema_version=5:"),
        ({"schema_version": True}, "schema_version=True"),
        ({"colour": "red"}, "unknown key 'colour'"),
        ({"hidden_size": "8"}, "hidden_size='8':"),
        ({"hidden_size": 10**9}, "hidden_size=1000000000:"),
        ({"depth": 3}, "missing or not expected"),
        ({"threshold": 1.5}, r"threshold=1\.5"),
        ({"threshold": 10**400}, "threshold=10+.*:"),
        ({"w_rej": 0}, "w_rej=0"),
        ({"mixing": 1.5}, r"mixing=1\.5"),
        ({"metrics": {"kl": "x"}}, r"metrics\.kl='x'"),
        ({"datasets": [1]}, r"datasets\[0\]=1:"),
        ({"provenance": NESTED | {"fingerprint": {"target": "1"}}}, "key 'draft' is missing"),
        ({"provenance": NESTED | {"sampling": [1]}}, r"provenance\.sampling=.*: an object"),
        ({"provenance": NESTED | {"sampling": {"temperature": -1}}}, "temperature=-1"),
        ({"calibration": 3}, "calibration=3"),
        ({"calibration": {}}, "calibration: key 'scale' is missing"),
        ({"calibration": {"method": "guess", "scale": 1.0, "shift": 0.0}}, "calibration.method='guess'"),
        ({"calibration": {"method": "platt", "scale": 1.0, "shift": "x"}}, "calibration.shift='x'"),
        ({"calibration": {"method": "platt", "scale": -1.0, "shift": 0}}, "scale=-1, shift=0: must be finite"),
        ({"calibration": {"method": "platt", "scale": 1.0, "shift": 1e999}}, "calibration.shift=inf"),
        *(({key: ...}, key) for key in ("threshold", "kind", "schema_version", "weights_sha256")),
    ],
    "lag-free-head": [
        ({"hidden_size": 0}, "hidden_size=0:"),
        ({"width": 10**9}, "width=1000000000"),
        ({"mean": 2.0}, r"mean=2\.0"),
        ({"uses_ngrams": 1}, "uses_ngrams=1:"),
    ],
    "acceptance-features": [
        ({"mean": -1}, "mean=-1"),
        ({"metrics": []}, r"metrics=\[\]"),
    ],
    "router": [
        ({"alpha": 2}, "alpha=2"),
        ({"arms": []}, "none: a router needs at least two"),
        ({"arms": [{"kind": "draft"}]}, r"arms\[0\]: key 'name' is missing"),
        ({"arms": {"kind": "draft"}}, "arms=.*:"),
        ({"width": 10**9}, "width=1000000000"),
    ],
}
DAMAGES: list[tuple[str, Callable[[Path], object], str]] = [
    *((kind, edit(**change), words) for kind, rows in CONFIGURATIONS.items() for change, words in rows),
    *(
        ("acceptance-head", damage, words)
        for damage, words in (
            (lambda folder: (folder / "config.json").unlink(), r"holds no config\.json"),
            (lambda folder: (folder / "model.safetensors").unlink(), r"holds no model\.safetensors"),
            (content(lambda old: old[:-10]), "truncated or changed"),
            (lambda folder: (content(lambda old: old[:-10])(folder), seal(folder)), "not a readable safetensors file"),
            (weights(out__bias=torch.zeros(2)), r"out\.bias has shape \[2\], but config\.json requires \[1\]"),
            (weights(out__bias=torch.zeros(1, dtype=torch.float64)), r"out\.bias is F64, not F32"),
            (weights(out__weight=torch.full((1, 8), torch.inf)), r"out\.weight holds NaN or infinite"),
            (weights(extra=torch.zeros(1)), "'extra' is missing or not expected"),
        )
    ),
]


@pytest.mark.parametrize(("kind", "damage", "words"), DAMAGES, ids=[f"{kind}: {words}" for kind, _, words in DAMAGES])
def test_damaged_controllers_are_refused(
    kind: str, damage: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
    folder = save_controller(tmp_path / "c", make(CONFIGS[kind]), CONFIGS[kind])
    damage(folder)
    with refused(words, start=folder):
        load_controller(folder)


def test_check_pair_names_what_differs() -> None:
    PROVENANCE.check_pair(PAIR)
    for part in ("target", "draft", "tokenizer"):
        with refused(f"another {part} is given"):
            PROVENANCE.check_pair(replace(PAIR, **{part: "0" * 64}))
    with refused("another target and tokenizer is given"):
        PROVENANCE.check_pair(replace(PAIR, target="0", tokenizer="0"))


def test_check_pair_by_the_tokenizer_takes_other_models_and_no_other_tokenizer() -> None:
    for part in ("target", "draft"):
        with pytest.warns(UserWarning, match=f"another {part} is given"):
            PROVENANCE.check_pair(replace(PAIR, **{part: "0" * 64}), "tokenizer")
    for differing in ({"tokenizer": "0"}, {"tokenizer": "0", "draft": "0"}):
        with refused("another (draft and )?tokenizer is given"):
            PROVENANCE.check_pair(replace(PAIR, **differing), "tokenizer")
    with refused("pair_check='none'"):
        PROVENANCE.check_pair(PAIR, "none")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The hub's client, which takes the arguments of the real one and keeps repositories as folders of ``hub``."""

    def upload(repo_id: str, folder_path: str, allow_patterns: list[str], **_: Any) -> Any:
        repository = tmp_path / "hub" / repo_id
        repository.mkdir(parents=True)
        for name in allow_patterns:
            shutil.copy(Path(folder_path, name), repository)
        return SimpleNamespace(commit_url=f"https://hub/{repo_id}/commit/1")

    def fetch(repo_id: str, **_: Any) -> str:
        if not (tmp_path / "hub" / repo_id).is_dir():
            raise huggingface_hub.errors.LocalEntryNotFoundError("cannot reach the hub\nand more words")
        return str(tmp_path / "hub" / repo_id)

    api = create_autospec(huggingface_hub.HfApi)
    api.return_value.upload_folder.side_effect = upload
    api.fetch = create_autospec(huggingface_hub.snapshot_download, side_effect=fetch)
    monkeypatch.setattr(huggingface_hub, "HfApi", api)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", api.fetch)
    return api


def test_push_and_pull(hub: Any, tmp_path: Path, any_kind: ControllerConfig) -> None:
    saved = save_controller(tmp_path / "c", make(any_kind), any_kind)
    (saved / "notes.txt").write_text("not for the hub")
    assert push_controller(saved, "me/head", private=True, token="hf_x") == "https://hub/me/head/commit/1"
    hub.assert_called_once_with(token="hf_x")
    hub.return_value.create_repo.assert_called_once_with("me/head", private=True, exist_ok=True)
    files = ["config.json", "model.safetensors", "README.md"]
    assert sorted(path.name for path in (tmp_path / "hub" / "me" / "head").iterdir()) == sorted(files)
    assert load_controller("me/head", revision="v1", token="hf_y").config == any_kind
    hub.fetch.assert_called_once_with("me/head", revision="v1", token="hf_y", allow_patterns=files)


def test_hub_errors(hub: Any, saved: Path, tmp_path: Path) -> None:
    with refused("not found on the hub .*cannot reach the hub"):
        load_controller("me/none")
    hub.fetch.reset_mock()
    for name in ("./nowhere", "/no/such/folder", "~/nowhere"):
        with refused("no such controller"):
            load_controller(name)
    hub.fetch.assert_not_called()
    hub.return_value.create_repo.side_effect = ConnectionError("401\nUnauthorized")
    with refused("refused the upload"):
        push_controller(saved, "me/head")
    hub.return_value.create_repo.reset_mock()
    content(lambda old: old[:-1] + b"?")(saved)
    for folder, words in ((saved, "truncated or changed"), (tmp_path / "none", "no such folder")):
        with refused(words):
            push_controller(folder, "me/head")
    hub.return_value.create_repo.assert_not_called()
