"""Files that are wrong in every way: models, controllers, datasets, runs, prompts, costs and configurations."""

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from specpilot.checkpoints import FOLDER
from transformers import AutoModelForCausalLM

from .eagle3 import write_draft
from .tiny import byte_tokenizer, save_pair

FILES = Path(__file__).parent / "files"  # a small dataset, run and controller of some kinds, all valid

Change = bytes | dict[str, Any] | None | Callable[[bytes], bytes]


def copy(source: Path, target: Path, **files: Change) -> None:
    """``source`` as ``target``, with its files changed: other bytes, other keys of a JSON object, or gone.

    A dot of a file's name is written ``__``.
    """
    shutil.copytree(source, target)
    for name, change in files.items():
        file = target / name.replace("__", ".")
        if change is None:
            file.unlink()
        elif isinstance(change, dict):
            values = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
            file.write_text(json.dumps({**values, **change}), encoding="utf-8")
        else:
            file.write_bytes(change(file.read_bytes()) if callable(change) else change)


def make_bad_files(place: Path) -> None:
    save_pair(place)
    models(place)
    controllers(place)
    datasets_and_runs(place)
    prompts(place)
    small_files(place)


def models(place: Path) -> None:
    target = place / "target"
    broken = AutoModelForCausalLM.from_pretrained(target)
    broken.get_output_embeddings().weight.data[5] = torch.nan
    broken.save_pretrained(place / "broken")
    byte_tokenizer().save_pretrained(place / "broken")
    copy(place / "draft", place / "other")
    byte_tokenizer(extra=2).save_pretrained(place / "other")
    write_draft(place / "eagle", vocab=257, kept=None, target=32, layers=[1])
    changes: dict[str, dict[str, Change]] = {
        "cut": {"model__safetensors": lambda content: content[:-64]},
        "weightless": {"model__safetensors": None},
        "pickled": {"model__safetensors": None, "pytorch_model__bin": b"\x80\x04."},
        "no-config": {"config__json": None},
        "config-cut": {"config__json": b'{"model_type": '},
        "config-list": {"config__json": b"[]"},
        "config-latin": {"config__json": b'{"model_type": "ll\xe4ma"}'},
        "type": {"config__json": {"model_type": "toaster"}},
        "hidden-text": {"config__json": {"hidden_size": "many"}},
        "hidden-huge": {"config__json": {"hidden_size": 10**9}},
        "layers-negative": {"config__json": {"num_hidden_layers": -1}},
        "activation": {"config__json": {"hidden_act": "shrug"}},
        "defaults-cut": {"generation_config__json": b"{"},
        "defaults-penalty": {"generation_config__json": {"repetition_penalty": 1.3}},
        "no-tokenizer": {"tokenizer__json": None, "tokenizer_config__json": None},
        "tokenizer-cut": {"tokenizer__json": lambda content: content[:200]},
        "tokenizer-config-cut": {"tokenizer_config__json": b"{"},
        "template": {"chat_template__jinja": b"{{ raise_exception('no users here') }}"},
        "quant-gptq": {"config__json": {"quantization_config": {"quant_method": "gptq", "bits": 4}}},
        "quant-magic": {"config__json": {"quantization_config": {"quant_method": "magic"}}},
        "quant-nothing": {"config__json": {"quantization_config": {}}},
    }
    for name, files in changes.items():
        copy(target, place / name, **files)


def controllers(place: Path) -> None:
    head = FILES / "acceptance-head"
    changes: dict[str, dict[str, Change]] = {
        "head-flipped": {"model__safetensors": lambda content: content[:-1] + b"?"},
        "head-cut": {"config__json": b"{"},
    }
    for name, files in changes.items():
        copy(head, place / name, **files)
    shutil.copytree(FOLDER / "tiny-head", place / "head-shipped")


