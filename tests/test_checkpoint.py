"""Controller checkpoints of every kind: what is written, what is refused, and the way to the hub and back."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from specpilot.common.errors import InputError
from specpilot.controllers.acceptance.acceptance_head import AcceptanceHead, AcceptanceHeadConfig
from specpilot.controllers.acceptance.copy_head import CopyHeadConfig
from specpilot.controllers.acceptance.feature_model import FeatureModelConfig
from specpilot.controllers.acceptance.lag_free_head import LagFreeHeadConfig
from specpilot.controllers.arms import Arm
from specpilot.controllers.checkpoints import checkpoint
from specpilot.controllers.checkpoints.card import model_card
from specpilot.controllers.checkpoints.checkpoint import KINDS, load_controller, push_controller, save_controller
from specpilot.controllers.checkpoints.config import ControllerConfig
from specpilot.controllers.checkpoints.fingerprint import PairFingerprint
from specpilot.controllers.checkpoints.provenance import Provenance
from specpilot.controllers.length import RateOptimal, load_trained
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.router.policy import RouterConfig
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.loading.controllers import load_policy
from torch import nn

PAIR = PairFingerprint("1" * 64, "2" * 64, "3" * 64)
PROVENANCE = Provenance("org/target", "org/draft", PAIR, SamplingParams(0.7, None, 0.9))
ARMS = (
    Arm("draft", "org/draft", "2" * 64, parameters=700),
    Arm("exit", "exit:2", layer=2, parameters=900),
    Arm("autoregressive", "autoregressive", parameters=12000),
)
CONFIG = AcceptanceHeadConfig(
    provenance=PROVENANCE, datasets=["4" * 64], metrics={"kl": 0.25, "auroc": 0.75}, hidden_size=8, depth=2, w_acc=1.0,
    w_rej=6.0, mixing=0.15, threshold=0.7, threshold_source="paper default",
)  # fmt: skip
CONFIGS: dict[str, ControllerConfig] = {
    config.kind: config
    for config in (
        CONFIG,
        LagFreeHeadConfig(
            provenance=PROVENANCE, datasets=["4" * 64, "5" * 64], metrics={"auroc": 0.75}, hidden_size=8, width=4,
            uses_ngrams=True, mean=0.5, tokens=10,
        ),
        FeatureModelConfig(provenance=PROVENANCE, datasets=["4" * 64], metrics={"auroc": 0.75}, mean=0.5),
        CopyHeadConfig(
            provenance=replace(PROVENANCE, draft=None, fingerprint=replace(PAIR, draft=None)), datasets=["4" * 64],
            metrics={"auroc": 0.75}, hidden_size=8, width=4, tokens=10,
        ),
        RouterConfig(
            provenance=replace(PROVENANCE, draft=None, fingerprint=replace(PAIR, draft=None)), datasets=["4" * 64],
            metrics={"regret": 0.5}, hidden_size=8, width=16, arms=ARMS, reward="rouge", alpha=0.5, cost="parameters",
        ),
    )
}  # fmt: skip


def make(config: ControllerConfig) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = config.module()
        for parameter in module.parameters():
            nn.init.normal_(parameter)
    return module


def make_head(size: int = 8, depth: int = 2) -> AcceptanceHead:
    head = make(replace(CONFIG, hidden_size=size, depth=depth))
    assert isinstance(head, AcceptanceHead)
    return head


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_controller(tmp_path / "controller", make_head(), CONFIG)


@pytest.fixture(params=CONFIGS)
def any_kind(request: pytest.FixtureRequest) -> ControllerConfig:
    return CONFIGS[request.param]


def edit(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    values = {**json.loads(file.read_text(encoding="utf-8")), **changes}
    file.write_text(json.dumps(values), encoding="utf-8")


def write_weights(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Replace the weights by others, with the hash that belongs to them: a careful forger."""
    save_file(tensors, folder / "model.safetensors")
    edit(folder, weights_sha256=checkpoint.sha256((folder / "model.safetensors").read_bytes()))


