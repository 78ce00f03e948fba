"""Every fault of a server that logs its rounds, one case each, while clients wait for their texts."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from random import Random

from specpilot.common.errors import InputError
from specpilot.data_gen.dataset import MANIFEST, shard_files
from specpilot.data_gen.on_policy import read_rounds

from .cases import Case, Outcome, in_one_line
from .contents import damage as unreadable
from .damage import Damage, change_times, one_bit, truncated
from .disks import disk, unwritable
from .processes import CLOCK, Fault, Main, fill
from .serving import Served, Serving, check, finish, undisturbed_server

SERVE = "serve"
SIGNALS = 10  # of SIGTERM and of SIGINT
FEW = 5  # servers whose clock is set back


@dataclass
class Servers:
    """The servers of all cases; what an undisturbed one answers is found when the first case needs it."""

    main: Main
    folder: Path
    seed: int

    @cached_property
    def whole(self) -> Served:
        return undisturbed_server(self.main, self.folder)

    def random(self, what: str) -> Random:
        return Random(f"{self.seed} {SERVE} {what}")

    def start(self, log: Path, fault: Fault | None = None) -> Serving:
        return Serving(self.main, log, fault)

    def end(self, serving: Serving, outcome: Outcome, number: int | None = signal.SIGTERM) -> None:
        """End a server as its operator does; ``number`` is None if it was sent the signal before."""
        if number is not None:
            serving.process.send(number)
        ended = serving.process.end()
        if ended.code or "Traceback" in ended.text:
            outcome.note(ended.last_words())

    def refused(self, log: Path, outcome: Outcome, reason: str) -> None:
        """A server that would log to ``log`` is refused in one line, which has ``reason``."""
        ended = self.start(log).process.end()
        outcome.note_line(ended.complaint() or "", log.parent)
        if not (in_one_line(ended) and reason in str(ended.complaint())):
            outcome.note(ended.last_words())


def server_cases(main: Main, folder: Path, kills: int, seed: int) -> Iterator[Case]:
    """Every fault of a server. ``folder`` is for its undisturbed run."""
    servers = Servers(main, folder, seed)
    faults: dict[str, Callable[[Servers, Path], Outcome]] = {
        "SIGKILL": partial(killed, times=kills),
        "SIGTERM": partial(ended_by, number=signal.SIGTERM),
        "SIGINT": partial(ended_by, number=signal.SIGINT),
        "disk full": full_disk,
        "read-only disk": read_only_disk,
        "two processes in one folder": two_servers,
        "clock set back": clock_set_back,
        "shards truncated": partial(damaged_log, damage=truncated),
        "shards with one bit turned": partial(damaged_log, damage=one_bit),
    }
    for fault, do in faults.items():
        yield Case(SERVE, fault, partial(do, servers))


def killed(servers: Servers, root: Path, times: int) -> Outcome:
    """SIGKILL while requests are answered; the next server continues the log."""
    outcome, log, random, whole = Outcome(), root / "log", servers.random("SIGKILL"), servers.whole
    for _ in range(times):
        serving = servers.start(log)
        if serving.port is None:
            outcome.note(f"does not start again; {serving.process.end().last_words()}")
            break
        moment = random.uniform(0, 4 * whole.seconds)
        answers = serving.load(moment, partial(serving.process.send, signal.SIGKILL))
        serving.process.end()
        outcome.attempts += 1
        for i, answer in enumerate(answers):
            right = answer.text == whole.texts[i] if answer.status == 200 else whole.texts[i].startswith(answer.text)
            if not right:
                outcome.note(f"request {i}: status {answer.status}, text {answer.text!r}")
        outcome.note(unreadable(log))
    finish(servers.main, whole, log, outcome)
    return outcome


def ended_by(servers: Servers, root: Path, number: int) -> Outcome:
    """SIGTERM or SIGINT: what was accepted is answered, then the server ends with exit code 0."""
    outcome, log, random, whole = Outcome(), root / "log", servers.random(str(number)), servers.whole
    for _ in range(SIGNALS):
        serving = servers.start(log)
        answers = serving.load(random.uniform(0, whole.seconds), partial(serving.process.send, number))
        servers.end(serving, outcome, None)
        outcome.attempts += 1
        for i, answer in enumerate(answers):
            refused = answer.status in (0, 503) and not answer.text
            if not refused and (answer.status != 200 or answer.text != whole.texts[i]):
                outcome.note(f"request {i}: status {answer.status}, text {answer.text!r}")
        outcome.note(unreadable(log))
    finish(servers.main, whole, log, outcome)
    return outcome


def full_disk(servers: Servers, root: Path) -> Outcome:
    """The log's disk is full for two loads: texts go on, one line says so, and the log goes on when there is space."""
    outcome = Outcome()
    with disk(root / "disk") as mounted:
        if not mounted:
            outcome.means = "not tried: no disk can be mounted here"
            return outcome
        outcome.means = "a tmpfs"
        log, filler = root / "disk" / "log", root / "disk" / "filler"
        serving = servers.start(log)
        fill(filler)
        for _ in range(2):
            check(serving.load(), servers.whole, outcome)
            outcome.attempts += 1
        outcome.note(unreadable(log))
        lines = [line for line in serving.process.text.splitlines() if line.startswith("specpilot: error: ")]
        for line in lines:
            outcome.note_line(line.removeprefix("specpilot: error: "), root)
        if len(lines) != 1:
            outcome.note(f"{len(lines)} errors: {serving.process.text[-300:]!r}")
        filler.unlink()
        check(serving.load(), servers.whole, outcome)
        servers.end(serving, outcome)
        finish(servers.main, servers.whole, log, outcome)
        if len(read_rounds(log)) < 2 * servers.whole.logged:
            outcome.note("requests that were served while there was space are not logged")
    return outcome