def datasets_and_runs(place: Path) -> None:
    data = FILES / "acceptance"
    manifest = json.loads((data / "manifest.json").read_text())
    (shard,) = manifest["shards"]
    changes: dict[str, dict[str, Change]] = {
        "data-cut": {"manifest__json": b"{"},
        "data-new": {"manifest__json": {"schema_version": 99}},
        "data-kind": {"manifest__json": {"kind": "poems"}},
        "data-incomplete": {"manifest__json": {"complete": False}},
        "data-shards": {"manifest__json": {"shards": 3}},
        "data-sampling": {"manifest__json": {"sampling": {"temperature": "hot", "top_k": 50, "top_p": 1.0}}},
        "data-fingerprint": {"manifest__json": {"fingerprint": [1]}},
    }
    for name, files in changes.items():
        copy(data, place / name, **files)
    forged = dict(shard, sha256=hashlib.sha256(b"hello").hexdigest())
    copy(data, place / "data-forged", **{"shard-00000__parquet": b"hello", "manifest__json": {"shards": [forged]}})
    copy(FILES / "router-data", place / "router-times-text", times__json={"seconds_per_token": ["x"]})
    copy(FILES / "router-data", place / "router-times-cost", times__json={"cost": {"t_draft": -1}})
    copy(FILES / "router-data", place / "router-timeless", times__json=None)
    run = FILES / "run"
    changes = {
        "run-cut": {"run__yaml": b"data: [\n"},
        "run-unknown": {"run__yaml": lambda content: content + b"momentum: 0.9\n"},
        "run-text": {"run__yaml": lambda content: content.replace(b"depth: 0", b"depth: deep")},
        "run-settingless": {"run__yaml": None},
        "run-data-kind": {"dataset__json": {"kind": 3}},
        "run-env": {"env__json": {"run_id": 3}},
    }
    for name, files in changes.items():
        copy(run, place / name, **files)
    copy(run, place / "run-best-cut")
    (place / "run-best-cut" / "checkpoints" / "best.ckpt").write_bytes(b"PK\x03\x04")
    copy(run, place / "run-bestless")
    (place / "run-bestless" / "checkpoints" / "best.ckpt").unlink()


def prompts(place: Path) -> None:
    (place / "prompts.txt").write_text("".join(f"prompt {i}\n" for i in range(6)))
    for name, content in {
        "long.txt": b"long " * 60 + b"\n",
        "latin.txt": b"caf\xe9\n",
        "null.txt": b"a\0b\n",
        "blank.txt": b"\n \n",
        "table.csv": b"prompt,domain\nhello,a,b\n",
        "cut.jsonl": b'{"prompt": "a"}\n{"prompt": \n',
        "half.jsonl": b'{"prompt": "\\ud83d\\ude00"}\n{"prompt": "a\\ud83d"}\n',
        "list.jsonl": b"[1]\n",
        "deep.jsonl": b"[" * 100_000 + b"\n",
        "other.jsonl": b'{"words": "a"}\n',
        "number.jsonl": b'{"prompt": 5}\n',
        "ids.jsonl": b'{"prompt": "a", "id": 1}\n{"prompt": "b", "id": 1}\n',
    }.items():
        (place / name).write_bytes(content)
    letters = ["".join(random.Random(row).choices("abcdefgh ", k=60)) for row in range(50)]
    pq.write_table(pa.table({"prompt": letters}), place / "good.parquet", compression="snappy", use_dictionary=False)
    content = (place / "good.parquet").read_bytes()
    start = pq.ParquetFile(place / "good.parquet").metadata.row_group(0).column(0).data_page_offset + 40
    (place / "page.parquet").write_bytes(content[:start] + bytes(200) + content[start + 200 :])
    (place / "folder").mkdir()
    (place / "folder.txt").mkdir()


def small_files(place: Path) -> None:
    for name, content in {
        "cost-cut.json": b"{",
        "cost-none.json": b"{}",
        "cost-text.json": b'{"cost": {"t_draft": "x", "t_verify": 1, "t_verify_token": 0}}',
        "cost-negative.json": b'{"cost": {"t_draft": -1, "t_verify": 1, "t_verify_token": 0}}',
        "cost-zero.json": b'{"cost": {"t_draft": 0, "t_verify": 0, "t_verify_token": 0}}',
        "list.yaml": b"- a\n- b\n",
        "file": b"I am a file\n",
    }.items():
        (place / name).write_bytes(content)
