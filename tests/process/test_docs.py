"""The documentation is right: code runs, commands parse, links have targets, and the site builds offline."""

import ast
import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from specpilot.cli.commands.train import of_predictor
from specpilot.cli.main import COMMANDS, main
from specpilot.cli.parser import CommandParser
from specpilot.infer.core import Stats
from specpilot_vllm.main import COMMANDS as VLLM_COMMANDS

from experiments.__main__ import command

from ..helpers.commands import inert

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]  # outside the site
PAGES += sorted((ROOT / "docs").rglob("*.md"))
BLOCK = re.compile(  # blocks in lists are indented
    r"(?:^ *<!-- not run: (?P<reason>.+?) -->\n)?^(?P<indent> *)```(?P<language>\w+)\n(?P<code>.*?)^(?P=indent)```$",
    re.M | re.S,
)


class Block(NamedTuple):
    language: str
    code: str
    reason: str | None  # why it is not run


def blocks(page: Path) -> list[Block]:
    matches = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(match["language"], dedent(match["code"]), match["reason"]) for match in matches]


def runnable(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language in ("bash", "python")]


def of_page(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty working folder with the configurations that the pages expect."""
    (tmp_path / "train").symlink_to(ROOT / "train")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words_of(script: str, folder: Path) -> list[list[str]]:
    """Return the commands of ``script`` as bash would start them, without running them."""
    stubs, record = folder / ".venv" / "bin", folder / "words"
    stubs.mkdir(parents=True, exist_ok=True)
    for name in ("specpilot", "specpilot-vllm", "make", "pip", "python", "vllm"):
        stub = stubs / name
        stub.write_text(f"#!/bin/bash\nprintf '%s\\0' {name} \"$@\" >>'{record}'\nprintf '\\x1e' >>'{record}'\n")
        stub.chmod(0o755)
    record.write_text("")
    command = ["bash", "-euo", "pipefail", "-c", script]
    subprocess.run(command, cwd=folder, env={"PATH": f"{stubs}:/usr/bin:/bin"}, check=True, capture_output=True)
    return [line.split("\0")[:-1] for line in record.read_text().split("\x1e")[:-1]]


def check_words(words: list[str]) -> None:
    """Check that a command of a block that is not run would start."""
    match words:
        case ["specpilot", "train", "acceptance", *rest]:  # each predictor has options of its own
            CommandParser(of_predictor(rest), prog="train acceptance").read(rest)
        case ["specpilot", *rest]:
            assert main(rest, inert(COMMANDS)) == 0, words
        case ["specpilot-vllm", *rest]:
            assert main(rest, inert(VLLM_COMMANDS)) == 0, words
        case ["make", *targets]:
            for target in targets:  # or a variable and its value
                name, equals, _ = target.partition("=")
                assert re.search(rf"^{name}\s*:{equals}", (ROOT / "Makefile").read_text(), re.M), words
        case ["pip", "install", *rest]:
            for word in rest:
                path, _, extra = word.removesuffix("]").partition("[")
                assert path == "-c" or (ROOT / path).exists(), words
                if extra:
                    project = tomllib.loads((ROOT / path / "pyproject.toml").read_text())["project"]
                    assert extra in project["optional-dependencies"], words
        case ["python", "-m", "experiments", name, *rest]:
            assert main([name, *rest], inert({name: command(name)})) == 0, words
        case ["python", "-m", "pytest", *rest]:
            paths = [word for word in rest if "/" in word]
            assert paths, words
            assert all((ROOT / path).exists() for path in paths), words
        case ["vllm", "serve", *_] | ["python", "-m", "sglang.launch_server", *_]:
            pass  # commands of other engines, which are not installed
        case _:
            pytest.fail(f"no check for {words}")


# The README trains, measures and compares as well, and each of these has tests of its own.
SLOW = ("quickstart.md", "training.md", "drafts.md", "routers.md", "cost.md", "compare.md", "pipeline.ipynb")


def each(pages: Iterable[Path]) -> list[Any]:
    return [pytest.param(p, marks=[pytest.mark.slow] * (p.name in SLOW), id=of_page(p)) for p in pages]


@pytest.mark.parametrize("page", each(page for page in PAGES if runnable(page)))
def test_code(page: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All blocks of a page run in order and in one folder. Blocks that do not run have a reason, and are parsed."""
    for block in runnable(page):
        if block.language == "python":
            code = compile(block.code, str(page), "exec")
            if block.reason is None:
                exec(code, {"__name__": "__main__"})
                assert capsys.readouterr().out.strip(), block.code
            continue
        commands = words_of(block.code, elsewhere)
        assert commands, block.code
        for words in commands:
            if block.reason is not None:
                check_words(words)
                continue
            assert words[0] == "specpilot", "say why it is not run"
            assert main(words[1:]) == 0, (words, capsys.readouterr().err)
            assert capsys.readouterr().out.strip() or "--output" in words, words


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.py")), ids=of_page)
def test_examples(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(file), run_name="__main__")
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("file", each(sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))))
def test_notebooks(file: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells of code run in their order in one namespace, also those that write a module."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        assert not cell.get("outputs"), "results change with the machine"
        if source.startswith("%%writefile "):
            name, _, text = source.removeprefix("%%writefile ").partition("\n")
            (elsewhere / name).write_text(text, encoding="utf-8")
        elif cell["cell_type"] == "code":
            exec(compile(source, str(file), "exec"), names)


@pytest.mark.parametrize("page", PAGES[:2], ids=of_page)
def test_links(page: Path) -> None:
    """Links of the pages outside the site are checked here, the others when the site is built."""
    targets = re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8"))
    assert targets
    for target in targets:
        assert (ROOT / target).exists(), target


def table_starts(page: Path) -> list[int]:
    """The lines, counted from 1, of rows without a row before them, outside blocks of code."""
    lines, starts, fenced = page.read_text(encoding="utf-8").split("\n"), [], False
    for place, line in enumerate(lines):
        fenced ^= line.lstrip().startswith("```")
        if not fenced and line.startswith("|") and not lines[place - 1].startswith("|"):
            starts.append(place + 1)
    return starts


@pytest.mark.parametrize("page", PAGES, ids=of_page)
def test_tables_are_whole(page: Path) -> None:
    """Every table begins with a header: a blank line inside a table would show the rows after it as text."""
    lines = page.read_text(encoding="utf-8").split("\n")
    broken = [line for line in table_starts(page) if not re.fullmatch(r"\|[-:| ]+\|", lines[line])]
    assert not broken, f"{of_page(page)}: rows without a header at the lines {broken}"


def test_every_make_target_is_described() -> None:
    """The page for contributors has all targets of make, and no others."""
    (targets,) = re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.M)
    page = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `make ([\w-]+)` \|", page, re.M)) == set(targets.split())


