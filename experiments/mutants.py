"""``python -m experiments mutants``: small faults in the code, one at a time, which the related tests must notice.

The faults (mutants) are those of mutmut: another operator, another number, an argument left out, None instead of a
value. mutmut puts all mutants of a file into a copy of the file, imports the tests once, and forks a process for each
mutant, which runs the tests that call the changed function. A mutant takes as long as these tests, without their
imports.

Each module has a folder in ``build/mutants``, where verdicts are stored. The same command continues an interrupted run.
After a finished run, it tries the surviving mutants again. mutmut tries the mutants of changed functions again, and
runs new tests. Delete the folder to begin again.

mutmut changes only the bodies of functions that have no decorator. Texts of error messages are not changed, because no
test compares whole messages.

``experiments/equivalent_mutants.yaml`` lists mutants that change nothing a caller can observe, each with the reason. A
surviving mutant in this list is equivalent. An entry names the changed line; ``tests/experiments/test_mutants.py``
fails for an entry whose line is gone.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from random import Random
from subprocess import PIPE
from typing import NamedTuple

import yaml
from specpilot.common.console import quiet
from specpilot.common.errors import InputError
from specpilot.common.machine import commit
from specpilot.common.options import Count, Positive, Seed

from . import processes

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "mutants"
COPIED = "tests", "experiments"  # beside the package
EQUIVALENT = ROOT / "experiments" / "equivalent_mutants.yaml"
# mutmut's exit codes: pytest's, its own, and signals. A timeout may be an endless loop, or other work on the machine.
WORDS: dict[int | None, str] = {
    None: "not run", 0: "survived", 1: "killed", 3: "killed", 5: "no tests", 33: "no tests", 36: "timeout",
    24: "timeout", -24: "timeout", 152: "timeout", 255: "timeout", -9: "signal", -11: "signal",
}  # fmt: skip
CAUGHT = "killed", "signal"  # others are printed, and tried again by the next call
EQUAL = "equivalent"  # the verdict of survivors that are entries of EQUIVALENT

# The tests of each module: those that call its functions, without those that start processes. Times are measured once.
TESTS = {
    "infer/verify": (
        "tests/unit/test_lossless.py", "tests/unit/test_joint_decoding.py", "tests/unit/test_shared_noise.py",
        "tests/unit/test_rule_acceptance.py",
    ),
    "infer/distribution": (
        "tests/unit/test_distribution.py", "tests/unit/test_sampling.py", "tests/integration/test_scheduler.py",
    ),
    "infer/drafters": (
        "tests/unit/test_joint_decoding.py", "tests/unit/test_learned_values.py",
        "tests/integration/test_ngram_drafts.py", "tests/integration/test_decoder.py",
        "tests/integration/test_accelerators.py",
    ),
    "controllers/length": (
        "tests/unit/test_length_rules.py", "tests/unit/test_rate_optimal.py", "tests/unit/test_cost_source.py",
        "tests/unit/test_controller_checkpoints.py", "tests/unit/test_learned_values.py",
        "tests/integration/test_cost_model.py",
    ),
    "controllers/router": (
        "tests/unit/test_controller_checkpoints.py", "tests/integration/test_router.py",
        "tests/integration/test_routing.py", "tests/integration/test_router_training.py",
    ),
    "train": (
        "tests/unit/test_controller_checkpoints.py", "tests/integration/test_calibration.py",
        "tests/integration/test_router_training.py", "tests/integration/test_acceptance_training.py",
        "tests/integration/test_train_draft.py", "tests/integration/test_feature_datasets.py",
        "tests/integration/test_ngram_drafts.py", "tests/integration/test_pipeline.py",
        "tests/integration/test_trimmed_drafts.py::test_trim_vocabulary",
        "tests/integration/test_trimmed_drafts.py::test_code_of_the_draft_runs_only_if_it_is_trusted",
    ),
}  # fmt: skip

# Run in the folder of a module: write the mutants of all its files.
GENERATE = """
from mutmut.__main__ import copy_also_copy_files, copy_src_dir, create_mutants
copy_src_dir(), copy_also_copy_files(), create_mutants(1)
"""
# The same, but for each mutated function only the fastest tests, up to so many seconds of them. The seconds of a test
# include those of fixtures that it is the first to use. mutmut runs the tests once without a mutant: one is enough if
# all have passed, with the same files, when their times were measured. Parameters with special characters cannot be
# selected, so the test runs with all its parameters. hypothesis need not simplify an example that fails.
RUN = """
import re, sys
from pathlib import Path
from hypothesis import Phase, settings as examples
from mutmut import __main__ as mutmut
from mutmut.runners.harness import PytestRunner
from mutmut.state import state
seconds, collect, tests_of = float(sys.argv.pop(1)), mutmut.collect_or_load_stats, mutmut.tests_for_mutant_names
execute, load_profile = PytestRunner.execute_pytest, examples.load_profile
passed, times = Path("mutants/all-passed"), Path("mutants/mutmut-stats.json")
def changed():
    files = (file for folder in ("specpilot", "tests", "experiments") for file in Path(folder).rglob("*.py"))
    return not passed.exists() or max(file.stat().st_mtime for file in files) > passed.stat().st_mtime
