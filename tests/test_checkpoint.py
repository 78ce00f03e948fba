"""Controller checkpoints: what is written, what is refused, and the way to the hub and back."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from specpilot.controllers.acceptance.acceptance_head import AcceptanceHead
from specpilot.controllers.acceptance.feature_model import FeatureModel
from specpilot.controllers.acceptance.lag_free_head import LagFreeHead
from specpilot.controllers.checkpoints import acceptance_head as checkpoint
from specpilot.controllers.checkpoints.acceptance_head import (
    Controller,
    ControllerConfig,
    load_controller,
    push_controller,
    read_config,
    save_controller,
)
from specpilot.controllers.checkpoints.fingerprint import PairFingerprint
from specpilot.controllers.checkpoints.lag_free_head import LagFreeConfig, load_lag_free, save_lag_free
from specpilot.controllers.checkpoints.provenance import Provenance
from specpilot.controllers.errors import InputError
from specpilot.controllers.length import RateOptimal, load_trained
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.sampling import SamplingParams

PAIR = PairFingerprint("1" * 64, "2" * 64, "3" * 64)
CONFIG = ControllerConfig(
    hidden_size=8,
    depth=2,
    target="org/target",
    draft="org/draft",
    fingerprint=PAIR,
    sampling=SamplingParams(0.7, None, 0.9),
    w_acc=1.0,
    w_rej=6.0,
    mixing=0.15,
    threshold=0.7,
    threshold_source="paper default",
    dataset_fingerprint="4" * 64,
    metrics={"kl": 0.25, "auroc": 0.75},
)


def make_head(size: int = 8, depth: int = 2) -> AcceptanceHead:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AcceptanceHead(size, depth)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_controller(tmp_path / "controller", make_head(), CONFIG)


def edit(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    values = {**json.loads(file.read_text(encoding="utf-8")), **changes}
    file.write_text(json.dumps(values), encoding="utf-8")


def write_weights(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Replace the weights by others, with the hash that belongs to them: a careful forger."""
    save_file(tensors, folder / "model.safetensors")
    edit(folder, weights_sha256=checkpoint._sha256(folder / "model.safetensors"))


def one_line(error: pytest.ExceptionInfo[InputError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("depth", [0, 2])
def test_save_and_load(tmp_path: Path, depth: int) -> None:
    head, config = make_head(depth=depth), replace(CONFIG, depth=depth)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    controller = load_controller(save_controller(tmp_path / "new" / "controller", head, config))
    assert torch.equal(torch.get_rng_state(), state)
    assert controller.config == config
    hidden = torch.randn(3, 8)
    assert torch.equal(controller.head.probability(hidden), head.probability(hidden))
    assert not controller.head.training
    assert not any(p.requires_grad for p in controller.head.parameters())
    assert {path.name for path in (tmp_path / "new" / "controller").iterdir()} == {
        *("config.json", "model.safetensors", "README.md")
    }
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["controller"]


def test_controllers_of_every_kind_load_from_a_path(saved: Path, tmp_path: Path) -> None:
    provenance = Provenance("t", "d", PAIR, SamplingParams())
    lag_free = save_lag_free(
        tmp_path / "l", LagFreeHead(8, 4), LagFreeConfig(8, 4, True, True, 0.5, 1, provenance, ["0"])
    )
    FeatureModel(0.0, 1.0, 1.0, 0.0, 0.5, provenance, "0", {}).save(tmp_path / "f.json")
    cpu, embedding, cost = torch.device("cpu"), torch.zeros(4, 8), CostModel.load(0.2)
    for path in (saved, lag_free, tmp_path / "f.json"):
        kinds = [type(load_trained(name, PAIR, cpu, embedding, cost=cost)) for name in (path, str(path))]
        assert kinds == [RateOptimal, RateOptimal]
    for path in (lag_free, tmp_path / "f.json"):
        with pytest.raises(InputError, match=rf"^length='{path}': has no threshold of its own"):
            load_trained(path, PAIR, cpu, embedding)
    with pytest.raises(InputError, match="no controller folder"):
        load_trained(tmp_path / "nowhere", PAIR, cpu, embedding, cost=cost)
    assert read_config(saved)[0] == read_config(str(saved))[0] == saved
    assert load_lag_free(lag_free)[1] == load_lag_free(str(lag_free))[1]


def test_weights_are_float32_whatever_the_head_was_trained_in(tmp_path: Path) -> None:
    head = make_head().to(torch.bfloat16)
    controller = load_controller(save_controller(tmp_path / "c", head, CONFIG))
    assert controller.head.out.weight.dtype == torch.float32
    assert torch.equal(controller.head.out.weight, head.out.weight.float())


def test_the_card_tells_what_it_is(saved: Path) -> None:
    card = (saved / "README.md").read_text(encoding="utf-8")
    for words in ("org/target", "org/draft", "0.7 (paper default)", "top-k off", "| kl | 0.25 |", "4" * 64):
        assert words in card
    assert card.startswith("---\nlibrary_name: specpilot\n")


def test_an_existing_folder_is_not_overwritten_unasked(saved: Path) -> None:
    before = (saved / "config.json").read_bytes()
    with pytest.raises(InputError, match="--overwrite"):
        save_controller(saved, make_head(), replace(CONFIG, threshold=0.5))
    assert (saved / "config.json").read_bytes() == before
    save_controller(saved, make_head(), replace(CONFIG, threshold=0.5), overwrite=True)
    assert load_controller(saved).config.threshold == 0.5
    assert [path.name for path in saved.parent.iterdir()] == ["controller"]


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    load_controller(save_controller(tmp_path / "c", make_head(), CONFIG))


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
    def full(state: dict[str, torch.Tensor]) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save", full)
    with pytest.raises(InputError, match="No space left on device"):
        save_controller(saved, make_head(), replace(CONFIG, threshold=0.1), overwrite=True)
    assert load_controller(saved).config == CONFIG
    assert [path.name for path in saved.parent.iterdir()] == ["controller"]


def test_only_a_head_of_the_configured_size_with_finite_weights_is_saved(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="16 wide and 2 deep"):
        save_controller(tmp_path / "c", make_head(size=16), CONFIG)
    head = make_head()
    with torch.no_grad():
        head.out.bias.fill_(float("nan"))
    with pytest.raises(InputError, match=r"out\.bias holds NaN"):
        save_controller(tmp_path / "c", head, CONFIG)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(saved: Path, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(InputError, match=name) as error:
        load_controller(saved)
    assert "no such file" in one_line(error)


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
    edit(saved, weights_sha256=checkpoint._sha256(saved / "model.safetensors"))
    with pytest.raises(InputError, match="not a readable safetensors file") as error:
        load_controller(saved)
    one_line(error)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"out.bias": torch.zeros(2)}, r"out\.bias is F32 \[2\], config\.json says F32 \[1\]"),
        ({"out.bias": torch.zeros(1, dtype=torch.float64)}, r"out\.bias is F64 \[1\]"),
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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"type": "router"}, "type='router'"),
        ({"schema_version": 3}, "schema_version=3.*upgrade"),
        ({"schema_version": "1"}, "schema_version=1"),
        ({"colour": "red"}, "unknown key 'colour'"),
        ({"hidden_size": "8"}, "hidden_size='8'"),
        ({"hidden_size": 10**9}, r"says F32 \["),
        ({"hidden_size": True}, "hidden_size=True"),
        ({"depth": 10**9}, "depth=1000000000"),
        ({"depth": 3}, "missing or not expected"),
        ({"threshold": 1.5}, r"threshold=1\.5"),
        ({"w_rej": 0}, "w_rej=0"),
        ({"mixing": 1.5}, r"mixing=1\.5"),
        ({"fingerprint": {"target": "1"}}, "fingerprint: key 'draft' is missing"),
        ({"sampling": {"temperature": -1, "top_k": None, "top_p": 1}}, "temperature=-1"),
        ({"sampling": {"temperature": "hot", "top_k": None, "top_p": 1}}, "temperature='hot': must be a number"),
        ({"sampling": [1]}, "sampling: a JSON object"),
        ({"calibration": 3}, "calibration=3"),
        ({"calibration": {"method": "platt", "scale": -1, "shift": 0}}, "scale=-1"),
    ],
)
def test_a_config_that_is_not_understood(saved: Path, change: dict[str, Any], words: str) -> None:
    edit(saved, **change)
    with pytest.raises(InputError, match=words) as error:
        load_controller(saved)
    one_line(error)