def one_line(error: pytest.ExceptionInfo[InputError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def test_save_and_load(tmp_path: Path, any_kind: ControllerConfig) -> None:
    assert set(CONFIGS) == set(KINDS)
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
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["controller"]
    (tmp_path / "again").mkdir()  # an empty folder is taken
    again = save_controller(tmp_path / "again", controller.head, controller.config)
    for file in folder.iterdir():
        assert file.read_bytes() == (again / file.name).read_bytes()


def test_a_controller_serves_where_its_kind_belongs(tmp_path: Path, any_kind: ControllerConfig) -> None:
    folder = save_controller(tmp_path / "c", make(any_kind), any_kind)
    pair, embedding = any_kind.provenance.fingerprint, torch.zeros(4, 8)
    length = f"length='{folder}': "
    if isinstance(any_kind, RouterConfig):
        assert load_policy(folder)[1] == any_kind
        with pytest.raises(InputError, match=f"^{length}is of kind 'router', which predicts no acceptance"):
            load_trained(folder, pair, torch.device("cpu"), embedding)
        return
    with pytest.raises(InputError, match=rf"^router='{folder}': is of kind '{any_kind.kind}', which chooses no arm"):
        load_policy(folder)
    if isinstance(any_kind, CopyHeadConfig):
        with pytest.raises(InputError, match=rf"^{length}is of kind 'copy-head', .*; give it as copies"):
            load_trained(folder, pair, torch.device("cpu"), embedding)
        return
    cost = CostModel.load(0.2)
    for name in (folder, str(folder)):
        assert isinstance(load_trained(name, pair, torch.device("cpu"), embedding, cost=cost), RateOptimal)
    if not isinstance(any_kind, AcceptanceHeadConfig):
        with pytest.raises(InputError, match=f"^{length}has no threshold of its own"):
            load_trained(folder, pair, torch.device("cpu"), embedding)


def test_weights_are_float32_whatever_the_head_was_trained_in(tmp_path: Path) -> None:
    head = make_head().to(torch.bfloat16)
    controller = load_controller(save_controller(tmp_path / "c", head, CONFIG))
    assert controller.head.out.weight.dtype == torch.float32
    assert torch.equal(controller.head.out.weight, head.out.weight.float())


def test_the_card_names_the_pair_and_the_metrics(tmp_path: Path, any_kind: ControllerConfig) -> None:
    folder = save_controller(tmp_path / "c", make(any_kind), any_kind)
    card = (folder / "README.md").read_text(encoding="utf-8")
    (metric, value), *_ = any_kind.metrics.items()
    for words in ("org/target", f"- {any_kind.kind}\n", "top-k off", f"| {metric} | {value} |", *any_kind.datasets):
        assert words in card
    special = {
        "acceptance-head": "0.7 (paper default)",
        "router": "`exit:2` (exit)",
        "lag-free-head": "10 drafted tokens",
        "copy-head": "10 copied tokens",
    }
    assert special.get(any_kind.kind, "mean acceptance") in card
    assert card.startswith("---\nlibrary_name: specpilot\n")


@pytest.mark.parametrize("target", ["org/target", "org/target-" + 30 * "x", "org/target-" + 60 * "x"])
def test_the_cards_code_is_python_in_lines_of_any_length(any_kind: ControllerConfig, target: str) -> None:
    card = model_card(replace(any_kind, provenance=replace(any_kind.provenance, target=target)))
    code = card.partition("```python\n")[2].partition("```")[0]
    ast.parse(code)
    assert f'target="{target}"' in code
    assert max(map(len, code.splitlines())) <= 120


def test_an_existing_folder_is_not_overwritten_unasked(saved: Path) -> None:
    before = (saved / "config.json").read_bytes()
    with pytest.raises(InputError, match="--overwrite"):
        save_controller(saved, make_head(), replace(CONFIG, threshold=0.5))
    assert (saved / "config.json").read_bytes() == before
    save_controller(saved, make_head(), replace(CONFIG, threshold=0.5), overwrite=True)
    assert load_controller(saved).config.threshold == 0.5
    assert [path.name for path in saved.parent.iterdir()] == ["controller"]


def test_overwrite_replaces_controllers_only(saved: Path) -> None:
    (saved / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match=r"thesis\.txt"):
        save_controller(saved, make_head(), CONFIG, overwrite=True)
    assert (saved / "thesis.txt").exists()
    with pytest.raises(InputError, match="is a file"):
        save_controller(saved / "thesis.txt", make_head(), CONFIG, overwrite=True)


def test_whoever_may_read_the_folder_may_read_the_weights(saved: Path) -> None:
    modes = {path.stat().st_mode & 0o777 for path in saved.iterdir()}
    assert len(modes) == 1


def test_a_failed_write_leaves_the_old_checkpoint(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match="No space left on device"):
        save_controller(saved, make_head(), replace(CONFIG, threshold=0.1), overwrite=True)
    assert load_controller(saved).config == CONFIG
    assert [path.name for path in saved.parent.iterdir()] == ["controller"]


def test_only_weights_of_the_configured_sizes_that_are_finite_are_saved(
    tmp_path: Path, any_kind: ControllerConfig
) -> None:
    with pytest.raises(InputError, match="is missing or not expected"):
        save_controller(tmp_path / "c", nn.ModuleDict({"a": nn.Linear(3, 2)}), any_kind)
    head = make(any_kind)
    with torch.no_grad():
        next(head.parameters()).view(-1)[0] = float("nan")
    with pytest.raises(InputError, match="holds NaN"):
        save_controller(tmp_path / "c", head, any_kind)
    with pytest.raises(InputError, match=r"blocks\.0\.linear\.weight has shape \[16, 16\]"):
        save_controller(tmp_path / "c", make_head(size=16), CONFIG)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(saved: Path, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(InputError, match=f"holds no {name}") as error:
        load_controller(saved)
    one_line(error)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, flip, lambda file: file.write_bytes(b"")])
def test_changed_weights_are_refused(saved: Path, damage: Callable[[Path], None]) -> None:
    damage(saved / "model.safetensors")
    with pytest.raises(InputError, match="truncated or changed") as error:
        load_controller(saved)
    one_line(error)


def test_a_truncated_file_with_a_matching_hash_is_refused(saved: Path) -> None:
    truncate(saved / "model.safetensors")
    edit(saved, weights_sha256=checkpoint.sha256((saved / "model.safetensors").read_bytes()))
    with pytest.raises(InputError, match="not a readable safetensors file") as error:
        load_controller(saved)
    one_line(error)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"out.bias": torch.zeros(2)}, r"out\.bias has shape \[2\], but config\.json requires \[1\]"),
        ({"out.bias": torch.zeros(1, dtype=torch.float64)}, r"out\.bias is F64, not F32"),
        ({"out.weight": torch.full((1, 8), torch.inf)}, r"out\.weight holds NaN or infinite"),
        ({"extra": torch.zeros(1)}, "'extra' is missing or not expected"),
        ({"out.weight": None}, r"'out\.weight' is missing"),
    ],
)
def test_weights_that_do_not_fit_the_config(saved: Path, change: dict[str, Any], words: str) -> None:
    tensors = {**load_file(saved / "model.safetensors"), **change}
    write_weights(saved, {name: tensor for name, tensor in tensors.items() if tensor is not None})
    with pytest.raises(InputError, match=words) as error:
        load_controller(saved)
    one_line(error)


