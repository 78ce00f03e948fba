"""Results by name in one file, each written when it is measured, with the commit and the card it was measured on."""

from __future__ import annotations

import gc
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from specpilot.common.errors import InputError
from specpilot.common.files import replacing
from specpilot.common.machine import commit, machine, processor, versions

CHECKOUT = Path(__file__).parents[2]
IGNORED_FOLDERS = {".git", "build", "dist", "runs", "tests", "docs"}  # folders whose programs change no result
HEADER = ("machine", "versions")


def card(device: str) -> str:
    """Return the name of the GPU, or of the processor without one."""
    return torch.cuda.get_device_name() if device == "cuda" and torch.cuda.is_available() else processor()


def code() -> str:
    """Return the commit of the checkout, or a digest of its programs without git.

    If programs differ from the commit, the digest follows the commit.
    """
    name = commit(Path(__file__))
    if name is not None and not name.endswith("+changes"):
        return name
    digest = hashlib.sha256()
    for path in sorted(CHECKOUT.rglob("*.py")):
        parts = path.relative_to(CHECKOUT).parts
        if parts[0] not in IGNORED_FOLDERS and not parts[0].startswith("."):
            digest.update("/".join(parts).encode() + b"\0" + path.read_bytes())
    return (name.removesuffix("+changes") + "+" if name else "files ") + digest.hexdigest()[:12]


class Results:
    """Stores results by name in a file, each as ``{"commit": …, "gpu": …, "seconds": …, "result": …}``.

    A result is current if it was measured at this commit on this card and is no error. All other results are measured
    again.

    Args:
        path: the file; its folder is created if necessary.
        gpu: name of the card.
        console: shows each result.

    Attributes:
        entries: all results of the file by name, also those that are not current.

    Raises:
        InputError: the file is no file of results.
    """

    def __init__(self, path: Path, gpu: str, console: Console) -> None:
        self.path, self.gpu, self.console = path, gpu, console
        self.commit = code()
        self.header = {"machine": machine().to_dict(), "versions": versions()}
        self.entries: dict[str, dict[str, Any]] = _entries(path) if path.exists() else {}
        path.parent.mkdir(parents=True, exist_ok=True)

    def current(self, name: str) -> Any | None:
        """Return the current result ``name``; None if there is none."""
        entry = self.entries.get(name)
        return None if entry is None or not self._is_same(entry) or _is_error(entry["result"]) else entry["result"]

    def has_failed(self, name: str) -> bool:
        """Return true if ``name`` was an error when it was last measured with this commit on this card."""
        entry = self.entries.get(name)
        return entry is not None and self._is_same(entry) and _is_error(entry["result"])

    def _is_same(self, entry: dict[str, Any]) -> bool:
        return bool(entry["commit"] == self.commit and entry["gpu"] == self.gpu)

    def measure(self, name: str, call: Callable[[], Any]) -> Any | None:
        """Return the result ``name``, from the file if it is current, otherwise from ``call``; None if ``call`` fails.

        Raises:
            InputError: the GPU does not answer any more, as after an access outside its memory.
        """
        if self.current(name) is None:
            started = time.perf_counter()
            try:
                result = call()
            except Exception as error:
                lines = str(error).strip().splitlines()
                result = {"error": f"{type(error).__name__}: {lines[0] if lines else ''}"}
            self.add(name, result, time.perf_counter() - started)
            if _is_error(result):
                self._check_device()
        return self.current(name)

    def add(self, name: str, result: Any, seconds: float) -> None:
        """Write the result ``name``, whose measurement took ``seconds``, to the file."""
        self.entries[name] = {
            "commit": self.commit, "gpu": self.gpu, "seconds": round(seconds, 2), "result": result,
        }  # fmt: skip
        with replacing(self.path) as file:
            file.write_text(json.dumps(self.header | {"results": self.entries}, indent=1) + "\n", "utf-8")
        self.console.print(f"{name}: {json.dumps(result)} ({seconds:.1f} s)", soft_wrap=True, markup=False)

    def _check_device(self) -> None:
        gc.collect()
        if torch.cuda.is_available():
            try:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
            except RuntimeError as error:
                raise InputError(
                    f"gpu: does not answer any more ({str(error).splitlines()[0]}); run the same command again: "
                    "it goes on with what is missing, and what failed comes last"
                ) from error


def _is_error(result: Any) -> bool:
    return isinstance(result, dict) and "error" in result


def _entries(path: Path) -> dict[str, dict[str, Any]]:
    """Return the entries of a file.

    A file of version 0.2.0 has one commit and one card for all results.

    Raises:
        InputError: the file is no file of results.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
        if "results" in content:
            entries: dict[str, dict[str, Any]] = content["results"]
            if all({"commit", "gpu", "result"} <= entry.keys() for entry in entries.values()):
                return entries
            raise ValueError("an entry lacks its commit, its gpu or its result")
        defaults = {"commit": content["commit"], "gpu": content["gpu"], "seconds": None}
        return {
            name: defaults | {"result": result}
            for name, result in content.items()
            if name not in (*HEADER, "commit", "gpu")
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: is no file of results ({error}); give another --output") from error