def load_without_simplifying(name):
    examples.register_profile("mutants", examples.get_profile(name), phases=[Phase.explicit, Phase.generate])
    load_profile("mutants")
class Fixtures:
    def pytest_runtest_makereport(self, item, call):
        if call.when == "setup":
            state().duration_by_test[item.nodeid] += call.duration
def execute_timed(self, arguments, plugins=()):
    return execute(self, arguments, plugins=[*plugins, Fixtures()] if plugins else [])
def fastest(tests):
    durations, total = state().duration_by_test, 0.0
    tests = sorted(tests, key=durations.get)
    ends = [total := total + durations[test] for test in tests]
    tests = [test for test, end in zip(tests, ends) if end <= seconds] or tests[:1]
    return [*dict.fromkeys(test.partition("[")[0] if re.search(r"[^\\w/.:\\[\\]-]", test) else test for test in tests)]
def collect_fastest(*arguments, **settings):
    measured = times.exists()
    collect(*arguments, **settings)
    if not measured:
        passed.touch()
    by_function, durations = state().tests_by_mangled_function_name, state().duration_by_test
    for test, duration in [*durations.items()]:
        name = test.partition("[")[0]
        durations[name] = durations.get(name, 0.0) + duration * (name != test)
    by_function.update({function: fastest(tests) for function, tests in by_function.items()})
PytestRunner.execute_pytest = execute_timed
type.__setattr__(examples, "load_profile", staticmethod(load_without_simplifying))  # the class refuses changes
mutmut.collect_or_load_stats = collect_fastest
mutmut.tests_for_mutant_names = lambda names: {*fastest(tests_of(names))[: None if changed() else 1]}
mutmut.cli()
"""


@dataclass(frozen=True, kw_only=True)
class MutantOptions:
    """Mutants.

    Options of ``python -m experiments mutants``.

    Attributes:
        modules: Folders of the package and files in them, such as infer/verify or infer/verify/block. Default: all
            that have tests in experiments/mutants.py.
        sample: Number of mutants of each module, drawn at random; a larger sample contains a smaller one. Default: all
            mutants.
        seed: Seed of the sample.
        seconds: Seconds of tests for each mutant. The fastest tests that fit into this time are run. Default: all
            tests.
    """

    modules: tuple[str, ...] = tuple(TESTS)
    sample: Count | None = None
    seed: Seed = 0
    seconds: Positive = inf

    def __post_init__(self) -> None:
        for name in self.modules:
            if not any(f"{name}/".startswith(f"{module}/") for module in TESTS):
                raise InputError(f"modules: {name!r} has no tests here; choose of {', '.join(TESTS)}, or a file there")


def prepare(module: str) -> Path:
    """Copy the package and the tests into the folder of ``module``, and write its mutants."""
    folder = FOLDER / module.replace("/", "-")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / ".editable" / "specpilot", folder / "specpilot", ignore=ignored, dirs_exist_ok=True)
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=ignored, dirs_exist_ok=True)
    tests = next(tests for name, tests in TESTS.items() if f"{module}/".startswith(f"{name}/"))
    pattern = f"specpilot/{module}/*.py" if (ROOT / module).is_dir() else f"specpilot/{module}.py"
    settings = {
        "source_paths": ["specpilot"],
        "only_mutate": [pattern],
        "do_not_mutate_patterns": [r"InputError\("],
        "also_copy": [*COPIED],
        "pytest_add_cli_args": ["-m", "not slow", "-p", "no:cacheprovider"],
        "pytest_add_cli_args_test_selection": [*tests],
        "process_isolation": "forkserver",
        "timeout_multiplier": 6.0,  # of the seconds of the tests by the clock: other work may slow them down
        "timeout_constant": 10.0,
        "use_git_change_detection": False,
        "track_dependencies": False,
    }
    markers = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    tables = {
        "tool.pytest.ini_options": {"markers": markers["markers"], "pythonpath": ["."], "timeout": 3600},
        "tool.mutmut": settings,
    }
    lines = [
        line
        for table, values in tables.items()
        for line in (f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items()))
    ]
    (folder / "pyproject.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    run(folder, "-c", GENERATE)
    return folder


def run(folder: Path, *words: str) -> str:
    """Run Python in ``folder`` with the mutated package, and return its standard output.

    Args:
        folder: the folder of a module's mutants.
        words: arguments of Python.

    Raises:
        RuntimeError: Python ends with an exit code other than 0.
    """
    path = os.pathsep.join(str(folder / "mutants" / place) for place in ("", "."))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    result = processes.run([sys.executable, *words], cwd=folder, env=environment, stdout=PIPE)
    output: str = result.stdout.decode(errors="replace")
    if result.returncode:
        end = output.replace("\r", "\n")[-3000:]  # its progress is lines without an end
        raise RuntimeError(f"mutmut ended with {result.returncode} in {folder}; its output ends\n{end}")
    return output


def verdicts(folder: Path) -> dict[str, int | None]:
    """Return the exit code of the tests of each mutant, by name; None if they have not been run."""
    codes: dict[str, int | None] = {}
    for path in sorted((folder / "mutants").rglob("*.py.meta")):
        codes |= json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"]
    return codes


def word(code: int | None) -> str:
    """Return the verdict of an exit code of a mutant's tests, in words; None stands for tests that were not run."""
    return WORDS.get(code, f"exit code {code}")