NESTED = CONFIG.as_dict()["provenance"]


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("acceptance-head", {"kind": "toaster"}, "kind='toaster': unknown kind of controller"),
        ("acceptance-head", {"kind": ["router"]}, "kind="),
        ("acceptance-head", {"kind": "router"}, "unknown key 'depth'"),
        ("acceptance-head", {"schema_version": 5}, "schema_version=5: this version of specpilot reads"),
        ("acceptance-head", {"schema_version": True}, "schema_version=True"),
        ("acceptance-head", {"colour": "red"}, "unknown key 'colour'"),
        ("acceptance-head", {"hidden_size": "8"}, "hidden_size='8': a whole number is expected"),
        ("acceptance-head", {"hidden_size": 8.0}, r"hidden_size=8\.0: a whole number is expected"),
        ("acceptance-head", {"hidden_size": 10**9}, "hidden_size=1000000000: must be between"),
        ("acceptance-head", {"depth": 10**9}, "depth=1000000000"),
        ("acceptance-head", {"depth": 3}, "missing or not expected"),
        ("acceptance-head", {"threshold": 1.5}, r"threshold=1\.5"),
        ("acceptance-head", {"threshold": float("nan")}, "threshold=nan: a finite number is expected"),
        ("acceptance-head", {"threshold": 10**400}, "threshold=10+.*: a finite number is expected"),
        ("acceptance-head", {"w_rej": 0}, "w_rej=0"),
        ("acceptance-head", {"mixing": 1.5}, r"mixing=1\.5"),
        ("acceptance-head", {"metrics": {"kl": "x"}}, r"metrics\.kl='x'"),
        ("acceptance-head", {"datasets": [1]}, r"datasets\[0\]=1: text is expected"),
        ("acceptance-head", {"provenance": 3}, "provenance: an object of keys and values is expected, not a number"),
        ("acceptance-head", {"provenance": NESTED | {"fingerprint": {"target": "1"}}}, "key 'draft' is missing"),
        ("acceptance-head", {"provenance": NESTED | {"sampling": [1]}}, r"provenance\.sampling: an object"),
        ("acceptance-head", {"provenance": NESTED | {"sampling": {"temperature": -1}}}, "temperature=-1"),
        ("acceptance-head", {"calibration": 3}, "calibration=3"),
        ("lag-free-head", {"width": 10**9}, "width=1000000000"),
        ("lag-free-head", {"mean": 2.0}, r"mean=2\.0"),
        ("lag-free-head", {"uses_ngrams": 1}, "uses_ngrams=1: true or false is expected"),
        ("acceptance-features", {"mean": -1}, "mean=-1"),
        ("acceptance-features", {"metrics": []}, r"metrics=\[\]"),
        ("router", {"alpha": 2}, "alpha=2"),
        ("router", {"arms": []}, "none: a router needs at least two"),
        ("router", {"arms": [{"kind": "draft"}]}, r"arms\[0\]: key 'name' is missing"),
        ("router", {"arms": {"kind": "draft"}}, "arms=.*: a list is expected"),
        ("router", {"width": 10**9}, "width=1000000000"),
    ],
)
def test_a_config_that_is_not_understood(tmp_path: Path, kind: str, change: dict[str, Any], words: str) -> None:
    folder = save_controller(tmp_path / "c", make(CONFIGS[kind]), CONFIGS[kind])
    edit(folder, **change)
    with pytest.raises(InputError, match=words) as error:
        load_controller(folder)
    assert one_line(error).startswith(str(folder))


