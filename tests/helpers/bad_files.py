"""Files that are wrong in every way: models, controllers, datasets, runs, prompts, costs and configurations."""

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from specpilot.checkpoints import FOLDER
from transformers import AutoModelForCausalLM

from .eagle3 import write_draft
from .tiny import byte_tokenizer, save_pair

FILES = Path(__file__).parents[1] / "files"  # a small dataset, run and controller of some kinds, all valid
(SHARD,) = json.loads((FILES / "acceptance" / "manifest.json").read_text())["shards"]

# A file's other bytes, other keys of its JSON object, or None: it is gone
Change = bytes | dict[str, Any] | None | Callable[[bytes], bytes]

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"  # a git LFS pointer

COPIES: dict[str, dict[str, dict[str, Change]]] = {  # what is copied → the copies' names → their changed files
    "target": {
        "cut": {"model.safetensors": lambda content: content[:-64]},
        "weightless": {"model.safetensors": None},
        "lfs": {"model.safetensors": LFS},
        "lfs-tokenizer": {"tokenizer.json": LFS},
        "pickled": {"model.safetensors": None, "pytorch_model.bin": b"\x80\x04."},
        "no-config": {"config.json": None},
        "config-cut": {"config.json": b'{"model_type": '},
        "hidden-text": {"config.json": {"hidden_size": "many"}},
        "hidden-huge": {"config.json": {"hidden_size": 10**9}},
        "layers-negative": {"config.json": {"num_hidden_layers": -1}},
        "activation": {"config.json": {"hidden_act": "shrug"}},
        "defaults-penalty": {"generation_config.json": {"repetition_penalty": 1.3}},
        "no-tokenizer": {"tokenizer.json": None, "tokenizer_config.json": None},
        "tokenizer-cut": {"tokenizer.json": lambda content: content[:200]},
        "template": {"chat_template.jinja": b"{{ raise_exception('no users here') }}"},
        "quant-magic": {"config.json": {"quantization_config": {"quant_method": "magic"}}},
        "quant-nothing": {"config.json": {"quantization_config": {}}},
        "quant-gptq": {"config.json": {"quantization_config": {"quant_method": "gptq", "bits": 4}}},
    },
    "acceptance-head": {
        "head-flipped": {"model.safetensors": lambda content: content[:-1] + b"?"},
        "head-lfs": {"model.safetensors": LFS},
        "head-cut": {"config.json": b"{"},
    },
    "acceptance": {
        "data-lfs": {SHARD["file"]: LFS},
        "data-cut": {"manifest.json": b"{"},
        "data-new": {"manifest.json": {"schema_version": 99}},
        "data-kind": {"manifest.json": {"kind": "poems"}},
        "data-incomplete": {"manifest.json": {"complete": False}},
        "data-shards": {"manifest.json": {"shards": 3}},
        "data-sampling": {"manifest.json": {"sampling": {"temperature": "hot", "top_k": 50, "top_p": 1.0}}},
        "data-sampling-new": {"manifest.json": {"sampling": {"temperature": 1.0, "typical_p": 0.9}}},
        "data-forged": {
            SHARD["file"]: b"hello",
            "manifest.json": {"shards": [SHARD | {"sha256": hashlib.sha256(b"hello").hexdigest()}]},
        },
    },
    "router-data": {
        "router-times-text": {"times.json": {"seconds_per_token": ["x"]}},
        "router-times-cost": {"times.json": {"cost": {"t_draft": -1}}},
        "router-timeless": {"times.json": None},
    },
    "run": {
        "run-cut": {"run.yaml": b"data: [\n"},
        "run-unknown": {"run.yaml": lambda content: content + b"momentum: 0.9\n"},
        "run-text": {"run.yaml": lambda content: content.replace(b"depth: 0", b"depth: deep")},
        "run-settingless": {"run.yaml": None},
        "run-data-kind": {"dataset.json": {"kind": 3}},
        "run-env": {"env.json": {"run_id": 3}},
        "run-best-lfs": {"checkpoints/best.ckpt": LFS},
        "run-best-cut": {"checkpoints/best.ckpt": b"PK\x03\x04"},
        "run-bestless": {"checkpoints/best.ckpt": None},
    },
}
CONTENTS = {
    "prompts.txt": "".join(f"prompt {i}\n" for i in range(6)).encode(),
    "long.txt": b"long " * 60 + b"\n",
    "latin.txt": b"caf\xe9\n",
    "some latin.csv": "prompt\ncaf\xe9 \x81\n".encode("latin-1"),
    "utf16.jsonl": '{"prompt": "café"}\n'.encode("utf-16"),
    "utf16le.txt": "hello there\n".encode("utf-16-le"),
    "utf16be.txt": "hello, caf\xe9\n".encode("utf-16-be"),
    "utf32.txt": "hello\n".encode("utf-32"),
    **dict.fromkeys(("lfs.txt", "lfs.jsonl", "lfs.parquet", "lfs.json"), LFS),
    "open.csv": b'id,prompt\n1,one\n2,"two\n3,three\n',
    "null.txt": b"a\0b\n",
    "blank.txt": b"\n \n",
    "table.csv": b"prompt,domain\nhello,a,b\n",
    "cut.jsonl": b'{"prompt": "a"}\n{"prompt": \n',
    "half.jsonl": b'{"prompt": "\\ud83d\\ude00"}\n{"prompt": "a\\ud83d"}\n',
    "deep.jsonl": b"[" * 100_000 + b"\n",
    "other.jsonl": b'{"words": "a"}\n',
    "number.jsonl": b'{"prompt": 5}\n',
    "ids.jsonl": b'{"prompt": "a", "id": 1}\n{"prompt": "b", "id": 1}\n',
    "cost-cut.json": b"{",
    "cost-none.json": b"{}",
    "cost-text.json": b'{"cost": {"t_draft": "x", "t_verify": 1, "t_verify_token": 0}}',
    "cost-negative.json": b'{"cost": {"t_draft": -1, "t_verify": 1, "t_verify_token": 0}}',
    "cost-zero.json": b'{"cost": {"t_draft": 0, "t_verify": 0, "t_verify_token": 0}}',
    "list.yaml": b"- a\n- b\n",
    "dashed.yaml": b"top-k: 4\n",
    "typed.yaml": b"temperature: hot\n",
    "file": b"I am a file\n",
}


