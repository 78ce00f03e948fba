"""Results on disk by content: each under a hash of everything it depends on, so that nothing is computed twice.

A file appears by atomic rename: killed and run again, a long measurement goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..controllers.errors import InputError
from ..data_gen.dataset import replacing


def content_key(identity: Mapping[str, Any]) -> str:
    """Twenty hex digits that stand for ``identity``: JSON values under names, in whatever order."""
    text = json.dumps(identity, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


class Store:
    """Results in a folder, a JSON file each.

    Args:
        folder: made with the first result.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, identity: Mapping[str, Any]) -> Any | None:
        """The result that was put there under ``identity``; None if there is none.

        Raises:
            InputError: the file is damaged.
        """
        file = self._file(identity)
        if not file.exists():
            return None
        try:
            return json.loads(file.read_text(encoding="utf-8"))["result"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise InputError(f"{file}: damaged; remove it, and it is computed again") from error

    def put(self, identity: Mapping[str, Any], result: Any) -> None:
        """Keep ``result``, a JSON value; ``identity`` goes into the file beside it."""
        file = self._file(identity)
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(file) as temporary:
            temporary.write_text(json.dumps({"identity": identity, "result": result}) + "\n", encoding="utf-8")

    def _file(self, identity: Mapping[str, Any]) -> Path:
        return self.folder / f"{content_key(identity)}.json"