@pytest.mark.parametrize("name", ["threshold", "provenance", "kind", "schema_version", "weights_sha256"])
def test_a_missing_key(saved: Path, name: str) -> None:
    file = saved / "config.json"
    values = json.loads(file.read_text(encoding="utf-8"))
    del values[name]
    file.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(InputError, match=name):
        load_controller(saved)


def test_a_byte_order_mark_is_no_harm(saved: Path) -> None:
    file = saved / "config.json"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert load_controller(saved).config == CONFIG


def test_check_pair_names_what_differs() -> None:
    PROVENANCE.check_pair(PAIR)
    for part in ("target", "draft", "tokenizer"):
        with pytest.raises(InputError, match=f"another {part} is given"):
            PROVENANCE.check_pair(replace(PAIR, **{part: "0" * 64}))
    with pytest.raises(InputError, match="another target and tokenizer is given"):
        PROVENANCE.check_pair(replace(PAIR, target="0", tokenizer="0"))


class FakeHub:
    """Repositories as folders: what ``HfApi`` and ``snapshot_download`` do, by copying, and a record of the calls."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def api(self, token: str | None) -> Any:
        self.calls.append(("HfApi", {"token": token}))
        return SimpleNamespace(create_repo=self.create_repo, upload_folder=self.upload_folder)

    def create_repo(self, repo_id: str, **options: Any) -> None:
        self.calls.append(("create_repo", {"repo_id": repo_id, **options}))
        (self.root / repo_id).mkdir(parents=True, exist_ok=options["exist_ok"])

    def upload_folder(self, *, repo_id: str, folder_path: Path, allow_patterns: list[str], **options: Any) -> Any:
        self.calls.append(("upload_folder", {"repo_id": repo_id, **options}))
        for name in allow_patterns:
            shutil.copy(Path(folder_path, name), self.root / repo_id / name)
        return SimpleNamespace(commit_url=f"https://hub/{repo_id}/commit/1")

    def snapshot_download(self, repo_id: str, *, allow_patterns: list[str], **options: Any) -> str:
        self.calls.append(("snapshot_download", {"repo_id": repo_id, "allow_patterns": allow_patterns, **options}))
        if not (self.root / repo_id).is_dir():
            raise huggingface_hub.errors.LocalEntryNotFoundError("cannot reach the hub\nand more words")
        return str(self.root / repo_id)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "HfApi", fake.api)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.snapshot_download)
    return fake


def test_push_and_pull(hub: FakeHub, tmp_path: Path, any_kind: ControllerConfig) -> None:
    saved = save_controller(tmp_path / "c", make(any_kind), any_kind)
    (saved / "notes.txt").write_text("not for the hub")
    assert push_controller(saved, "me/head", private=True, token="hf_x") == "https://hub/me/head/commit/1"
    assert [call for call, _ in hub.calls] == ["HfApi", "create_repo", "upload_folder"]
    assert hub.calls[0][1] == {"token": "hf_x"}
    assert hub.calls[1][1] == {"repo_id": "me/head", "private": True, "exist_ok": True}
    assert not (hub.root / "me" / "head" / "notes.txt").exists()
    hub.calls.clear()
    assert load_controller("me/head", revision="v1", token="hf_y").config == any_kind
    files = ["config.json", "model.safetensors", "README.md"]
    wanted = {"repo_id": "me/head", "revision": "v1", "token": "hf_y", "allow_patterns": files}
    assert hub.calls == [("snapshot_download", wanted)]


def test_the_hubs_methods_take_the_arguments_we_give() -> None:
    """The fake takes anything: the real signatures must have these names."""
    import inspect

    names = {
        name: set(inspect.signature(call).parameters)
        for name, call in vars(huggingface_hub.HfApi).items()
        if callable(call)
    }
    assert {"repo_id", "private", "exist_ok"} <= names["create_repo"]
    assert {"repo_id", "folder_path", "revision", "allow_patterns", "commit_message"} <= names["upload_folder"]
    pull = set(inspect.signature(huggingface_hub.snapshot_download).parameters)
    assert {"repo_id", "revision", "token", "allow_patterns"} <= pull


def test_a_damaged_controller_is_not_pushed(hub: FakeHub, saved: Path, tmp_path: Path) -> None:
    flip(saved / "model.safetensors")
    with pytest.raises(InputError, match="truncated or changed"):
        push_controller(saved, "me/head")
    with pytest.raises(InputError, match="no such folder"):
        push_controller(tmp_path / "none", "me/head")
    assert not hub.calls


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "~/nowhere"])
def test_a_path_that_is_no_folder_does_not_reach_for_the_hub(hub: FakeHub, name: str) -> None:
    with pytest.raises(InputError, match="no such controller"):
        load_controller(name)
    assert not hub.calls


def test_an_unreachable_hub_is_one_line(hub: FakeHub) -> None:
    with pytest.raises(InputError, match="not found on the hub") as error:
        load_controller("me/none")
    assert "cannot reach the hub" in one_line(error)


def test_a_refused_upload_is_one_line(hub: FakeHub, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise ConnectionError("401\nUnauthorized")

    monkeypatch.setattr(hub, "create_repo", refuse)
    with pytest.raises(InputError, match="refused the upload") as error:
        push_controller(saved, "me/head")
    one_line(error)
