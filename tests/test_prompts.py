"""Prompt sources: files, folders, columns, the built-in prompts, and everything that is no prompt."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from specpilot.data_gen.prompts import fingerprint, load_prompts


def test_the_same_prompts_from_every_kind_of_file(tmp_path: Path) -> None:
    texts = ["one", "zwei\u2028zwei", "three"]
    (tmp_path / "a.jsonl").write_text(
        "\n".join(json.dumps({"prompt": t}, ensure_ascii=False) for t in texts) + "\n\n", encoding="utf-8"
    )
    (tmp_path / "a.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    pq.write_table(pa.table({"prompt": texts}), tmp_path / "a.parquet")
    read = [load_prompts(str(tmp_path / name)) for name in ("a.jsonl", "a.txt", "a.parquet")]
    assert [p.prompt for p in read[0]] == texts
    assert read[0] == read[1] == read[2]
    assert fingerprint(read[0]) == fingerprint(read[1])
    assert load_prompts(str(tmp_path)) == read[0]  # repeated prompts once
    assert load_prompts(str(tmp_path / "a.txt"), limit=2) == read[0][:2]


def test_columns_ids_and_domains(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "why?", "id": 7, "domain": "doubt"}\n')
    (row,) = load_prompts(str(path), column="question")
    assert (row.id, row.domain, row.prompt) == ("7", "doubt", "why?")


def test_a_hub_dataset_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's own loading code over a local folder that stands for a dataset repository."""
    (tmp_path / "repo").mkdir()
    (tmp_path / "cache" / "repo").mkdir(parents=True)  # as if it had been loaded before
    (tmp_path / "repo" / "train.jsonl").write_text('{"prompt": "from afar"}\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    from specpilot.data_gen.prompts import _read_hub

    assert _read_hub("repo", "train") == [{"prompt": "from afar"}]


def test_splits_of_the_built_in_prompts_do_not_meet() -> None:
    splits = [{p.prompt for p in load_prompts("builtin", split=s)} for s in ("train", "validation", "test")]
    assert all(len(s) >= 200 for s in splits)
    assert len(set.union(*splits)) == sum(map(len, splits)) >= 2000
