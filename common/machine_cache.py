"""What was measured on this machine, kept in the user's cache folder so that it is measured once.

A file is named by two digests: of the machine with the versions of libraries, and of what was measured.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import tempfile
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from .console import logger
from .errors import InputError
from .json_file import blaming, build, read_object
from .machine import machine

T = TypeVar("T")

FOLDER = "SPECPILOT_CACHE"  # environment variable
BEFORE = "measured before, read from"


def cache_folder() -> Path:
    """``SPECPILOT_CACHE`` if it is set, else ``specpilot`` in the cache folder by the platform's convention.

    Raises:
        RuntimeError: the user has no home.
    """
    if os.environ.get(FOLDER):
        return Path(os.environ[FOLDER])
    system, shared = platform.system(), Path(os.environ.get("XDG_CACHE_HOME", ""))
    if system == "Windows" and os.environ.get("LOCALAPPDATA"):
        shared = Path(os.environ["LOCALAPPDATA"])
    elif not shared.is_absolute():
        shared = Path.home() / ("Library/Caches" if system == "Darwin" else ".cache")
    return shared / "specpilot"


def machine_key() -> dict[str, Any]:
    """What all times on this machine depend on: processor, devices, threads, versions."""
    here = machine().to_dict()
    key = {name: here[name] for name in ("processor", "cores", "devices", "threads")}
    for name in ("specpilot", "torch", "transformers"):
        with suppress(PackageNotFoundError):  # a checkout that is not installed
            key[name] = version(name)
    return key


def digest(key: Mapping[str, Any]) -> str:
    """Of the values of ``key``, 12 hexadecimal digits."""
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]


def described() -> dict[str, Any]:
    """The folder, the digest of this machine, and how many measurements are kept for it."""
    here = digest(machine_key())
    try:
        folder = cache_folder()
        return {"folder": str(folder), "key": here, "files": len([*folder.glob(f"{here}-*.json")])}
    except (OSError, RuntimeError) as error:
        return {"folder": f"none: {error}", "key": here, "files": 0}


class Remembered(NamedTuple, Generic[T]):
    """What was measured; ``file``: where it is kept, None if it is not; ``how``: whether measured or read, in words."""

    value: T
    file: Path | None
    how: str

    def log(self, what: str, value: str) -> None:
        """Say what was found and how; where it was measured before, only if details are wanted."""
        level = logging.DEBUG if self.how == BEFORE else logging.INFO
        logger.log(level, "%s: %s, %s%s", what, value, self.how, "" if self.file is None else f" {self.file}")


def remembered(what: Mapping[str, Any], kind: type[T], measure: Callable[[], tuple[T, bool]]) -> Remembered[T]:
    """What ``measure`` gives, of the type ``kind``, measured once for each machine and ``what``.

    A damaged file is measured anew, with a warning; where no file can be written, every process measures.

    Args:
        measure: the value, and whether it is good enough to be kept.
    """
    here = machine_key()
    key: dict[str, Any] = {"machine": here, **what}
    file = None
    try:
        file = cache_folder() / f"{digest(here)}-{digest(what)}.json"
        if file.exists():
            return Remembered(_read(file, key, kind), file, BEFORE)
    except InputError as error:
        warnings.warn(str(error), stacklevel=2)
    except (OSError, RuntimeError):
        file = None
    value, good = measure()
    values = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
    if not good:
        return Remembered(value, None, "by few forwards, not kept")
    if file is not None and _write(file, {"key": key, "value": values}):
        return Remembered(value, file, "measured now, kept in")
    return Remembered(value, None, "measured now")


def _read(file: Path, key: Mapping[str, Any], kind: type[T]) -> T:
    remedy = "it is measured anew"
    with blaming(file, remedy):
        found = read_object(file, remedy)
        if found.get("key") != key:
            raise InputError("belongs to something else")
        return build(kind, found.get("value"), "value")


def _write(file: Path, content: Mapping[str, Any]) -> bool:
    """Whether it could be written. No lock is held: each process has a temporary file of its own."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        number, temporary = tempfile.mkstemp(dir=file.parent, prefix=file.stem)
        try:
            with open(number, "w", encoding="utf-8") as open_file:
                json.dump(content, open_file, indent=1)
            os.replace(temporary, file)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
    except OSError:
        return False
    return True