@pytest.mark.parametrize("name", ["threshold", "fingerprint", "calibration", "weights_sha256"])
def test_a_missing_key(saved: Path, name: str) -> None:
    file = saved / "config.json"
    values = json.loads(file.read_text(encoding="utf-8"))
    del values[name]
    file.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(InputError, match=name):
        load_controller(saved)


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_config_that_is_no_json_object(saved: Path, text: str) -> None:
    (saved / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"config\.json") as error:
        load_controller(saved)
    one_line(error)


def test_check_pair_names_what_differs() -> None:
    controller = Controller(CONFIG, make_head()).provenance
    controller.check_pair(PAIR)
    for part in ("target", "draft", "tokenizer"):
        with pytest.raises(InputError, match=f"another {part} is given"):
            controller.check_pair(replace(PAIR, **{part: "0" * 64}))
    with pytest.raises(InputError, match="another target and tokenizer is given"):
        controller.check_pair(replace(PAIR, target="0", tokenizer="0"))


def test_check_warp_warns() -> None:
    controller = Controller(CONFIG, make_head()).provenance
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        controller.check_sampling(SamplingParams(0.7, None, 0.9))
    with pytest.warns(UserWarning, match="stays exact"):
        controller.check_sampling(SamplingParams(1.0, None, 0.9))


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


def test_push_and_pull(hub: FakeHub, saved: Path) -> None:
    (saved / "notes.txt").write_text("not for the hub")
    assert push_controller(saved, "me/head", private=True, token="hf_x") == "https://hub/me/head/commit/1"
    assert [call for call, _ in hub.calls] == ["HfApi", "create_repo", "upload_folder"]
    assert hub.calls[0][1] == {"token": "hf_x"}
    assert hub.calls[1][1] == {"repo_id": "me/head", "private": True, "exist_ok": True}
    assert not (hub.root / "me" / "head" / "notes.txt").exists()
    hub.calls.clear()
    assert load_controller("me/head", revision="v1", token="hf_y").config == CONFIG
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
    with pytest.raises(InputError, match="no controller folder"):
        load_controller(name)
    assert not hub.calls


def test_an_unreachable_hub_is_one_line(hub: FakeHub) -> None:
    with pytest.raises(InputError, match="reachable controller on the hub") as error:
        load_controller("me/none")
    assert "cannot reach the hub" in one_line(error)


def test_a_name_the_hub_would_not_have_is_one_line() -> None:
    with pytest.raises(InputError, match="on the hub") as error:
        load_controller("a/b/c/d")
    one_line(error)


def test_a_refused_upload_is_one_line(hub: FakeHub, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise ConnectionError("401\nUnauthorized")

    monkeypatch.setattr(hub, "create_repo", refuse)
    with pytest.raises(InputError, match="refused the upload") as error:
        push_controller(saved, "me/head")
    one_line(error)
