"""Benchmark results on disk, each stored under a hash of everything that it depends on.

An interrupted benchmark continues where it stopped. Files appear by atomic rename, and one process at a time writes to
a folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from ..common.errors import InputError
from ..common.files import FolderLock, replacing
from ..common.json_file import read_object
from ..common.record import Identity

RECORDS = "records"


def content_key(identity: Identity) -> str:
    """Hash of ``identity``, whose keys may have any order, as 20 hex digits."""
    text = json.dumps(identity, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


class Store:
    """Results as JSON files in ``folder``/``records``. A context manager: the folder is locked inside the block.

    Args:
        folder: the benchmark's folder; created when the block is entered.

    Raises:
        InputError: on entering, if another process uses the folder, or it is a file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: FolderLock | None = None

    def __enter__(self) -> Self:
        self._lock = FolderLock(self.folder, "writes measurements to it")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._lock is not None
        self._lock.release()

    def get(self, identity: Identity) -> Any | None:
        """Return the result that is stored under ``identity``; None if there is none.

        Raises:
            InputError: the file is damaged.
        """
        file = self._file(identity)
        if not file.exists():
            return None
        remedy = "remove the file, and the result is computed again"
        record = dict(read_object(file, remedy))
        digest = record.pop("sha256", None)
        if record.keys() != {"identity", "result"} or digest != _digest(record):
            raise InputError(f"{file}: is damaged and contains no result; {remedy}")
        return record["result"]

    def put(self, identity: Identity, result: Any) -> None:
        """Store ``result``, a JSON value; the file holds ``identity`` too."""
        file = self._file(identity)
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as temporary:
            record = {"identity": identity, "result": result}
            temporary.write_text(json.dumps(record | {"sha256": _digest(record)}) + "\n", encoding="utf-8")

    def compute(self, identity: Identity, make: Callable[[], Any]) -> Any:
        """Return the result that is stored under ``identity``; if there is none, call ``make`` and store its result.

        Raises:
            InputError: the stored file is damaged.
        """
        result = self.get(identity)
        if result is None:
            result = make()
            self.put(identity, result)
        return result

    def _file(self, identity: Identity) -> Path:
        return self.folder / RECORDS / f"{content_key(identity)}.json"


def _digest(record: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(record).encode()).hexdigest()
