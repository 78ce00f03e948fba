"""`specpilot env`: information for bug reports."""

from __future__ import annotations

from ..options import EnvOptions


def env(options: EnvOptions) -> None:
    """Print versions, machine, devices and threads."""
    from ..infer.machine import machine, versions

    report = {"versions": versions(), "machine": machine()}
    if options.json:
        from json import dumps

        print(dumps(report, indent=2))
        return
    for section, entries in report.items():
        print(f"{section}:")
        for name, value in entries.items():
            shown = ", ".join(value) or "cpu only" if isinstance(value, list) else value
            print(f"  {name:<18}{shown}")
