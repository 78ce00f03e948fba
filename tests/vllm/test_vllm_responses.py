"""Texts of vLLM as acceptance data: labelled by forwards of ours, also where vLLM is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from specpilot.common.errors import InputError
from specpilot.data_gen import responses
from specpilot.data_gen.acceptance import AcceptanceDatasetBuilder, make_acceptance_data
from specpilot.data_gen.dataset import read_manifest
from specpilot.data_gen.kinds import AcceptanceRow, ResponseRow, read_dataset
from specpilot.data_gen.options import AcceptanceDataOptions, ResponseOptions

from ..folders import assert_same_bytes
from ..training import assert_labels
from .engines import vllm  # skips where vLLM is missing

SETTINGS = AcceptanceDataOptions(limit=12, max_new_tokens=24, shard_size=5, batch_size=8, device="cpu")
RESPONSES = ResponseOptions(responses="vllm", kv_cache_gib=0.15)
WORDS = ["--limit", "12", "--max-new-tokens", "24", "--shard-size", "5", "--batch-size", "8", "--device", "cpu"]


def make(output: Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: an engine that ends takes others of its process with it."""
    command = [sys.executable, "-m", "specpilot", "data", "acceptance", "--responses", "vllm", "--kv-cache-gib", "0.15"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    return subprocess.run(
        [*command, *WORDS, "--output", str(output)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "data"
    ended = make(folder)
    assert ended.returncode == 0, ended.stderr
    return folder


def test_labels_are_those_of_our_own_forwards(made: Path) -> None:
    texts = {row.prompt_id: row.tokens for row in read_dataset(f"{made}-responses", ResponseRow)}
    manifest, source = read_manifest(f"{made}-responses"), read_manifest(made)["responses"]
    assert source == {
        "source": "vllm", "version": vllm.__version__.partition("+")[0], "tensor_parallel": 1,
        "sha256": manifest["dataset_fingerprint"],
    }  # fmt: skip
    rows = read_dataset(made, AcceptanceRow)
    assert {row.prompt_id: row.x for row in rows} == texts
    assert len(rows) == 12
    assert_labels(AcceptanceDatasetBuilder(SETTINGS), rows)


def test_complete_texts_are_labelled_without_vllm(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise InputError("vllm is not installed")

    monkeypatch.setattr(responses, "installed_version", missing)
    Path(f"{made}-responses").rename(tmp_path / "data-responses")
    try:
        again = make_acceptance_data(SETTINGS, tmp_path / "data", responses=RESPONSES)
        assert_same_bytes(made, again)
    finally:
        (tmp_path / "data-responses").rename(f"{made}-responses")
    with pytest.raises(InputError, match="vllm is not installed"):
        make_acceptance_data(SETTINGS, tmp_path / "other", responses=RESPONSES)


def test_an_engine_that_does_not_start() -> None:
    three = replace(RESPONSES, tensor_parallel=3)  # processes, more than there are devices
    with pytest.raises(InputError, match=r"^target='tiny': vLLM 0\.32\.0 does not load it \(.+\)$"):
        print(responses.VllmResponses(SETTINGS, three, None).engine)
