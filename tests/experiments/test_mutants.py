"""The table of tests that mutants are tried with."""

import ast

import pytest
from specpilot.common.errors import InputError

from experiments.mutants import ROOT, TESTS, Change, MutantOptions, change, equivalents, joined, word


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


DIFFERENCE = """--- specpilot/infer/core.py
+++ specpilot/infer/core.py
@@ -1,4 +1,4 @@
 def residual(self) -> None:
-    first(
-        1,
+    first(
+        2,
     )"""


def test_changes_of_mutants() -> None:
    function = change("specpilot.infer.core.x_residual__mutmut_3", DIFFERENCE)
    assert function == Change("infer/core", "residual", "first( 1,", "first( 2,")
    method = change("specpilot.infer.core.xǁDraftǁ__len____mutmut_12", "-    return 1\n+    return 2")
    assert method == Change("infer/core", "Draft.__len__", "return 1", "return 2")


@pytest.mark.parametrize("entry", equivalents(), ids=lambda entry: f"{entry.file}-{entry.function}-{entry.after}"[:80])
def test_equivalent_mutants_change_lines_that_are_there(entry: Change) -> None:
    assert any(f"{entry.file}/".startswith(f"{module}/") for module in TESTS)
    assert equivalents()[entry].endswith(".")
    assert entry.before != entry.after
    path = ROOT / f"{entry.file}.py"
    text = (path if path.is_file() else ROOT / entry.file / "__init__.py").read_text(encoding="utf-8")
    assert entry.before in joined(source(text, entry.function).splitlines())


def source(text: str, name: str) -> str:
    """The source of the function or method ``name`` in ``text``."""
    body = ast.parse(text).body
    for part in name.split("."):
        node = next(node for node in body if getattr(node, "name", None) == part)
        body = getattr(node, "body", [])
    return ast.get_source_segment(text, node) or ""
