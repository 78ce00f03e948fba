"""The layout of the tree, checked on its source: which part imports which, how, and what is never imported.

common ← controllers ← models ← infer ← data_gen ← simulate ← train ← compare     serve → infer, data_gen
cli → all, lazily     api → all, lazily     checkpoints ← all     experiments → all
"""

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path
from typing import NamedTuple

import pytest
from specpilot.controllers.length import FILES as LENGTH_FILES
from specpilot.infer.verify import FILES as VERIFIER_FILES

ROOT = Path(__file__).parents[2]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
FOLDERS: dict[str, str] = SETUPTOOLS["package-dir"]

# Part of the package → the parts it may import, besides itself, `common` and `checkpoints`.
LAYERS = {
    "common": set(),
    "checkpoints": set(),
    "controllers": set(),
    "models": {"controllers"},
    "infer": {"controllers", "models"},
    "data_gen": {"controllers", "models", "infer"},
    "simulate": {"controllers", "models", "infer", "data_gen"},
    "train": {"controllers", "models", "infer", "data_gen", "simulate"},
    "compare": {"controllers", "models", "infer", "data_gen", "simulate", "train"},
    "serve": {"controllers", "models", "infer", "data_gen"},
    "cli": {"controllers", "models", "infer", "data_gen", "simulate", "train", "compare", "serve"},
    "api": {"controllers", "models", "infer", "data_gen", "simulate", "train", "compare", "serve", "cli"},
}
GROUND = {"common", "checkpoints"}
SERVER = {"fastapi", "starlette", "pydantic", "uvicorn", "prometheus_client"}  # of the extra serve
LOGGERS = {"wandb", "tensorboard"}
OPTIONAL = {"llama_cpp", "gguf", "ray", "zeus", "matplotlib", "rouge_score"} | LOGGERS | SERVER
UNSAFE = "pickle|dill|cloudpickle|joblib|shelve|marshal"


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
    """Return the top folder of the tree that contains ``module``."""
    head = (module + "..").split(".")[1]
    return head if head in LAYERS else "api"


def sources() -> Iterator[Source]:
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).glob("*.py")):
            module = package if path.stem == "__init__" else f"{package}.{path.stem}"
            yield Source(path, module, ast.parse(path.read_text(), filename=str(path)))


SOURCES = list(sources())


@cache
def imports_of(source: Source) -> list[Import]:
    """Return all imports of a file; cached for all tests."""
    return list(read_imports(source))