def copy(source: Path, target: Path, files: Mapping[str, Change]) -> None:
    """Copy the folder ``source`` to ``target``, with changed files."""
    shutil.copytree(source, target)
    for name, change in files.items():
        file = target / name
        if change is None:
            file.unlink()
        elif isinstance(change, dict):
            values = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
            file.write_text(json.dumps({**values, **change}), encoding="utf-8")
        else:
            file.write_bytes(change(file.read_bytes()) if callable(change) else change)


def make_bad_files(place: Path) -> None:
    save_pair(place)
    for source, copies in COPIES.items():
        for name, files in copies.items():
            copy(place / source if source == "target" else FILES / source, place / name, files)
    for name, content in CONTENTS.items():
        (place / name).write_bytes(content)
    (place / "folder").mkdir()
    shutil.copytree(FOLDER / "tiny-head", place / "head-shipped")
    broken = AutoModelForCausalLM.from_pretrained(place / "target")
    broken.get_output_embeddings().weight.data[5] = torch.nan
    broken.save_pretrained(place / "broken")
    byte_tokenizer().save_pretrained(place / "broken")
    copy(place / "draft", place / "other", {})
    byte_tokenizer(extra=2).save_pretrained(place / "other")
    write_draft(place / "eagle", vocab=257, kept=None, target=32, layers=[1])
    letters = ["".join(random.Random(row).choices("abcdefgh ", k=60)) for row in range(50)]
    page = place / "page.parquet"
    pq.write_table(pa.table({"prompt": letters}), page, compression="snappy", use_dictionary=False)
    start = pq.ParquetFile(page).metadata.row_group(0).column(0).data_page_offset + 40
    content = page.read_bytes()
    page.write_bytes(content[:start] + bytes(200) + content[start + 200 :])
