"""Pages that the site generates: the command reference, the notebooks, and the lists of errors."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout, suppress
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mkdocs.structure.files import File, Files
from specpilot.cli.main import COMMANDS, main
from specpilot.controllers.registry import PREDICTORS

ROOT = Path(__file__).resolve().parent.parent
COMMANDS_PAGE = "commands.md"
COMMAND_ROW = re.compile(r"^\| `specpilot ([a-z -]+)` \|", re.M)
COMMAND_LINK = re.compile(r"\[`specpilot ([a-z -]+?)( --[^`]*)?`\]\(commands\.md\)")
NOTEBOOK_LINK = re.compile(r"\]\(((?:\.\./)*notebooks/[\w-]+)\.ipynb\)")
# Variants of a command with further options.
VARIANTS = {("train", "acceptance"): [("--predictor", name) for name in PREDICTORS]}
ERRORS = re.compile(r"<!-- errors: (.*?) -->")
ROLE = re.compile(r":(?:class|meth|func|mod|attr):<code>[~.]?(?:[\w.]*\.)?(\w+)</code>")


def on_config(config: Any) -> Any:
    """Add the commands and the notebooks to the navigation, below the entries that ``mkdocs.yml`` names."""
    pages: list[Any] = [COMMANDS_PAGE, *({" ".join(words): page_of(words)} for words in leaves(COMMANDS))]
    notebooks = [f"notebooks/{path.stem}.md" for path in notebook_paths()]
    for section in config.nav:
        for entry in next(iter(section.values())):
            if isinstance(entry, dict) and entry.get("Commands") == COMMANDS_PAGE:
                entry["Commands"] = pages
            if isinstance(entry, dict) and "Notebooks" in entry:
                entry["Notebooks"] = notebooks
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each command and for each notebook."""
    for words in leaves(COMMANDS):
        _, content = command_page(words)
        files.append(File.generated(config, page_of(words), content=content))
    for path in notebook_paths():
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebook_page(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Complete the text of a page.

    In the repository, links lead to files that exist there: ``commands.md`` and notebooks. On the site they lead to the
    page of the command or notebook. ``<!-- errors: patterns -->`` becomes the list of the messages of the modules that
    match the patterns.
    """
    markdown = NOTEBOOK_LINK.sub(r"](\1.md)", link_commands(markdown, page.file.src_uri))
    return ERRORS.sub(lambda marker: error_list(marker[1].split()), markdown)


def link_commands(markdown: str, uri: str) -> str:
    """Return ``markdown`` of the page ``uri``, with links to the pages of commands."""
    if uri == COMMANDS_PAGE:
        return COMMAND_ROW.sub(lambda row: f"| [`specpilot {row[1]}`]({page_of(tuple(row[1].split()))}) |", markdown)
    return COMMAND_LINK.sub(
        lambda link: f"[`specpilot {link[1]}{link[2] or ''}`]({page_of(tuple(link[1].split()))})", markdown
    )


def on_page_content(html: str, **_: Any) -> str:
    """Return the page with roles of reStructuredText in docstrings as plain code."""
    return ROLE.sub(r"<code>\1</code>", html)


def packages() -> dict[str, Path]:
    """Return the folder of every package in ``pyproject.toml``, by name of the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {name: ROOT / folder for name, folder in project["tool"]["setuptools"]["package-dir"].items()}


def notebook_paths() -> list[Path]:
    """Return the notebooks in ``docs/notebooks``, sorted by name."""
    return sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def notebook_page(path: Path) -> str:
    """Return the notebook at ``path`` as Markdown, with a link to the file below its title."""
    parts: list[str] = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif source.startswith("%%writefile "):
            name, _, text = source.removeprefix("%%writefile ").partition("\n")
            parts.append(f'```python title="{name}"\n{text}\n```')
        else:
            parts.append(f"```python\n{source}\n```")
        parts += [output for output in map(output_text, cell.get("outputs", ())) if output]
    title, _, remainder = parts[0].partition("\n")
    download = f'<a href="{path.name}" download>Download this page as a Jupyter notebook</a>'
    return "\n\n".join([title, download, remainder.strip(), *parts[1:], ""])


def output_text(output: Mapping[str, Any]) -> str:
    """Return the text of a cell's stored output as Markdown; empty if the output has no text."""
    text = "".join(output.get("text") or output.get("data", {}).get("text/plain", ())).rstrip()
    return f"```text\n{text}\n```" if text else ""


def name_of(words: tuple[str, ...]) -> str:
    """Return the command ``words`` as the user types it."""
    return " ".join(["specpilot", *words])


def page_of(words: tuple[str, ...]) -> str:
    """Return the path of a command's page."""
    return f"commands/{'-'.join(words)}.md"


def command_page(words: tuple[str, ...]) -> tuple[str, str]:
    """Return a command's description and its page, which has the description and the options in ``--help``."""
    description, _ = parse_help(help_of(words))
    lines = [f"# {name_of(words)}", "", description, ""]
    for variant in VARIANTS.get(words, [()]):
        _, options = parse_help(help_of((*words, *variant)))
        lines += [f"## {' '.join(variant)}", ""] if variant else []
        lines += ["| option | type | default | |", "|---|---|---|---|"] if options else []
        lines += [*(f"| {' | '.join(cells)} |" for cells in options), ""]
    return description, "\n".join(lines)


def leaves(commands: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command in ``commands``, each after the words ``path`` of the group."""
    for name, entry in commands.items():
        if isinstance(entry, Mapping):
            yield from leaves(entry, (*path, name))
        else:
            yield (*path, name)


def help_of(words: tuple[str, ...]) -> str:
    """Return the output of ``specpilot WORDS --help``, with a line for each paragraph or option."""
    with patch.dict(os.environ, COLUMNS="100000"), redirect_stdout(io.StringIO()) as out, suppress(SystemExit):
        main([*words, "--help"])
    return out.getvalue()


def parse_help(text: str) -> tuple[str, list[tuple[str, str, str, str]]]:
    """Return the description, and the name, type, default and meaning of each option."""
    _, _, remainder = text.partition("\n\n")  # the usage
    description, _, options = remainder.partition("options:\n")
    entries: list[list[str]] = []
    for line in options.splitlines():
        if match := re.match(r"  (-\S.*?)(?:  +(\S.*))?$", line):
            entries.append([match[1], match[2] or ""])
        elif entries and line.startswith("   "):  # text of the option above; titles of groups are at the margin
            entries[-1][1] += " " + line.strip()
    rows = []
    for names, text_of_option in entries:
        first = names.split()[0].rstrip(",")
        if first in ("-h", "--config", "--print-config"):  # the head of the command reference describes them
            continue
        meaning, kind, default = split_meaning(text_of_option.strip())
        rows.append((f"`{first}`{{ .option }}", escape(kind), default, escape(meaning)))
    return description.strip(), rows


def split_meaning(text: str) -> tuple[str, str, str]:
    """Return meaning, type and default of an option from ``meaning (type: T, default: D)``.

    Type and default are empty if the text does not have this form.
    """
    match = re.match(r"(.*?)\s*\((required, )?type: (.*?)(?:, default: (.*))?\)$", text)
    if match is None:
        return text, "", ""
    default = "**required**" if match[2] else f"`{match[4]}`" if match[4] is not None else ""
    return match[1], match[3], default


def escape(text: str) -> str:
    """Return plain text for the cell of a table."""
    return text.replace("``", "`").replace("|", "\\|").replace("<", "&lt;").replace("][", "]&#91;")


def error_list(patterns: list[str]) -> str:
    """Return a folded list of all ``InputError`` messages of the modules that belong to ``patterns``."""
    messages = [message for module, texts in raising().items() if home(module) in patterns for message in texts]
    body = "\n".join(f"    * {escape(message)}" for message in dict.fromkeys(messages))
    return f'??? note "All messages"\n\n{body}\n'


def home(module: str) -> str:
    """Return the longest pattern of the troubleshooting page that ``module`` matches; empty if none matches."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    patterns = [pattern for group in ERRORS.findall(page) for pattern in group.split()]
    return max((pattern for pattern in patterns if fnmatch(module, pattern)), key=len, default="")


@cache
def raising() -> dict[str, list[str]]:
    """Return the messages of InputError and Misspelt by module, named by its place (``infer.decoder``)."""
    messages: dict[str, list[str]] = {}
    for folder in packages().values():
        for file in sorted(folder.glob("*.py")):
            module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                match node:
                    case ast.Call(func=ast.Name(id="InputError" | "Misspelt"), args=[message, *_]):
                        text = as_text(message)
                        written_out = re.search(r"\w{2}", re.sub("‹.*?›", "", text))
                        messages.setdefault(module, []).extend([text] if written_out else [])
    return messages


def as_text(message: ast.expr) -> str:
    """Return a message with its placeholders as names, such as ‹folder›; empty for other expressions."""
    match message:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(as_text(part) or "…" for part in parts)
        case ast.FormattedValue(value=ast.Name(id=name)) | ast.FormattedValue(value=ast.Attribute(attr=name)):
            return f"‹{name}›"
        case _:
            return ""