def read_imports(source: Source) -> Iterator[Import]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    nodes = list(ast.walk(source.tree))
    checking = (node for node in nodes if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    late = {n for node in [*checking, *(n for n in nodes if isinstance(n, kinds))] for n in ast.walk(node)}
    package = source.module if source.path.stem == "__init__" else source.module.rpartition(".")[0]
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, False, node in late, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield Import(node.module or "", False, node in late, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                # `from . import name` may mean a module: count it as one where there is such a module.
                name = f"{base}.{alias.name}"
                yield Import(name if name in BY_NAME else base, True, node in late, node.lineno)


BY_NAME = {source.module: source for source in SOURCES}


def place(source: Source, line: int) -> str:
    return f"{source.path.relative_to(ROOT)}:{line}"


def wrong(is_wrong: Callable[[Source, Import], bool]) -> list[str]:
    """Return the imports for which ``is_wrong`` is true."""
    return [
        f"{place(source, imported.line)}: {imported.target}"
        for source in SOURCES
        for imported in imports_of(source)
        if is_wrong(source, imported)
    ]


def test_who_imports_whom() -> None:
    assert {source.part for source in SOURCES} == set(LAYERS)
    allowed = {part: {*below, part} | GROUND for part, below in LAYERS.items()}
    assert (
        wrong(lambda source, imported: imported.relative and part_of(imported.target) not in allowed[source.part]) == []
    )


def test_imports_inside_the_package_are_relative_and_exist() -> None:
    """No import inside the package has an absolute name or a missing module."""
    outside = {
        "specpilot",
        "experiments",
        "tests",
        "examples",
        *(folder.partition("/")[0] for folder in FOLDERS.values()),
    }

    def is_wrong(source: Source, imported: Import) -> bool:
        return imported.target not in BY_NAME if imported.relative else imported.target.partition(".")[0] in outside

    assert wrong(is_wrong) == []


def graph() -> dict[str, set[str]]:
    """Return the files that each file imports, also in functions."""
    return {
        source.module: {i.target for i in imports_of(source) if i.relative and i.target in BY_NAME} - {source.module}
        for source in SOURCES
    }


def test_no_circular_imports() -> None:
    """Imports in functions and for the type checker count too."""
    list(TopologicalSorter(graph()).static_order())  # its error names a circle


def test_optional_packages_are_imported_where_they_are_used() -> None:
    def is_wrong(source: Source, imported: Import) -> bool:
        server_packages = SERVER if source.part == "serve" else set()
        return not imported.lazy and imported.target.partition(".")[0] in OPTIONAL - server_packages

    assert wrong(is_wrong) == []


def test_nothing_is_unpickled_and_no_remote_code_is_trusted() -> None:
    """An error class of pickle's may be caught; torch.load raises one."""
    unsafe = re.compile(
        rf"\b({UNSAFE})\.(?!\w+Error)\w|^\s*(from ({UNSAFE}) import|import ({UNSAFE}) as)|trust_remote_code=True"
        r"|torch\.load\((?!.*weights_only=True)"
    )
    lines = ((source, line) for source in SOURCES for line in ast.unparse(source.tree).splitlines())
    assert [(source.module, line) for source, line in lines if unsafe.search(line)] == []


def test_every_package_is_declared() -> None:
    declared = set(FOLDERS.values())
    tops = {folder.partition("/")[0] for folder in declared}
    present = {path.parent.relative_to(ROOT).as_posix() for top in tops for path in (ROOT / top).rglob("__init__.py")}
    assert present == declared
    assert set(SETUPTOOLS["packages"]) == set(FOLDERS)
    for package, folder in FOLDERS.items():
        assert package == ("specpilot" if folder == "api" else ".".join(["specpilot", *Path(folder).parts]))
    assert not (ROOT / "specpilot").exists()  # it would shadow the installed package


def test_the_plugin_for_vllm_imports_documented_modules() -> None:
    """The plugin only imports modules of docs/vllm.md and of the Python reference."""
    pages = "".join((ROOT / "docs" / name).read_text() for name in ("vllm.md", "python.md"))
    documented = set(re.findall(r"^\| `[\w.`, ]+` \|", pages, re.M))
    names = {name for row in documented for name in re.findall(r"`(specpilot[\w.]*)`", row)}
    names |= {name.rpartition(".")[0] for name in re.findall(r"^::: ([\w.]+)", pages, re.M)}
    imported = set()
    for path in (ROOT / "plugins" / "vllm" / "specpilot_vllm").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                module = node.module or ""
                imported |= {module, *(f"{module}.{alias.name}" for alias in node.names)} & {module, *BY_NAME}
    assert {name for name in imported if name.partition(".")[0] == "specpilot"} - names == set()


def test_published_rivals_use_no_private_names() -> None:
    """The rivals only need names that users need for their own controllers."""
    for path in (ROOT / "experiments" / "rivals").glob("*.py"):
        nodes = [*ast.walk(ast.parse(path.read_text()))]
        defined_names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        used_names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        used_names |= {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert {name for name in used_names - defined_names if re.match(r"_[^_]", name)} == set(), path


@pytest.mark.parametrize(("folder", "files"), [("controllers/length", LENGTH_FILES), ("infer/verify", VERIFIER_FILES)])
def test_every_file_of_a_rule_is_named_once(folder: str, files: tuple[str, ...]) -> None:
    paths = [path for path in (ROOT / folder).glob("*.py") if re.search(r"^RULE = ", path.read_text(), re.M)]
    assert sorted(path.stem for path in paths) == sorted(files)


def test_no_code_for_vllm_is_in_the_package() -> None:
    """The plugin has it; the package only names the plugin."""
    assert wrong(lambda source, imported: imported.target.partition(".")[0] in ("vllm", "specpilot_vllm")) == []


SERIALIZERS = {"to_dict", "from_dict"}
HOOKS = {"state_dict", "load_state_dict", "on_save_checkpoint", "on_load_checkpoint"}  # of Lightning, with its types


def signatures(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.expr]]:
    """Yield the annotations of the public functions, methods and attributes of a module or class, with their names."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from signatures(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.AnnAssign) and prefix and isinstance(node.target, ast.Name):
            yield prefix + node.target.id, node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name in SERIALIZERS | HOOKS or (node.name.startswith("_") and not node.name.endswith("__")):
                continue
            arguments = node.args
            named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
            annotations = [*(each.annotation for each in named if each is not None), node.returns]
            yield from ((prefix + node.name, annotation) for annotation in annotations if annotation is not None)


def test_public_functions_name_the_types_of_their_values() -> None:
    """A dataclass instead of `dict[str, Any]`; `JsonObject` is for values that are not checked yet."""
    untyped = {
        f"{source.module}: {name}"
        for source in SOURCES
        for name, annotation in signatures(source.tree.body)
        if re.search(r"(dict|Mapping)\[str, Any\]", ast.unparse(annotation))
    }
    assert untyped == set()


def test_every_test_module_is_in_a_folder_and_imports_no_other() -> None:
    """Code that test modules share is in ``tests/helpers``."""
    folders = ["unit", "integration", "process", "gguf", "gpu", "ray", "soak", "experiments"]
    modules = sorted((ROOT / "tests").rglob("test_*.py"))
    assert {path.parent.relative_to(ROOT / "tests").as_posix() for path in modules} == set(folders)
    plugin = sorted((ROOT / "plugins" / "vllm" / "tests").rglob("test_*.py"))
    imported = [
        (path.name, ast.unparse(node))
        for path in [*modules, *plugin, *(ROOT / "tests" / "helpers").glob("*.py")]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom) and re.search(r"\btest_", ast.unparse(node))
    ]
    assert imported == []
