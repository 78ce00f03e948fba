"""The table of tests that mutants are tried with."""

import pytest
from specpilot.common.errors import InputError

from experiments.mutants import ROOT, TESTS, MutantOptions, word


@pytest.mark.parametrize("module", TESTS)
def test_modules_and_their_tests_are_there(module: str) -> None:
    assert (ROOT / module).is_dir() or (ROOT / f"{module}.py").is_file()
    for test in TESTS[module]:
        path, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8") if name else (ROOT / path).is_file()


def test_modules_without_tests_are_refused() -> None:
    MutantOptions(modules=("infer/verify/block",))
    with pytest.raises(InputError, match="modules: 'infer/verif' has no tests"):
        MutantOptions(modules=("infer/verif",))


def test_mutants_that_nothing_noticed() -> None:
    assert [word(code) for code in (None, 0, 1, 33, -24, 70)] == [
        "not run", "survived", "killed", "no tests", "timeout", "exit code 70",
    ]  # fmt: skip
