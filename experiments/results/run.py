"""Runs the steps of one commit in a folder of their own; what is done there is not done again."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

from rich.console import Console
from specpilot.common.errors import InputError
from specpilot.common.files import replacing
from specpilot.compare.store import Store

from .steps import Step


def chosen(steps: Sequence[Step], only: Sequence[str] | None) -> list[Step]:
    """The steps named in ``only`` and those whose results they read, in order; all steps without it.

    Raises:
        InputError: no step has such a name.
    """
    if only is None:
        return list(steps)
    names = {step.name for step in steps}
    unknown = sorted(set(only) - names)
    if unknown:
        raise InputError(f"only={unknown[0]!r}: no step has this name; the steps are {', '.join(sorted(names))}")
    needed = set(only)
    for step in reversed(steps):  # a step reads only what earlier ones make
        if step.name in needed:
            needed |= _words(step) & names
    return [step for step in steps if step.name in needed]


def _words(step: Step) -> Set[str]:
    return {word for command in step.commands for word in re.findall(r"[\w.-]+", command)}


def run_steps(steps: Sequence[Step], folder: Path, publish: Path, commit: str, console: Console) -> None:
    """Run every step that has no record in ``folder``, and copy its results into ``publish``.

    Raises:
        InputError: another process runs steps in ``folder``, or a command failed.
    """
    with Store(folder) as store:
        for number, step in enumerate(steps, 1):
            identity = _identity(step, commit)
            if store.get(identity) is not None:
                console.print(f"{number} of {len(steps)}  {step.name}: done")
                continue
            console.print(f"{number} of {len(steps)}  {step.name}")
            started = time.perf_counter()
            printed = [_command(command, folder, step.threads) for command in step.commands]
            if step.printed is not None:
                _write(folder / step.printed, kept(step, result_of(step, printed), publish) + "\n")
            _publish(step, folder, publish)
            store.put(identity, {"seconds": round(time.perf_counter() - started, 1)})


def show_plan(steps: Sequence[Step], folder: Path, commit: str, console: Console) -> None:
    """Print every step, its commands, and how long it took where it is done."""
    store = Store(folder)
    for step in steps:
        record = store.get(_identity(step, commit))
        state = "to do" if record is None else f"done in {record['seconds']:.0f} s"
        console.print(
            f"{step.name}: {state}{', to be run alone on the machine' if step.timed else ''}", highlight=False
        )
        for command in step.commands:
            console.print(f"    specpilot {command}", highlight=False, markup=False, soft_wrap=True)


def _identity(step: Step, commit: str) -> dict[str, Any]:
    return {"commands": list(step.commands), "commit": commit}


def _command(command: str, folder: Path, threads: int) -> str:
    """Run one command in ``folder``; return its standard output, while its standard error is shown."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    words = [sys.executable, "-m", "specpilot", *shlex.split(command)]
    found = subprocess.run(words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if found.returncode:
        raise InputError(
            f"specpilot {command}: ended with exit code {found.returncode} in {folder}; "
            "what is wrong stands above; the same command goes on from here"
        )
    return found.stdout


def result_of(step: Step, printed: Sequence[str]) -> str:
    """What the step's last command printed as its result, added to that of the one before if the step says so."""
    lines = [text.strip().splitlines()[-1] for text in printed[-2:]]
    return lines[-1] if step.adds is None else json.dumps(json.loads(lines[0]) | {step.adds: json.loads(lines[1])})


def kept(step: Step, result: str, publish: Path) -> str:
    """``result`` with what the step keeps of the published one."""
    if step.keeps is None or step.printed is None or not (publish / step.printed).exists():
        return result
    before = json.loads((publish / step.printed).read_text(encoding="utf-8"))
    return json.dumps(json.loads(result) | {name: before[name] for name in (step.keeps,) if name in before})


def _publish(step: Step, folder: Path, publish: Path) -> None:
    files = dict(step.files) | ({step.printed: step.printed} if step.printed is not None else {})
    publish.mkdir(parents=True, exist_ok=True)
    for name, path in files.items():
        with replacing(publish / name) as temporary:
            temporary.write_bytes((folder / path).read_bytes())


def _write(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
