"""Every reader of files gets mutated files: each is read or refused with an InputError, in memory of the file's order.

`make test` tries ten for each; `make soak` goes on for minutes (``FUZZ_EXAMPLES``, without a fixed seed).
"""

import json
import os
import re
import shutil
import struct
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from specpilot.checkpoints import FOLDER, shipped
from specpilot.cli.commands import generate
from specpilot.cli.parser import CommandParser
from specpilot.common.errors import InputError
from specpilot.common.files import sha256
from specpilot.compare.store import Store
from specpilot.controllers.acceptance import specdec_head
from specpilot.controllers.checkpoints.checkpoint import load_controller
from specpilot.controllers.length.cost_model import BatchCosts, CostModel
from specpilot.data_gen.dataset import read_manifest
from specpilot.data_gen.router_dataset import Times
from specpilot.data_gen.rows import read_rows
from specpilot.models.gguf_model import GgufFile
from specpilot.models.loading.model_files import find_files
from specpilot.models.loading.names import load_model
from specpilot.train.best_epoch import read_best
from specpilot.train.run_folder import read_run

from ..helpers.eagle3 import write_draft
from ..helpers.folders import one_bit

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "10"))
MEMORY = 1 << 21  # bytes that any reader may take
TIMES_SIZE = 128  # bytes of memory for a byte of the file: an empty list in JSON takes 64 for three
FILES = Path(__file__).parents[1] / "files"
IDENTITY = {"what": "fuzz"}


@dataclass(frozen=True)
class Reader:
    """A file and what reads it.

    Attributes:
        file: the one that is mutated.
        read: reads it, from where it lies.
        sealed: its content is compared with a hash, which ``seal`` makes fit.
    """

    file: Path
    read: Callable[[], object]
    seal: Callable[[], None] = lambda: None


