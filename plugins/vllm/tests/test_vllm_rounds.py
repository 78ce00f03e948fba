"""Rounds logged in vLLM and its texts are datasets: labels are those of our own forwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from engines import engine, generate, model_runner, prompts, vllm, vllm_sampling  # skips where the extra is missing
from specpilot.common.errors import InputError
from specpilot.compare.labelled import read_labelled
from specpilot.compare.options import CompareOptions
from specpilot.compare.responses import read_responses
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.acceptance import AcceptanceDatasetBuilder, make_acceptance_data
from specpilot.data_gen.dataset import read_manifest
from specpilot.data_gen.kinds import AcceptanceRow, ResponseRow, RoundsRow, read_dataset
from specpilot.data_gen.options import AcceptanceDataOptions, ResponseOptions
from specpilot.models.loading.names import load_model
from specpilot_vllm import responses

from tests.helpers.folders import contents
from tests.helpers.training import assert_labels

SAMPLED, WARM, GREEDY = SamplingParams(1.0, 50), SamplingParams(0.7, 20, 0.9), SamplingParams(0.0)
FOLDERS = {
    "temperature-1-top-k-50-top-p-1": SAMPLED,
    "temperature-0.7-top-k-20-top-p-0.9": WARM,
    "temperature-0": GREEDY,
}
TOKENS, COUNT = 24, 12


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[list[int]]]]:
    """Return the folder of an engine's rounds, and the logged texts by dataset; the engine generated more texts."""
    folder, texts = tmp_path_factory.mktemp("rounds"), prompts(COUNT)
    llm = engine({"length": "cumulative-confidence:0.3", "log_rounds": str(folder)})
    outputs = {name: generate(llm, texts, vllm_sampling(sampling, TOKENS)) for name, sampling in FOLDERS.items()}
    for odd in ({"repetition_penalty": 1.2}, {"presence_penalty": 0.5}, {"stop": [" "]}, {"min_tokens": 5}):
        generate(llm, texts[:2], vllm_sampling(SAMPLED, TOKENS, **odd))
    llm_engine = llm.llm_engine
    llm_engine.add_request("aborted", {"prompt_token_ids": texts[0]}, vllm_sampling(SAMPLED, 400, ignore_eos=True))
    for _ in range(4):
        llm_engine.step()
    llm_engine.abort_request(["aborted"])
    model_runner(llm).drafter.close()
    return folder, outputs


@pytest.mark.parametrize("name", FOLDERS)
def test_labels_are_those_of_specpilots_forwards(logged: tuple[Path, dict[str, list[list[int]]]], name: str) -> None:
    folder, texts = logged
    rows, sampling = read_dataset(folder / name, RoundsRow), FOLDERS[name]
    assert read_manifest(folder / name).sampling == sampling
    assert sorted(row.x for row in rows) == sorted(texts[name])
    models = [load_model(model) for model in ("tiny", "tiny-draft")]
    drafted = rejected = 0
    for row in rows:
        for start, tokens, accept in zip(row.starts, row.drafted, row.accept, strict=True):
            text = [*row.prompt_ids, *row.x[:start], *tokens]
            y = torch.tensor(tokens).unsqueeze(1)
            with torch.inference_mode():
                p, q = (
                    sampling(model(torch.tensor([text])).logits[0, -len(tokens) - 1 : -1]).gather(1, y).flatten()
                    for model in models
                )
            assert accept == pytest.approx((p / q).clamp(max=1).tolist(), abs=1e-3)
            agreement = [a == b for a, b in zip(tokens, row.x[start:], strict=False)]
            assert all(agreement[: len(tokens) - 1])
            drafted, rejected = drafted + len(tokens), rejected + (not all(agreement))
    assert drafted > 4 * COUNT
    assert rejected > COUNT / 2


def test_responses_tell_what_the_log_tells(tmp_path: Path) -> None:
    """The metrics of requests that vLLM reports, by token of a round, are those of the logged rounds."""
    settings = {"length": "cumulative-confidence:0.3", "log_rounds": str(tmp_path / "log")}
    llm = engine(settings, per_request_spec_decode_metrics="detailed")
    texts = [{"prompt_token_ids": prompt} for prompt in prompts(COUNT)]
    answers = llm.generate(texts, vllm_sampling(SAMPLED, TOKENS), use_tqdm=False)
    model_runner(llm).drafter.close()
    responses = [
        {"prompt_token_ids": answer.prompt_token_ids, "usage": {"completion_tokens": len(answer.outputs[0].token_ids)},
         "metrics": {"speculative_decoding": answer.outputs[0].spec_decode_metrics.to_dict()}}
        for answer in answers
    ]  # fmt: skip
    (tmp_path / "responses.json").write_text(json.dumps(responses))
    response_set = read_responses([str(tmp_path / "responses.json")])
    logged = read_labelled([str(tmp_path / "log")], CompareOptions(length="3"))
    assert sorted(response_set.prompts) == sorted(logged.prompts)
    counts = [
        Counter(
            (depth, text.x[position] == token)
            for text in data.texts
            for position, token, depth in zip(text.places, text.tokens, text.depths, strict=True)
        )
        for data in (response_set, logged)
    ]
    assert counts[0] == counts[1]
    assert sum(counts[0].values()) > 4 * COUNT


# Texts of vLLM as acceptance data: labelled by forwards of ours, also where vLLM is missing

SETTINGS = AcceptanceDataOptions(limit=12, max_new_tokens=24, shard_size=5, batch_size=8, device="cpu")
RESPONSES = ResponseOptions(responses="vllm", kv_cache_gib=0.15)


def test_texts_are_labelled_by_specpilots_forwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command runs in a separate process, because an engine that ends stops other engines of its process."""
    dataset = tmp_path / "data"
    words = ["--responses", "vllm", "--kv-cache-gib", "0.15", "--limit", "12", "--max-new-tokens", "24"]
    words += ["--shard-size", "5", "--batch-size", "8", "--device", "cpu", "--output", str(dataset)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    command = [sys.executable, "-m", "specpilot", "data", "acceptance", *words]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    texts = {row.prompt_id: row.tokens for row in read_dataset(f"{dataset}-responses", ResponseRow)}
    assert read_manifest(dataset).responses.to_dict() == {
        "source": "vllm", "version": vllm.__version__.partition("+")[0], "tensor_parallel": 1,
        "sha256": read_manifest(f"{dataset}-responses").dataset_fingerprint,
    }  # fmt: skip
    rows = read_dataset(dataset, AcceptanceRow)
    assert {row.prompt_id: row.x for row in rows} == texts
    assert len(rows) == 12
    assert_labels(AcceptanceDatasetBuilder(SETTINGS), rows)

    def missing() -> str:
        raise InputError("vllm is not installed")

    monkeypatch.setattr(responses, "installed_version", missing)
    with pytest.raises(InputError, match="vllm is not installed"):
        make_acceptance_data(SETTINGS, tmp_path / "other", responses=RESPONSES)
    dataset.rename(tmp_path / "first")  # complete texts are labelled without it
    assert contents(tmp_path / "first") == contents(make_acceptance_data(SETTINGS, dataset, responses=RESPONSES))