def test_readme_has_the_table_of_the_demo() -> None:
    """Another test compares the blocks of all pages with the files."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for kind in ("speeds", "source"):
        assert readme.count(f"<!-- results: {kind} docs/results/demo.json") == 1


GPU = json.loads((ROOT / "docs" / "results" / "gpu.json").read_text(encoding="utf-8"))["results"]
NAMES = {"8B": "Llama-3.1-8B", "1B": "Llama-3.2-1B"}  # of the shapes, in headings
DECODERS = {  # rows of the table of speeds
    "specpilot, no drafts": "ours, K=0", "specpilot, 2 tokens": "ours, K=2", "specpilot, 3 tokens": "ours, K=3",
    "specpilot, 4 tokens": "ours, K=4", "specpilot, tree 3x2x1": "ours, tree 3x2x1",
    "specpilot, tree auto": "ours, tree auto", "transformers": "transformers",
    "transformers, static cache": "transformers, static cache", "transformers, assisted": "transformers, assisted",
}  # fmt: skip
STAGES = {
    "roll-out of 64 texts, each with 128 prompt tokens and 128 new tokens": "roll-out of 64 texts",
    "roll-out of 256 texts": "roll-out of 256 texts",
    "labels, by a forward of both models": "labels", "states of the target (`--cache-states`)": "target states",
    "training a draft of two layers, 4 windows a step": "training on 4 windows",
    "training a draft of two layers, 64 windows a step": "training on 64 windows",
}  # fmt: skip
NEW_TOKENS = 128  # of each text of a pass


def gpu_rows(table: str) -> list[list[str]]:
    """Return the cells of a table of the page on GPUs, with the heading first."""
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    lines = re.search(rf"<!-- gpu: {table} -->\n((?:\|.*\n)+)", page)[1].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in [lines[0], *lines[2:]]]


def gpu_speed(decoder: str, heading: str) -> tuple[str, str]:
    """Return the tokens per second as the page shows them, and the commit; empty if they were not measured."""
    shape, _, texts = heading.removesuffix(" texts").removesuffix(" text").partition(", ")
    name = f"speed: {NAMES[shape]}, graphs on, {DECODERS[decoder]}" + (f", {texts} texts" if texts != "1" else "")
    if name not in GPU:
        return "", ""
    result, commit = GPU[name]["result"], GPU[name]["commit"]
    if decoder.startswith("specpilot"):
        return f"{result['tokens/s']:,.0f}", commit
    slow, fast = sorted(int(texts) * NEW_TOKENS / seconds for seconds in result["passes"])
    return f"{slow:.0f}–{fast:.0f}", commit


def test_tables_of_the_gpu_page() -> None:
    """The numbers and commits of the tables are those of gpu.json."""
    for shape, graphs, *cells in gpu_rows("forwards")[1:]:
        result = GPU[f"steps: {shape}, graphs {graphs}"]["result"]
        times = [f"{result[name]:.2f}" for name in ("1x1", "1x4", "1x8", "4x4", "16x4")]
        assert cells == [*times, f"{100 * result['share of the floor']:.0f} %"]
    heading, *rows = gpu_rows("rounds")
    for shape, *cells in rows:
        result = GPU[f"rounds: {shape}, graphs on"]["result"]
        rounds = [result[name.replace(" ", "")] for name in heading[1:]]
        assert cells == [f"{row['ms']:.2f}, {row['to its parts']:.2f}" for row in rounds]
    heading, *rows = gpu_rows("stages")
    for stage, *cells in rows:
        results = [GPU[f"stages: {NAMES[name]}, graphs on, {STAGES[stage]}"]["result"] for name in heading[1:]]
        assert cells == [f"{result['tokens/s']:,}" for result in results]
    heading, *rows = gpu_rows("speeds")
    assert {row[0] for row in rows} == DECODERS.keys()
    for decoder, *cells, commits in rows:
        speeds = [gpu_speed(decoder, name) for name in heading[1:-1]]
        assert cells == [speed for speed, _ in speeds]
        assert {*commits.split(", ")} == {commit for _, commit in speeds if commit}


INTERVAL = re.compile(r"(\d+\.\d+)(?: ×|×)? \((\d+\.\d+)–(\d+\.\d+)\)")
TABLE = re.compile(r"<!-- results: .*?<!-- end -->", re.DOTALL)


def intervals(content: Any) -> Iterator[tuple[str, str, str]]:
    """Return every estimate with its interval in a result, in all allowed notations."""
    if isinstance(content, list):
        for entry in content:
            yield from intervals(entry)
    if not isinstance(content, dict):
        return
    for name in ("ratio", "value"):
        if name in content and "low" in content:
            numbers = [content[name], content["low"], content["high"]]
            for digits in (2, 3):
                yield tuple(f"{number:.{digits}f}" for number in numbers)
    for sentence in content.get("sentences", []):
        yield from INTERVAL.findall(sentence)
    for entry in content.values():
        yield from intervals(entry)


def test_intervals_in_the_text_are_those_of_results() -> None:
    """Intervals in the text are in results, except in list items that say that no command prints them."""
    files = (ROOT / "docs" / "results").glob("*.json")
    stored_intervals = {
        interval for file in files for interval in intervals(json.loads(file.read_text(encoding="utf-8")))
    }
    checked = 0
    for page in PAGES:
        text = TABLE.sub("", page.read_text(encoding="utf-8"))
        for part in re.split(r"\n\n|\n(?=\* )", text):
            words = " ".join(part.split())
            written = INTERVAL.findall(words)
            checked += len(written)
            if not re.search(r"[Nn]o command prints", words):
                assert [interval for interval in written if interval not in stored_intervals] == [], page.name
    assert checked > 20


def module_of(file: Path) -> ModuleType:
    """Return the module in ``file``, which belongs to no package."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CONCEPTS = ROOT / "docs" / "concepts"


