"""Several datasets in every training, and a hub that is asked once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
from specpilot import main as cli
from specpilot.common.errors import InputError
from specpilot.data_gen.dataset import read_manifest
from specpilot.data_gen.kinds import AcceptanceRow
from specpilot.train.datasets import joint_manifest, router_rows
from specpilot.train.options import (
    FeatureTrainingOptions,
    LagFreeTrainingOptions,
    RouterTrainingOptions,
    SpecDecTrainingOptions,
)
from specpilot.train.run_folder import read_run

from .test_router_training import make_rows, write
from .tiny import byte_tokenizer, make, save_pair

PROMPTS = [f"prompt number {i}" for i in range(24)]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair of random models, another draft, and prompts."""
    folder = tmp_path_factory.mktemp("own")
    save_pair(folder)
    make(seed=2, vocab=257, layers=1).save_pretrained(folder / "other")
    byte_tokenizer().save_pretrained(folder / "other")
    (folder / "p.txt").write_text("\n".join(PROMPTS))
    return folder


@pytest.fixture(scope="module")
def datasets(work: Path) -> list[str]:
    """Acceptance data on the first and second half of the prompts, and on-policy data."""
    words = ["--target", f"{work}/target", "--draft", f"{work}/draft", "--prompts", f"{work}/p.txt", "--no-chat"]
    words += ["--max-new-tokens", "6", "--device", "cpu", "--output"]
    halves = {"first": ["--limit", "12"], "second": ["--skip", "12"], "cold": ["--temperature", "0.5"]}
    halves["other-draft"] = ["--draft", f"{work}/other", "--limit", "12"]
    for name, half in halves.items():
        assert cli.main(["data", "acceptance", *words, f"{work}/{name}", *half]) == 0
    return [f"{work}/first", f"{work}/second"]


def test_a_head_on_two_datasets(datasets: list[str], work: Path, tmp_path: Path) -> None:
    words = ["train", "acceptance", "--data", f"[{','.join(datasets)}]", "--epochs", "1", "--depth", "0", "--output"]
    words += [str(tmp_path / "run"), "--validation-fraction", "0.3", "--device", "cpu"]
    assert cli.main(words) == 0
    manifests = [read_manifest(folder) for folder in datasets]
    assert joint_manifest(datasets[:1], AcceptanceRow.kind) == manifests[0]
    joint = joint_manifest(datasets, AcceptanceRow.kind)
    shards = [shard for manifest in manifests for shard in manifest["shards"]]
    mean = sum(shard["acceptance_sum"] for shard in shards) / sum(shard["tokens"] for shard in shards)
    assert joint["mean_acceptance"] == pytest.approx(mean)
    assert joint["dataset_fingerprint"] not in [manifest["dataset_fingerprint"] for manifest in manifests]
    opened = read_run(tmp_path / "run", SpecDecTrainingOptions)
    assert opened.settings.folders == tuple(datasets)
    assert opened.dataset["dataset_fingerprint"] == joint["dataset_fingerprint"]
    assert cli.main([*words, "--data", datasets[0], "--resume"]) == 2  # other data
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "head")]) == 0


def test_features_and_a_lag_free_head(datasets: list[str], tmp_path: Path) -> None:
    """Both take a folder or a list of folders."""
    for predictor, kind in (("features", FeatureTrainingOptions), ("lag-free", LagFreeTrainingOptions)):
        found = []
        for name, data in (("one", datasets[0]), ("two", f"[{','.join(datasets)}]")):
            run = tmp_path / f"{predictor}-{name}"
            words = ["train", "acceptance", "--predictor", predictor, "--data", data, "--validation-fraction", "0.4"]
            assert cli.main([*words, "--traced", "0", "--epochs", "1", "--device", "cpu", "--output", str(run)]) == 0
            found.append(read_run(run, kind))
        assert [run.settings.folders for run in found] == [(datasets[0],), tuple(datasets)]
        assert found[0].dataset["dataset_fingerprint"] != found[1].dataset["dataset_fingerprint"]


def test_datasets_must_be_alike(datasets: list[str], work: Path, tmp_path: Path) -> None:
    """Of one pair for every predictor, and of the same sampling parameters for SpecDec++'s head."""
    refused = [("specdec", "cold", "sampling")]
    refused += [(predictor, "other-draft", "fingerprint") for predictor in ("specdec", "features", "lag-free")]
    for predictor, folder, name in refused:
        words = ["train", "acceptance", "--predictor", predictor, "--data", f"[{datasets[0]},{work}/{folder}]"]
        with pytest.raises(InputError, match=rf"{folder}: {name} differs from that of .*first; give datasets that ag"):
            cli.run([*words, "--output", str(tmp_path / "x")])
    assert list(tmp_path.iterdir()) == []


def test_a_router_on_two_datasets(tmp_path: Path) -> None:
    for name, seed in (("A", 0), ("B", 1)):
        write(tmp_path / name, [replace(row, prompt_id=f"{name}{row.prompt_id}") for row in make_rows(30, seed)])
    words = ["train", "router", "--data", f"[{tmp_path}/A,{tmp_path}/B]", "--epochs", "1", "--device", "cpu"]
    assert cli.main([*words, "--output", str(tmp_path / "run")]) == 0
    opened = read_run(tmp_path / "run", RouterTrainingOptions)
    assert [row.prompt_id for row in router_rows(opened.settings.folders).rows][29:31] == ["Ap29", "Bp0"]
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "router")]) == 0


# The hub


class Empty(BaseHTTPRequestHandler):
    """A hub that has nothing, and counts who asks."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    Empty.asked.clear()
    server = HTTPServer(("127.0.0.1", 0), Empty)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


MISTYPED = {
    ("--prompts", "owner/nothing"): "owner/nothing: no such file or folder, and no dataset on the hub (",
    ("--target", "tinny"): "tinny: no such folder, and not found on the hub (",
    ("--draft", "owner/none"): "or a shipped model: tiny, tiny-draft, ",
}
RUN_ALL = """
import json, sys
from specpilot.main import main
for words in json.loads(sys.argv[1]):
    assert main(["data", "acceptance", "--output", "out", *words]) == 2
"""


def test_a_mistyped_name_is_asked_for_once(hub: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    environment |= {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0"}
    call = [sys.executable, "-c", RUN_ALL, json.dumps([*MISTYPED])]
    done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    for (_, name), message, line in zip(MISTYPED, MISTYPED.values(), done.stderr.splitlines(), strict=True):
        assert message in line
        assert len([path for path in Empty.asked if path.endswith(name)]) == 1