def gguf_bytes() -> bytes:
    """Return a small GGUF file with every type of value and two tensors."""

    def string(text: str) -> bytes:
        return struct.pack("<Q", len(text)) + text.encode()

    numbers = [(i, "BbHhIif?".find(c), c) for i, c in enumerate("BbHhIif?")]
    pairs = [string(f"toy.{i}") + struct.pack(f"<I{c}", i, 1) for i, _, c in numbers]
    pairs += [string("general.architecture") + struct.pack("<I", 8) + string("toy")]
    pairs += [string("general.alignment") + struct.pack("<II", 4, 32)]
    pairs += [string("toy.list") + struct.pack("<IIQ3f", 9, 6, 3, 1.0, 2.0, 3.0)]
    pairs += [string("toy.words") + struct.pack("<IIQ", 9, 8, 2) + string("a") + string("b")]
    pairs += [string("toy.nested") + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ2I", 4, 2, 7, 8)]
    tensors = [string(name) + struct.pack("<I2QIQ", 2, 4, 2, 0, offset) for name, offset in (("a", 0), ("b", 32))]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + np.arange(16, dtype=np.float32).tobytes()


def write(path: Path, content: bytes | dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(json.dumps(content).encode() if isinstance(content, dict) else content)
    return path


def read_gguf(path: Path) -> None:
    file = GgufFile(path)
    assert file.fingerprint
    assert file.architecture


def readers(folder: Path) -> dict[str, Reader]:
    sources = (
        FILES / "acceptance",
        FILES / "run",
        FILES / "router-data",
        FOLDER / "tiny-lag-free",
        shipped("tiny-draft"),
    )
    data, run, router, head, model = (shutil.copytree(each, folder / each.name) for each in sources if each)
    cost = {"t_draft": 0.1, "t_verify": 1.0, "t_verify_token": 0.0}
    costs = write(folder / "cost.json", {"cost": cost, "batch": {"1": cost, "2": cost}})
    parser = CommandParser(generate.generate, prog="specpilot")
    words = write(folder / "words.yaml", b"prompt: hello\nmax_new_tokens: 4\ntemperature: 1.0\nlength: '3'\n")
    gguf = write(folder / "toy.gguf", gguf_bytes())
    with Store(folder / "store") as store:
        store.put(IDENTITY, {"rows": [1.5, None, "text"]})
    (record,) = (folder / "store" / "records").iterdir()
    pq.write_table(pa.table({"prompt": ["one", "two"], "id": [1, 2]}), folder / "rows.parquet")
    lines = write(folder / "rows.jsonl", b'{"prompt": "one", "id": 1}\n{"prompt": "two"}\n')
    checkpoint = run / "checkpoints" / "best.ckpt"
    eagle = write_draft(folder / "eagle", vocab=12, kept=[1, 4, 7], target=8, layers=[1, 2], width=8)

    def seal() -> None:
        config = json.loads((head / "config.json").read_text())
        digest = sha256(head / "model.safetensors")
        write(head / "config.json", config | {"weights_sha256": digest})

    return {
        "manifest": Reader(data / "manifest.json", lambda: read_manifest(data)),
        "settings of a run": Reader(run / "run.yaml", lambda: read_run(run, specdec_head.TrainingOptions)),
        "environment of a run": Reader(run / "env.json", lambda: read_run(run, specdec_head.TrainingOptions)),
        "checkpoint of a run": Reader(checkpoint, lambda: read_best(checkpoint)),
        "times": Reader(router / "times.json", lambda: Times.load(router)),
        "controller": Reader(head / "config.json", lambda: load_controller(head)),
        "weights": Reader(head / "model.safetensors", lambda: load_controller(head), seal),
        "costs": Reader(costs, lambda: CostModel.load(costs)),
        "costs of batches": Reader(costs, lambda: BatchCosts.load(str(costs))),
        "configuration": Reader(words, lambda: parser.read(["--config", str(words)])),
        "GGUF": Reader(gguf, lambda: read_gguf(gguf)),
        "record": Reader(record, lambda: Store(folder / "store").get(IDENTITY)),
        "Parquet": Reader(folder / "rows.parquet", lambda: read_rows(str(folder / "rows.parquet"))),
        "JSON Lines": Reader(lines, lambda: read_rows(str(lines))),
        "configuration of a model": Reader(model / "config.json", lambda: find_files(model, None)),
        "configuration of EAGLE-3": Reader(eagle / "config.json", lambda: load_model(eagle, device="cpu")),
        "weights of EAGLE-3": Reader(eagle / "model.safetensors", lambda: load_model(eagle, device="cpu")),
    }


NAMES = (
    "manifest", "settings of a run", "environment of a run", "checkpoint of a run", "times", "controller", "weights",
    "costs", "costs of batches", "configuration", "GGUF", "record", "Parquet",
    "JSON Lines", "configuration of a model", "configuration of EAGLE-3", "weights of EAGLE-3",
)  # fmt: skip
JUNK: list[Any] = [
    None, True, -1, 0, 1e308, 10**400, float("nan"), float("inf"), "", "\0", "\ud800", "x" * 10_000, [], {}, [[]],
    {"": None}, 2**63, -(2**63), "1e999", [None] * 100, "../../etc/passwd",
]  # fmt: skip
DEPTHS = (10, 2_000, 100_000)
NUMBERS = [b"99999999999999999999", b"1e999", b"-1", b"NaN", b"0" * 5000, b"9" * 5000, b"2020-13-45", b"!!int ''"]


@st.composite
def mutations(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Draw a change of a file's bytes, or of one value if the file is JSON or YAML."""
    kind = draw(st.sampled_from(["bits", "cut", "insert", "integer", "value", "value", "nested"]))
    place = draw(st.floats(0, 1, exclude_max=True))
    match kind:
        case "bits":
            seed, count = draw(st.integers(0, 1 << 32)), draw(st.integers(1, 8))
            return lambda content: reduce(one_bit, [Random(seed + i) for i in range(count)], content)
        case "cut":
            return spliced(place, b"")
        case "insert":
            return spliced(place, draw(st.binary(max_size=16) | st.sampled_from(NUMBERS)), 0)
        case "integer":
            layout, number = draw(st.sampled_from(["<I", "<Q"])), draw(st.sampled_from([0, 2**31, 2**32 - 1]))
            packed = struct.pack(layout, number << 31 if layout == "<Q" else number)
            return spliced(place, packed, len(packed))
        case "nested":
            opening = draw(st.sampled_from([b"[", b'{"a":', b"- ", b"  a:\n"]))
            return spliced(place, opening * draw(st.sampled_from(DEPTHS)))
    junk = draw(st.sampled_from(JUNK))
    return lambda content: changed(content, place, junk)


def spliced(place: float, new: bytes, over: int = sys.maxsize) -> Callable[[bytes], bytes]:
    """Return a change that puts ``new`` in place of the next ``over`` bytes, by default of all following bytes."""

    def splice(content: bytes) -> bytes:
        start = int(place * len(content))
        return content[:start] + new + content[start + over :]

    return splice


def changed(content: bytes, place: float, junk: Any) -> bytes:
    """Return ``content`` with one value of an object replaced by ``junk``; other files unchanged."""
    with suppress(ValueError, yaml.YAMLError):
        document = yaml.safe_load(content) if not content.lstrip().startswith(b"{") else json.loads(content)
        holders = [*containers(document)]
        if holders:
            holder = holders[int(place * len(holders))]
            keys = [*holder] if isinstance(holder, dict) else [*range(len(holder))]
            holder[keys[int(place * 997) % len(keys)]] = junk
            return json.dumps(document).encode()
    return content


def containers(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list) and value:
        yield value
        for entry in value.values() if isinstance(value, dict) else value:
            yield from containers(entry)


@pytest.fixture(scope="module")
def all_readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    torch.manual_seed(0)
    by_name = readers(tmp_path_factory.mktemp("fuzz"))
    assert tuple(by_name) == NAMES
    for reader in by_name.values():
        reader.read()
    return by_name


def damaged_gguf(old: bytes, new: bytes) -> bytes:
    content = gguf_bytes()
    assert content.count(old) == 1
    return content.replace(old, new)


@pytest.mark.parametrize(
    "content",
    [
        damaged_gguf(b"general.alignment" + struct.pack("<II", 4, 32), b"general.alignment" + struct.pack("<II", 4, 0)),
        damaged_gguf(b"a" + struct.pack("<IQ", 2, 4), b"a" + struct.pack("<IQ", 2**32 - 1, 4)),
        damaged_gguf(b"b" + struct.pack("<I2QIQ", 2, 4, 2, 0, 32), b"b" + struct.pack("<I2QIQ", 2, 4, 2, 0, 2**40)),
        b"GGUF" + struct.pack("<IQQQcI", 3, 0, 1, 1, b"k", 9) + struct.pack("<IQ", 9, 1) * 100_000,
    ],
    ids=["no alignment", "four billion dimensions", "a tensor behind the end", "nested arrays"],
)
def test_gguf_headers_that_lie(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InputError, match="truncated or damaged"):
        read_gguf(write(tmp_path / "toy.gguf", content))


NO_YAML = (
    "!!timestamp 2020-13-45", "!!int ''", "!!bool x", "!!timestamp x", "!!float '-'", "9" * 5000,
    "[" * 100_000, "x" * 300_000, "!!map [1]", "!!set [1]",
)  # fmt: skip


@pytest.mark.parametrize("value", NO_YAML, ids=lambda value: value[:16])
def test_yaml_that_cannot_be_converted(tmp_path: Path, value: str) -> None:
    file = write(tmp_path / "words.yaml", f"prompt: {value}".encode())
    with pytest.raises(InputError, match=f"{re.escape(str(file))}: .*YAML.*; "):
        CommandParser(generate.generate, prog="specpilot").read(["--config", str(file)])
    with pytest.raises(InputError):
        CommandParser(generate.generate, prog="specpilot").read(["hi", f"--max-new-tokens={value[:6000]}"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_mutated_files_are_read_or_refused(all_readers: dict[str, Reader], name: str) -> None:
    reader = all_readers[name]
    valid = reader.file.read_bytes()
    contents = {path: path.read_bytes() for path in reader.file.parent.glob("*.json")}

    @given(mutations())
    @settings(
        max_examples=EXAMPLES, derandomize="FUZZ_EXAMPLES" not in os.environ, suppress_health_check=[*HealthCheck]
    )
    def check(mutate: Callable[[bytes], bytes]) -> None:
        content = mutate(valid)
        reader.file.write_bytes(content)
        reader.seal()
        tracemalloc.start()
        try:
            with suppress(InputError):
                reader.read()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < MEMORY + TIMES_SIZE * len(content)

    try:
        check()
    finally:
        for path, content in {**contents, reader.file: valid}.items():
            path.write_bytes(content)
