"""The layout of the package, checked on its source: which part imports which, how, and what is never imported.

controllers ← infer ← data_gen ← simulate ← train ← bench     serve → infer, data_gen     cli → all, lazily
checkpoints, options ← all
"""

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
FOLDERS: dict[str, str] = SETUPTOOLS["package-dir"]

# Part of the package → the parts it may import, besides itself.
MAY_IMPORT = {
    "controllers": {"checkpoints"},
    "infer": {"controllers", "checkpoints"},
    "data_gen": {"controllers", "infer", "checkpoints"},
    "simulate": {"controllers", "infer", "data_gen", "checkpoints"},
    "train": {"controllers", "infer", "data_gen", "simulate", "checkpoints"},
    "serve": {"controllers", "infer", "data_gen", "checkpoints"},
    "bench": {"controllers", "infer", "data_gen", "simulate", "train", "checkpoints"},
    "checkpoints": set(),
    "cli": {"controllers", "infer", "data_gen", "simulate", "train", "serve", "bench", "checkpoints"},
}
SERVER = {"fastapi", "starlette", "pydantic", "uvicorn", "prometheus_client"}  # of the extra serve
PLUGIN = "specpilot.infer.integrations.vllm."  # what vLLM alone imports
OPTIONAL = {"llama_cpp", "gguf", "wandb", "ray", "zeus", "matplotlib", "scipy", "rouge_score", "vllm"} | SERVER
UNSAFE = {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
OPTIONS = "specpilot.options"  # of the command line, and yet every part may import it
LIGHT = {"jsonargparse", "docstring_parser"}  # all that `import specpilot` and --help may import from outside


class Source(NamedTuple):
    path: Path
    module: str  # as imported: specpilot.infer.decoder; a package is its __init__
    tree: ast.Module

    @property
    def part(self) -> str:
        return part_of(self.module)


class Import(NamedTuple):
    target: str
    relative: bool
    lazy: bool  # inside a function, or for the type checker only
    line: int


def part_of(module: str) -> str:
    head = (module + "..").split(".")[1]
    return head if head in MAY_IMPORT else "cli"


def sources() -> Iterator[Source]:
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).glob("*.py")):
            module = package if path.stem == "__init__" else f"{package}.{path.stem}"
            yield Source(path, module, ast.parse(path.read_text(), filename=str(path)))


SOURCES = list(sources())


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports_of(source: Source) -> Iterator[Import]:
    def walk(node: ast.AST, lazy: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, False, lazy, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            yield from from_import(node, lazy)
        inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or is_type_checking(node)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, inside)

    def from_import(node: ast.ImportFrom, lazy: bool) -> Iterator[Import]:
        if not node.level:
            yield Import(node.module or "", False, lazy, node.lineno)
            return
        here = source.module.split(".")
        above = node.level - (source.path.stem == "__init__")
        base = ".".join([*here[: len(here) - above], *([node.module] if node.module else [])])
        for alias in node.names:
            # `from . import name` may mean a module: count it as one where there is such a module.
            name = f"{base}.{alias.name}"
            yield Import(name if name in MODULES else base, True, lazy, node.lineno)

    yield from walk(source.tree, lazy=False)


MODULES = {source.module for source in SOURCES}


def place(source: Source, line: int) -> str:
    return f"{source.path.relative_to(ROOT)}:{line}"


def test_who_imports_whom() -> None:
    assert {source.part for source in SOURCES} == set(MAY_IMPORT)
    wrong = [
        f"{place(source, found.line)}: {source.part} must not import {found.target}"
        for source in SOURCES
        for found in imports_of(source)
        if found.relative
        and part_of(found.target) not in MAY_IMPORT[source.part] | {source.part}
        and found.target != OPTIONS
    ]
    assert wrong == []


def test_options_import_nothing_slow() -> None:
    (options,) = [source for source in SOURCES if source.module == OPTIONS]
    own = {found.target for found in imports_of(options) if found.relative}
    assert own == {"specpilot.common.errors", "specpilot.controllers.finite"}  # which import nothing but Python's
    assert {found.target.partition(".")[0] for found in imports_of(options) if not found.relative} <= (
        sys.stdlib_module_names
    )


