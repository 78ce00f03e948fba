"""`specpilot env`: information for bug reports."""

from __future__ import annotations

from dataclasses import dataclass

from ...common.options import Options


@dataclass(frozen=True, kw_only=True)
class EnvOptions(Options):
    """Output.

    Attributes:
        json: Print one JSON object instead of a table.
    """

    json: bool = False


def env(options: EnvOptions) -> None:
    """Print versions, machine and threads."""
    from ...common.machine import machine, versions

    report = {"versions": versions(), "machine": machine().to_dict()}
    if options.json:
        from json import dumps

        print(dumps(report, indent=2))
        return
    for section, entries in report.items():
        print(f"{section}:")
        for name, value in entries.items():
            shown = ", ".join(value) or "cpu only" if isinstance(value, list) else value
            print(f"  {name:<18}{shown}")
