"""``python -m experiments results``: make the files of docs/results by the commands in results.yaml.

Each commit has a working folder. A step that is complete there is not run again. Results are copied to docs/results
and the tables and sources in the pages that show them are written again.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE
from typing import Any, NamedTuple

import torch
import yaml
from rich.console import Console
from specpilot.common.errors import InputError
from specpilot.common.files import replacing
from specpilot.common.machine import commit
from specpilot.compare.store import Store

from . import processes
from .result_blocks import filled_in

ROOT = Path(__file__).parents[1]
RESULTS = Path("docs/results")
TEXTS = ROOT / "runs/texts"
PROGRAMS = {"specpilot": ["-m", "specpilot"], "specpilot-vllm": ["-m", "specpilot_vllm"], "python": []}


class Requirement(NamedTuple):
    """Something that a step needs beside two cores, in words, and a function that tests for it."""

    text: str
    is_met: Callable[[], bool]


REQUIREMENTS = {
    "gpu": Requirement("a GPU", torch.cuda.is_available),
    "smollm2": Requirement("the package gguf to read SmolLM2 (make real)", lambda: find_spec("gguf") is not None),
    "texts": Requirement("the texts that real-prompts reads, in the folder runs/texts", TEXTS.is_dir),
    "llama.cpp": Requirement("llama.cpp (make test-gguf)", lambda: find_spec("llama_cpp") is not None),
    "vllm": Requirement("vLLM (make test-vllm)", lambda: find_spec("vllm") is not None),
}


@dataclass(frozen=True, kw_only=True)
class ResultsOptions:
    """Results.

    Options of ``python -m experiments results``.

    Attributes:
        output: Working folder. Each commit has a folder in it, in which an interrupted run is continued.
        only: Names of steps, which are run with the steps that they need.
        plan: Print the steps with their minutes, and mark the complete ones; run nothing.
        pages: Write the tables and sources in the pages again from the files in docs/results; run nothing.
    """

    output: Path = Path("runs/results")
    only: tuple[str, ...] | None = None
    plan: bool = False
    pages: bool = False


@dataclass(frozen=True, kw_only=True)
class Step:
    """Commands that make one result, or several; results.yaml describes the fields."""

    name: str
    commands: Sequence[str]
    minutes: int
    pages: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    fitted: Sequence[str] = ()
    needs: Sequence[str] = ()
    threads: int = 1
    timed: bool = False
    again: bool = False
    measured: bool = True

    @property
    def is_printed(self) -> bool:
        """Return true if the last command prints the result."""
        return self.name.endswith(".json")

    @property
    def sources(self) -> dict[str, str]:
        """The files that the step publishes in docs/results, and where its commands write them."""
        return {**self.files, **({self.name: self.name} if self.is_printed else {})}

    @property
    def lacks(self) -> list[str]:
        """The requirements of the step that this machine does not meet, in words."""
        return [REQUIREMENTS[name].text for name in self.needs if not REQUIREMENTS[name].is_met()]

    def summary(self) -> str:
        """Return the duration and state of the step in words."""
        words = [f"{self.minutes} min", f"{self.threads} thread{'s' * (self.threads > 1)}"]
        words += ["alone on the machine"] * self.timed
        words += ["not measured yet"] * (not self.measured) + ["to be measured again"] * self.again
        return ", ".join(words)


def read_steps() -> list[Step]:
    """Read the steps in results.yaml."""
    return [Step(**entry) for entry in yaml.safe_load((ROOT / "experiments/results.yaml").read_text(encoding="utf-8"))]


def select(steps: Sequence[Step], only: Sequence[str] | None) -> list[Step]:
    """Return the steps named in ``only`` and those whose results they read, in order; all steps without it.

    Raises:
        InputError: no step has such a name.
    """
    if only is None:
        return list(steps)
    names = {step.name for step in steps}
    unknown = sorted(set(only) - names)
    if unknown:
        raise InputError(f"only={unknown[0]!r}: no step has this name; the steps are {', '.join(sorted(names))}")
    required_names = set(only)
    for step in reversed(steps):  # a step reads only what earlier ones make
        if step.name in required_names:
            required_names |= {word for line in step.commands for word in re.findall(r"[\w.-]+", line)} & names
    return [step for step in steps if step.name in required_names]


def run_steps(steps: Sequence[Step], folder: Path, root: Path, console: Console, *, plan: bool = False) -> None:
    """Run the steps that have no record in ``folder``, publish their results, and write the pages again.

    A step whose requirements this machine does not meet is left out, and so are the steps that read its result.

    Args:
        folder: working folder of the commands; its name is the commit.
        root: the checkout whose docs/results and pages are written.
        plan: only print the steps.

    Raises:
        InputError: another process runs steps in ``folder``, or a command failed.
    """
    with Store(folder) as store:
        # Files that commands name, such as experiments/studies/rules.yaml.
        for link, path in ((folder / "experiments", ROOT / "experiments"), (folder / "texts", TEXTS)):
            if not link.is_symlink():
                link.symlink_to(path)
        for step in steps:
            identity = {"commands": list(step.commands)}
            record = store.get(identity)
            missing = step.lacks
            state = "to do" if record is None else f"done in {record['seconds']:.0f} s"
            if record is None and missing:
                state = f"left out, because this machine lacks {' and '.join(missing)}"
            console.print(f"{step.name}: {state} ({step.summary()})", highlight=False, markup=False, soft_wrap=True)
            if plan:
                for line in step.commands:
                    console.print(f"    {line}", highlight=False, markup=False, soft_wrap=True)
            elif record is None and not missing:
                started = time.perf_counter()
                printed = [_run(line, folder, step.threads) for line in step.commands][-1]
                _publish(step, printed, folder, root)
                store.put(identity, {"seconds": round(time.perf_counter() - started, 1)})


def _run(line: str, folder: Path, threads: int) -> str:
    """Run one command in ``folder``. Return its standard output; its standard error is shown."""
    program, *words = shlex.split(line)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *PROGRAMS[program], *words]
    process = processes.run(command, cwd=folder, env=environment, stdout=PIPE, text=True)
    if process.returncode:
        raise InputError(
            f"{line}: ended with exit code {process.returncode} in {folder}; "
            "the reason stands above; the same command goes on from here"
        )
    output: str = process.stdout
    return output


def _publish(step: Step, printed: str, folder: Path, root: Path) -> None:
    """Copy the step's results to docs/results, with the commit where a file lacks it, and write its pages again."""
    if step.is_printed:
        (folder / step.name).write_text(printed.strip().splitlines()[-1] + "\n", encoding="utf-8")
    for name, path in step.sources.items():
        text = (folder / path).read_text(encoding="utf-8")
        result: dict[str, Any] = json.loads(text)
        if "commit" not in result:
            text = json.dumps({"commit": folder.name} | result, indent=1) + "\n"
        (root / RESULTS).mkdir(parents=True, exist_ok=True)
        with replacing(root / RESULTS / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    write_pages(root, step.pages)


def write_pages(root: Path, pages: Sequence[str]) -> None:
    """Write the tables and sources in ``pages`` again, from the files in docs/results of the checkout ``root``."""
    for page in pages:
        text = (root / page).read_text(encoding="utf-8")
        current = filled_in(text, root / RESULTS)
        if current != text:
            with replacing(root / page) as temporary:
                temporary.write_text(current, encoding="utf-8")


def main(options: ResultsOptions) -> None:
    """Measure the results of the documentation again, by the code of this commit; takes hours; can be interrupted."""
    steps = read_steps()
    if options.pages:
        write_pages(ROOT, sorted({page for step in steps for page in step.pages}))
        return
    code = commit()
    if code is None or code.endswith("+changes"):
        raise InputError(f"commit={code}: results name the commit that made them; commit all changes first")
    run_steps(select(steps, options.only), options.output / code, ROOT, Console(), plan=options.plan)
