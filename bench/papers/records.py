"""What was measured, generation by generation, on disk: a run that is cut short goes on where it stopped.

One file of JSON lines a configuration, named by a hash of all that its results depend on: the models, the settings and
the machine. A line that was torn off is measured again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Record:
    """One generation.

    Attributes:
        prompt: SHA-256 of the prompt's tokens and the seed.
        tokens: what was said.
        rounds: drafts verified, or MTJD's steps; the token of the prefill is in none.
        seconds: of the whole call.
        log_p: Σ log p of the tokens under the unwarped target, in nats.
        joules: of all devices; None where there is no counter.
    """

    prompt: str
    tokens: list[int]
    target_forwards: int
    draft_forwards: int
    drafted: int
    accepted: int
    rounds: int
    seconds: float
    log_p: float
    joules: float | None


class Records:
    """The file of one configuration.

    Args:
        folder: where files go.
        identity: everything the results depend on but the prompt and its seed.
    """

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        text = json.dumps(identity, sort_keys=True)
        self.path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.jsonl"
        self.identity = identity
        self.known: dict[str, Record] = {}
        if self.path.is_file():
            content = self.path.read_text(encoding="utf-8")
            whole = content[: content.rfind("\n") + 1]
            if whole != content:  # the last line was being written
                self.path.write_text(whole, encoding="utf-8")
            for line in whole.splitlines()[1:]:
                record = Record(**json.loads(line))
                self.known[record.prompt] = record

    def add(self, record: Record) -> None:
        """Keep it; it is on disk when this returns."""
        new = not self.path.is_file() or self.path.stat().st_size == 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            if new:
                file.write(json.dumps(self.identity, sort_keys=True) + "\n")
            file.write(json.dumps(asdict(record)) + "\n")
        self.known[record.prompt] = record


def digest(prompt: list[int], seed: int) -> str:
    return hashlib.sha256(json.dumps([prompt, seed]).encode()).hexdigest()