@pytest.mark.parametrize("page", sorted(CONCEPTS.glob("*.md")), ids=of_page)
def test_concept_pages(page: Path) -> None:
    """Each page has its sections, is listed in the overview, and names files that exist."""
    text = page.read_text(encoding="utf-8")
    for heading in ("When to use", "How to use", "Reference"):
        assert re.search(rf"^## {heading}", text, re.M), heading
    assert f"](concepts/{page.name})" in (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    files = re.findall(r"`(\w+(?:/\w+)+\.py)`", text.partition("\n## Reference\n")[2])
    assert files
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_metrics_of_decoding() -> None:
    """The page of metrics defines every counter and every rate."""
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    rates = [name for name, value in vars(Stats).items() if isinstance(value, property)]
    names = [field.name for field in fields(Stats)] + rates
    assert "tokens_per_forward" in names
    assert [name for name in names if not re.search(rf"^\|.*`{name}`.*\|", page, re.M)] == []


@pytest.mark.parametrize(("folder", "names"), [("concepts", "FIGURES"), ("results", "RESULT_FIGURES")])
def test_figures(folder: str, names: str) -> None:
    """The figures of the pages on concepts and on results are those that the script draws, and each figure is shown."""
    figures, place = getattr(module_of(CONCEPTS / "figures.py"), names), ROOT / "docs" / folder
    assert {file.stem for file in place.glob("*.svg")} == set(figures)
    pages = "".join(page.read_text(encoding="utf-8") for page in [place.with_suffix(".md"), *place.glob("*.md")])
    for name, draw in figures.items():
        assert (place / f"{name}.svg").read_text(encoding="utf-8") == draw(), "make figures"
        assert re.search(rf"[(/]{name}\.svg\)", pages), name


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    """Return the module that generates pages of the site from the code."""
    return module_of(ROOT / "docs" / "hooks.py")


def test_errors_have_a_place(hooks: ModuleType) -> None:
    """Every module that raises InputError belongs to a heading of the troubleshooting page, and no pattern is idle."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    homes = {module: hooks.home(module) for module in hooks.raising()}
    assert [module for module, home in homes.items() if not home] == []
    patterns = [pattern for error_list in hooks.ERRORS.findall(page) for pattern in error_list.split()]
    assert sorted(patterns) == sorted(set(homes.values()))


def test_command_table(hooks: ModuleType) -> None:
    """The command reference in the repository lists every command and no other."""
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert sorted(hooks.COMMAND_ROW.findall(page)) == sorted(" ".join(words) for words in hooks.leaves(COMMANDS))


def test_links_work_in_the_repository() -> None:
    """Links between pages lead to files that exist without the site."""
    for page in PAGES:
        for target in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


# Parts of messages that the code puts together, or that come from the operating system.
COMPOSED = {
    "expected a whole number", "chat='off': true or false or 'auto' is expected", "No space left on device",
    "Permission denied", "SPECPILOT_API_KEY: it is empty", "WANDB_API_KEY",
}  # fmt: skip


def strings(folders: Iterable[Path]) -> Iterator[str]:
    """Return the text of every string in the code, with a line feed in place of each value."""
    for file in (file for folder in folders for file in folder.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Constant(value=str(text)):
                    yield text
                case ast.JoinedStr(values=parts):
                    yield "".join(part.value if isinstance(part, ast.Constant) else "\n" for part in parts)


def test_troubleshooting_lists_messages_of_the_code(hooks: ModuleType) -> None:
    """Each part of a message in the first column is text of the code."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (.*?`.*?) \| ", page, re.M)
    parts = {
        part.strip(":;, ") for cell in cells for message in re.findall("`(.+?)`", cell) for part in message.split("…")
    }
    parts = {part for part in parts if re.search(r"\w{3}", part) and part not in COMPOSED}
    assert len(parts) > 50
    code = "\0".join(strings(hooks.packages().values()))
    assert [part for part in sorted(parts) if part not in code] == []


