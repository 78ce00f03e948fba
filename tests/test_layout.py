"""The layout of the tree, checked on its source: which part imports which, how, what is never imported, and sizes.

common ← controllers ← infer ← data_gen ← simulate ← train ← compare     serve → infer, data_gen     cli → all, lazily
checkpoints ← all     experiments → all
"""

import ast
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from graphlib import TopologicalSorter
from importlib.util import resolve_name
from math import ceil
from pathlib import Path
from typing import NamedTuple

from specpilot.main import COMMANDS, Commands

ROOT = Path(__file__).parent.parent
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
FOLDERS: dict[str, str] = SETUPTOOLS["package-dir"]

# Part of the package → the parts it may import, besides itself, `common` and `checkpoints`.
LAYERS = {
    "common": set(),
    "checkpoints": set(),
    "controllers": set(),
    "infer": {"controllers"},
    "data_gen": {"controllers", "infer"},
    "simulate": {"controllers", "infer", "data_gen"},
    "train": {"controllers", "infer", "data_gen", "simulate"},
    "compare": {"controllers", "infer", "data_gen", "simulate", "train"},
    "serve": {"controllers", "infer", "data_gen"},
    "cli": {"controllers", "infer", "data_gen", "simulate", "train", "compare", "serve"},
}
GROUND = {"common", "checkpoints"}
FLOORS = 8  # of files that import each other, in a folder
SMALL = 40  # lines of a file that is small
MOST = {  # at most
    "lines of the package": 35_553,
    "files of the package": 243,
    "small files of the package": 20,
    "lines of experiments": 6_000,
    "lines of tests": 18_000,
    "verbs": 20,
    "MiB of tracked files": 36,
}
SERVER = {"fastapi", "starlette", "pydantic", "uvicorn", "prometheus_client"}  # of the extra serve
PLUGIN = "specpilot.serve.vllm."  # what vLLM alone imports
LOGGERS = {"wandb", "tensorboard"}
OPTIONAL = {"llama_cpp", "gguf", "ray", "zeus", "matplotlib", "rouge_score", "vllm"} | LOGGERS | SERVER
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
    head = (module + "..").split(".")[1]
    return head if head in LAYERS else "cli"


def sources() -> Iterator[Source]:
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).glob("*.py")):
            module = package if path.stem == "__init__" else f"{package}.{path.stem}"
            yield Source(path, module, ast.parse(path.read_text(), filename=str(path)))


SOURCES = list(sources())


def imports_of(source: Source) -> Iterator[Import]:
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
    """The imports that are so."""
    return [
        f"{place(source, found.line)}: {found.target}"
        for source in SOURCES
        for found in imports_of(source)
        if is_wrong(source, found)
    ]


def test_who_imports_whom() -> None:
    assert {source.part for source in SOURCES} == set(LAYERS)
    allowed = {part: {*below, part} | GROUND for part, below in LAYERS.items()}
    assert wrong(lambda source, found: found.relative and part_of(found.target) not in allowed[source.part]) == []


def test_imports_inside_the_package_are_relative_and_exist() -> None:
    """Neither by absolute names, nor of what is not installed."""
    outside = {
        "specpilot",
        "experiments",
        "tests",
        "examples",
        *(folder.partition("/")[0] for folder in FOLDERS.values()),
    }

    def is_wrong(source: Source, found: Import) -> bool:
        return found.target not in BY_NAME if found.relative else found.target.partition(".")[0] in outside

    assert wrong(is_wrong) == []


def graph() -> dict[str, set[str]]:
    """File → the files that it imports, at any place."""
    return {
        source.module: {i.target for i in imports_of(source) if i.relative and i.target in BY_NAME} - {source.module}
        for source in SOURCES
    }


def test_no_circles_among_files_and_few_floors_in_a_folder() -> None:
    """By imports at any place: in a function, or for the type checker only."""
    imports, floor = graph(), dict[str, int]()
    for module in TopologicalSorter(imports).static_order():  # its error names a circle
        folder = BY_NAME[module].path.parent
        below = (floor[other] for other in imports[module] if BY_NAME[other].path.parent == folder)
        floor[module] = 1 + max(below, default=0)
    assert {module: height for module, height in floor.items() if height > FLOORS} == {}


def tracked() -> list[Path]:
    """The files of the checkout; none outside one, or without git."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def test_sizes() -> None:
    def lines(paths: Iterable[Path]) -> list[int]:
        return [path.read_bytes().count(b"\n") for path in paths]

    def verbs(commands: Commands) -> int:
        return sum(verbs(entry) if isinstance(entry, Mapping) else 1 for entry in commands.values())

    package = lines(source.path for source in SOURCES)
    found = {
        "lines of the package": sum(package),
        "files of the package": len(package),
        "small files of the package": sum(
            line < SMALL for line in lines(source.path for source in SOURCES if source.path.stem != "__init__")
        ),
        "lines of experiments": sum(lines((ROOT / "experiments").rglob("*.py"))),
        "lines of tests": sum(lines((ROOT / "tests").rglob("*.py"))),
        "verbs": verbs(COMMANDS),
        "MiB of tracked files": ceil(sum(path.stat().st_size for path in tracked()) / 2**20),
    }
    assert {what: f"{n}, at most {MOST[what]}" for what, n in found.items() if n > MOST[what]} == {}


def test_optional_packages_are_imported_where_they_are_used() -> None:
    def is_wrong(source: Source, found: Import) -> bool:
        own = (SERVER if source.part == "serve" else set()) | ({"vllm"} if source.module.startswith(PLUGIN) else set())
        return not found.lazy and found.target.partition(".")[0] in OPTIONAL - own

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
        assert package == ".".join(["specpilot", *Path(folder).parts]).replace("specpilot.cli", "specpilot")
    assert not (ROOT / "specpilot").exists()  # it would shadow the installed package