def read_only_disk(servers: Servers, root: Path) -> Outcome:
    """A new log, and one with texts, on a disk that cannot be written: refused before the server listens."""
    outcome = Outcome()
    with disk(root / "disk") as mounted:
        if not mounted:
            outcome.means = "not tried: no disk can be mounted here"
            return outcome
        outcome.means = "a tmpfs mounted read-only"
        place = root / "disk"
        log = place / "log"
        serving = servers.start(log)
        check(serving.load(), servers.whole, outcome)
        servers.end(serving, outcome)
        left = sorted(place.rglob("*"))
        for folder in (place / "new", log):
            with unwritable(place, mounted):
                servers.refused(folder, outcome, "Read-only file system")
            outcome.attempts += 1
            if sorted(place.rglob("*")) != left:
                outcome.note("files have changed")
        finish(servers.main, servers.whole, log, outcome)
    return outcome


def two_servers(servers: Servers, root: Path) -> Outcome:
    """The second server that would log to a folder is refused."""
    outcome, log = Outcome(attempts=1), root / "log"
    serving = servers.start(log)
    servers.refused(log, outcome, "another process")
    servers.end(serving, outcome)
    finish(servers.main, servers.whole, log, outcome)
    return outcome


def clock_set_back(servers: Servers, root: Path) -> Outcome:
    """Every reading of the clock is a day before the last, and files change their times between two servers."""
    outcome, log = Outcome(), root / "log"
    for _ in range(FEW):
        serving = servers.start(log, Fault(CLOCK))
        check(serving.load(), servers.whole, outcome)
        servers.end(serving, outcome)
        change_times(log)
        outcome.attempts += 1
    finish(servers.main, servers.whole, log, outcome)
    expected = (FEW + 1) * servers.whole.logged
    if len(read_rounds(log)) != expected:
        outcome.note(f"{len(read_rounds(log))} of {expected} texts are logged")
    return outcome


def damaged_log(servers: Servers, root: Path, damage: Damage) -> Outcome:
    """Every shard in turn: its reader names it; a server continues the log without it, as the message says."""
    outcome, random, log, copy = Outcome(), servers.random(damage.__name__), root / "log", root / "copy"
    serving = servers.start(log)
    for _ in range(2):
        check(serving.load(), servers.whole, outcome)
    servers.end(serving, outcome)
    for shard in sorted(path.name for path in log.glob("shard-*")):
        shutil.copytree(log, copy)
        (copy / shard).write_bytes(damage((log / shard).read_bytes(), random))
        outcome.attempts += 1
        try:
            outcome.note(f"{shard}: not found to be damaged; {len(read_rounds(copy))} texts are read")
        except InputError as error:
            outcome.note_line(str(error).replace(shard, "shard-…"), root)
            if shard not in str(error):
                outcome.note(f"{shard}: {error}")
        manifest = json.loads((copy / MANIFEST).read_text())
        manifest["shards"] = [entry for entry in manifest["shards"] if entry["file"] != shard]
        (copy / MANIFEST).write_text(json.dumps(manifest))
        (copy / shard).unlink()
        left = [path.name for path in shard_files(copy)]
        finish(servers.main, servers.whole, copy, outcome)
        if not set(left) < {path.name for path in shard_files(copy)}:
            outcome.note(f"{shard}: the log does not continue after the shards that were left")
        shutil.rmtree(copy)
    return outcome