class Change(NamedTuple):
    """The change of a mutant.

    Attributes:
        file: the changed file without its suffix, such as infer/verify/block.
        function: the changed function, with its class for a method.
        before: the changed lines without their indents, joined by spaces.
        after: the same lines after the change; empty if they are removed.
    """

    file: str
    function: str
    before: str
    after: str


def change(name: str, difference: str) -> Change:
    """Return the change of the mutant ``name``, such as ``specpilot.infer.core.x_residual__mutmut_1``.

    Args:
        name: the name that mutmut has for the mutant. A method has a separator before its class and its name.
        difference: the unified difference between the function and the mutant.
    """
    module, _, mangled = name.partition("__mutmut_")[0].rpartition(".")
    function = mangled.removeprefix("x_") if mangled.startswith("x_") else mangled.removeprefix("xǁ").replace("ǁ", ".")
    lines = [line for line in difference.splitlines() if not line.startswith(("---", "+++"))]
    before, after = (joined(line[1:] for line in lines if line.startswith(sign)) for sign in "-+")
    return Change(module.removeprefix("specpilot.").replace(".", "/"), function, before, after)


def joined(lines: Iterable[str]) -> str:
    """Return the lines without their indents, joined to one line."""
    return " ".join(line.strip() for line in lines).strip()


def equivalents() -> dict[Change, str]:
    """Return the mutants that change nothing a caller can observe, with the reason of each."""
    entries = yaml.safe_load(EQUIVALENT.read_text(encoding="utf-8"))
    return {Change(*(entry[field] for field in Change._fields)): entry["reason"] for entry in entries}


def main(options: MutantOptions) -> None:
    """Run the tests of each module on mutants of it, and print those that survive."""
    quiet()
    print("commit", commit())
    accepted = equivalents()
    for module in options.modules:
        folder = prepare(module)
        names = sorted(verdicts(folder))
        total = len(names)
        Random(options.seed).shuffle(names)
        names = names[: options.sample]
        codes = verdicts(folder)
        remaining = [name for name in names if codes[name] is None] or [
            n for n in names if word(codes[n]) not in CAUGHT
        ]
        if remaining:
            run(folder, "-c", RUN, str(options.seconds), "run", "--max-children", "1", *remaining)
        codes = verdicts(folder)
        words = {name: word(codes[name]) for name in names}
        for name in names:
            if words[name] not in CAUGHT:
                difference = run(folder, "-c", RUN, "0", "show", name)
                if words[name] == "survived" and change(name, difference) in accepted:
                    words[name] = EQUAL
                else:
                    print(difference)
        counts = Counter(words.values())
        caught = sum(counts[verdict] for verdict in CAUGHT)
        print(
            f"{module}: {caught} of {len(names)} mutants caught, {counts[EQUAL]} equivalent, of {total} in all: "
            f"{dict(counts)}",
            flush=True,
        )
