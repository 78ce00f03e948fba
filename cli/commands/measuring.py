"""Progress and result output of the benchmark commands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...common.options import Options

if TYPE_CHECKING:
    from rich.console import Console


def begin() -> Console:
    """Silence libraries, and return a console on standard error."""
    from ...common.console import quiet, stderr_console

    quiet()
    return stderr_console()


def finish(result: Mapping[str, object], options: Options, output: Path | None = None) -> None:
    """Print a result with options, commit, machine and versions as a line of JSON, and write it to ``output``."""
    import json
    from dataclasses import asdict

    from ...common.files import replacing
    from ...common.machine import commit, machine, versions

    settings = {
        name: value for name, value in asdict(options).items() if name != "output"
    }  # the path does not affect the result
    context = {"settings": settings, "commit": commit(), "machine": machine().to_dict(), "versions": versions()}
    line = json.dumps({**result, **context}, default=str)  # str for paths
    print(line)  # first, so that the result is not lost if the file cannot be written
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        with replacing(output) as file:
            file.write_text(line + "\n", encoding="utf-8")