def test_imports_inside_the_package_are_relative_and_exist() -> None:
    folders = {folder.partition("/")[0] for folder in FOLDERS.values()}
    wrong = [
        f"{place(source, found.line)}: {found.target}"
        for source in SOURCES
        for found in imports_of(source)
        if (not found.relative and found.target.partition(".")[0] in folders | {"specpilot"})
        or (found.relative and found.target not in MODULES)
    ]
    assert wrong == []


def test_imports_at_start_are_light() -> None:
    """What `import specpilot` and the command line's --help load: the standard library and the argument parser."""
    by_name = {source.module: source for source in SOURCES}
    waiting = ["specpilot", "specpilot.main", *(name for name in MODULES if name.startswith("specpilot.commands."))]
    seen: set[str] = set()
    wrong = []
    while waiting:
        module = waiting.pop()
        if module in seen or module not in by_name:
            continue
        seen.add(module)
        waiting.append(module.rpartition(".")[0])  # a module's packages are imported before it
        for found in imports_of(by_name[module]):
            if found.lazy:
                continue
            if found.relative:
                waiting.append(found.target)
            elif found.target.partition(".")[0] not in sys.stdlib_module_names | LIGHT:
                wrong.append(f"{place(by_name[module], found.line)}: {found.target}")
    assert wrong == []
    assert "specpilot.parser" in seen


def test_optional_packages_are_imported_where_they_are_used() -> None:
    wrong = [
        f"{place(source, found.line)}: {found.target}"
        for source in SOURCES
        for found in imports_of(source)
        if not found.lazy
        and found.target.partition(".")[0] in OPTIONAL - (SERVER if source.part == "serve" else set())
        and not (found.target.startswith("vllm") and source.module.startswith(PLUGIN))
    ]
    assert wrong == []


def test_nothing_is_unpickled_and_no_remote_code_is_trusted() -> None:
    wrong = []
    for source in SOURCES:
        for node in ast.walk(source.tree):
            # An error class of pickle's may be caught; torch.load raises one.
            unsafe = isinstance(node, ast.ImportFrom) and node.module in UNSAFE
            unsafe |= isinstance(node, ast.Import) and any(a.name in UNSAFE and a.asname for a in node.names)
            unsafe |= (
                isinstance(node, ast.Attribute) and ast.unparse(node.value) in UNSAFE and node.attr[-5:] != "Error"
            )
            if unsafe and isinstance(node, ast.stmt | ast.expr):
                wrong.append(f"{place(source, node.lineno)}: {ast.unparse(node)}")
            if isinstance(node, ast.Call):
                arguments = {word.arg: word.value for word in node.keywords}
                if ast.unparse(node.func) == "torch.load" and not is_true(arguments.get("weights_only")):
                    wrong.append(f"{place(source, node.lineno)}: torch.load without weights_only=True")
                if is_true(arguments.get("trust_remote_code")):
                    wrong.append(f"{place(source, node.lineno)}: trust_remote_code=True")
    assert wrong == []


def is_true(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


def test_every_package_is_declared() -> None:
    declared = set(FOLDERS.values())
    tops = {folder.partition("/")[0] for folder in declared}
    present = {path.parent.relative_to(ROOT).as_posix() for top in tops for path in (ROOT / top).rglob("__init__.py")}
    assert present == declared
    assert set(SETUPTOOLS["packages"]) == set(FOLDERS)
    for package, folder in FOLDERS.items():
        assert package == ".".join(["specpilot", *Path(folder).parts]).replace("specpilot.cli", "specpilot")


def test_no_folder_shadows_the_installed_package() -> None:
    assert not (ROOT / "specpilot").exists()


@pytest.mark.parametrize(
    ("module", "code", "expected"),
    [
        (
            "specpilot.infer.cache",
            "from ..controllers.sampling import SamplingParams",
            [("specpilot.controllers.sampling", True, False)],
        ),
        ("specpilot.infer.cache", "def f():\n    import wandb", [("wandb", False, True)]),
        ("specpilot.infer.cache", "if TYPE_CHECKING:\n    import torch", [("torch", False, True)]),
        ("specpilot.infer.cache", "try:\n    import ray\nexcept ImportError:\n    pass", [("ray", False, False)]),
        ("specpilot.infer.cache", "from .. import controllers", [("specpilot.controllers", True, False)]),
    ],
)
def test_the_reader_of_imports(module: str, code: str, expected: list[tuple[str, bool, bool]]) -> None:
    found = imports_of(Source(Path("cache.py"), module, ast.parse(code)))
    assert [(i.target, i.relative, i.lazy) for i in found] == expected
