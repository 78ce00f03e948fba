"""A JSON Lines file of texts, written text by text; the counterpart of the :class:`~.dataset.ShardWriter` of datasets.

The folder ``<file>.run`` beside the file has the settings on which the texts depend.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from reprlib import repr as short
from typing import Self

from ..common.errors import InputError
from ..common.files import FolderLock, named_errors, replacing
from ..common.json_file import json_line, naming_file, parse_object, read_object
from ..common.record import Identity
from .dataset import differences

SETTINGS = "settings.json"
REMEDY = "give another --output"


def settings_file(path: Path) -> Path:
    """Return the file with the settings on which the texts of ``path`` depend."""
    return path.with_name(f"{path.name}.run") / SETTINGS


class TextFile:
    """Writes the texts of a file. It continues an earlier run with the same settings.

    A line is appended when its text is finished, so that an interrupted run keeps the line. :meth:`complete` sorts the
    lines.

    Args:
        path: the file.
        identity: settings on which the texts depend besides their prompts. A file with another identity is refused.
        heads: fields at the beginning of the line of each text, by which the line is recognised; every text has another
            ``seed``.

    Raises:
        InputError: the file has another identity or origin, a line is damaged or of another prompt, or another process
            writes to the file.
    """

    noun = "text"
    tokens: int | None = None  # not counted

    def __init__(self, path: Path, identity: Identity, heads: Sequence[Mapping[str, object]]) -> None:
        self.path, self.identity, self.heads = path, identity, heads
        self._settings = settings_file(path)
        self._lock = FolderLock(self._settings.parent, f"is writing {path.name}")
        try:
            self._has_lines = path.exists() and path.stat().st_size > 0
            if self._has_lines:
                self._check_identity()
            self._lines = self._read() if self._has_lines else {}
        except BaseException:
            self.close()
            raise

    def _check_identity(self) -> None:
        """Raise InputError if the file has another identity or origin."""
        if not self._settings.exists():
            raise InputError(f"{self.path}: exists, and was not written by 'specpilot generate --prompts'; {REMEDY}")
        before = read_object(self._settings, REMEDY)
        changes = differences({name: before.get(name) for name in self.identity}, dict(self.identity))
        if changes:
            changed_settings = "; ".join(
                f"{name} was {short(old)} and is {short(new)}" for name, (old, new) in changes.items()
            )
            raise InputError(
                f"{self.path}: belongs to a run with other settings: {changed_settings}; repeat those settings, or "
                "choose another --output"
            )

    def _read(self) -> dict[int, bytes]:
        """Return the lines by the number of their text. Half a line at the end of the file is cut off."""
        numbers = {head["seed"]: number for number, head in enumerate(self.heads)}
        lines: dict[int, bytes] = {}
        with self.path.open("rb+") as file:
            for line_number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    file.truncate(sum(map(len, lines.values())))
                    break
                with naming_file(f"{self.path}:{line_number}", REMEDY):
                    row = parse_object(line.decode(errors="replace"))
                    number = numbers.get(row.get("seed"), -1)
                    head = self.heads[number]
                    if number in lines or number < 0 or any(row.get(name) != head[name] for name in head):
                        raise InputError("is not the text of any of the prompts")
                lines[number] = line
        return lines

    @property
    def is_complete(self) -> bool:
        """Return true if all texts are written, in order."""
        return list(self._lines) == list(range(len(self.heads)))

    def forget_damaged(self) -> list[str]:
        """Return an empty list, because a damaged line is refused when the file is opened."""
        return []

    def missing(self, total: int) -> list[int]:
        """Return the numbers of the texts, of ``total`` in all, that are not yet written."""
        return [number for number in range(total) if number not in self._lines]

    def write(self, text: Mapping[str, object], number: int) -> None:
        """Append the line of text ``number``: its head, then ``text``."""
        if not self._has_lines:
            with replacing(self._settings) as file:
                file.write_text(json.dumps(self.identity, indent=1), encoding="utf-8")
            self._has_lines = True
        line = f"{json_line({**self.heads[number], **text})}\n".encode()
        with named_errors(self.path), self.path.open("ab") as file:
            file.write(line)
        self._lines[number] = line

    def complete(self) -> None:
        """Put the lines in the order of their prompts."""
        if not self.is_complete:
            self._lines = {number: self._lines[number] for number in sorted(self._lines)}
            with replacing(self.path) as file:
                file.write_bytes(b"".join(self._lines.values()))

    def close(self) -> None:
        """Release the file's lock."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
