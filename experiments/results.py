"""``python -m experiments results``: the commands of results.yaml, run in a folder of their own for each commit.

A step that is done there is not done again; its results are copied into docs/results.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from specpilot.common.errors import InputError
from specpilot.common.files import replacing
from specpilot.common.machine import commit
from specpilot.compare.store import Store

ROOT = Path(__file__).parents[1]
PROGRAMS = {"specpilot": ["-m", "specpilot"], "python": []}


@dataclass(frozen=True, kw_only=True)
class ResultsOptions:
    """Results.

    Attributes:
        output: Working folder; each commit has a folder in it, in which an interrupted run is continued.
        publish: Folder that the results are copied to; the documentation shows those in docs/results.
        only: Names of steps, which are run with the steps that they need.
        plan: Print the steps and which are done; run nothing.
    """

    output: Path = Path("runs/results")
    publish: Path = Path("docs/results")
    only: tuple[str, ...] | None = None
    plan: bool = False


@dataclass(frozen=True, kw_only=True)
class Step:
    """Commands that make one result; results.yaml describes the fields."""

    name: str
    commands: Sequence[str]
    files: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    timed: bool = False
    keeps: Sequence[str] = ()

    @property
    def printed(self) -> bool:
        """Whether the result is what the last command prints."""
        return self.name.endswith(".json")


def read_steps() -> list[Step]:
    """The steps of results.yaml."""
    return [Step(**entry) for entry in yaml.safe_load((ROOT / "experiments/results.yaml").read_text(encoding="utf-8"))]


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
            needed |= {word for line in step.commands for word in re.findall(r"[\w.-]+", line)} & names
    return [step for step in steps if step.name in needed]


def run_steps(steps: Sequence[Step], folder: Path, publish: Path, console: Console, *, plan: bool = False) -> None:
    """Run every step that has no record in ``folder``, and copy its results into ``publish``; or print the ``plan``.

    Raises:
        InputError: another process runs steps in ``folder``, or a command failed.
    """
    with Store(folder) as store:
        for step in steps:
            identity = {"commands": list(step.commands)}
            done = store.get(identity)
            state = "to do" if done is None else f"done in {done['seconds']:.0f} s"
            console.print(f"{step.name}: {state}{', alone on the machine' * step.timed}", highlight=False)
            if plan:
                for line in step.commands:
                    console.print(f"    {line}", highlight=False, markup=False, soft_wrap=True)
            elif done is None:
                started = time.perf_counter()
                printed = [_command(line, folder, step.threads) for line in step.commands][-1]
                _publish(step, printed, folder, publish)
                store.put(identity, {"seconds": round(time.perf_counter() - started, 1)})


def _command(line: str, folder: Path, threads: int) -> str:
    """Run one command in ``folder``; return its standard output, while its standard error is shown."""
    program, *words = shlex.split(line)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *PROGRAMS[program], *words]
    found = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if found.returncode:
        raise InputError(
            f"{line}: ended with exit code {found.returncode} in {folder}; "
            "what is wrong stands above; the same command goes on from here"
        )
    return found.stdout


def _publish(step: Step, printed: str, folder: Path, publish: Path) -> None:
    publish.mkdir(parents=True, exist_ok=True)
    if step.printed:
        result: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
        old = publish / step.name
        before = json.loads(old.read_text(encoding="utf-8")) if step.keeps and old.exists() else {}
        result |= {name: before[name] for name in step.keeps if name in before}
        (folder / step.name).write_text(json.dumps(result) + "\n", encoding="utf-8")
    for name, path in {**step.files, **({step.name: step.name} if step.printed else {})}.items():
        with replacing(publish / name) as temporary:
            temporary.write_bytes((folder / path).read_bytes())


def main(options: ResultsOptions) -> None:
    """Measure every result of the documentation anew, by the code of this commit; takes hours; can be interrupted."""
    code = commit()
    if code is None or code.endswith("+changes"):
        raise InputError(f"commit={code}: results name the commit they are made by; commit all changes first")
    steps = chosen(read_steps(), options.only)
    run_steps(steps, options.output / code, options.publish, Console(), plan=options.plan)