def test_site(tmp_path: Path, hooks: ModuleType) -> None:
    """The site builds without a warning, loads nothing from other hosts, and has every command."""
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    pages = [page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.html")]
    outside = r"<(?:script|link|img|iframe|source|video)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//"
    assert not any(re.search(outside, page) for page in pages)
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), style
    listed = (tmp_path / "commands.html").read_text(encoding="utf-8")
    for words in hooks.leaves(COMMANDS):
        name = "-".join(words)
        assert f'href="commands/{name}.html"' in listed
        assert f'id="specpilot-{name}"' in (tmp_path / "commands" / f"{name}.html").read_text(encoding="utf-8")
    page = (tmp_path / "commands" / "train-acceptance.html").read_text(encoding="utf-8")
    for option in ("--w-rej", "--use-ngrams"):  # of two of its predictors
        assert f'<code class="option">{option}</code>' in page
    training = (tmp_path / "training.html").read_text(encoding="utf-8")
    assert 'href="notebooks/pipeline.html"' in training
    assert 'href="commands/train-acceptance.html"' in training
    notebook = (tmp_path / "notebooks" / "own-controller.html").read_text(encoding="utf-8")
    assert 'href="own-controller.ipynb" download' in notebook
    assert "margin.py" in notebook
    assert (tmp_path / "notebooks" / "own-controller.ipynb").is_file()
    python = (tmp_path / "python.html").read_text(encoding="utf-8")
    assert 'id="specpilot.infer.decoder.SpeculativeDecoder.generate"' in python
    assert ":class:" not in python
