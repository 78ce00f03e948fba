"""`specpilot env`: what a bug report needs."""

from __future__ import annotations


def env(*, json: bool = False) -> None:
    """Print versions, machine, devices and threads.

    Args:
        json: Print one JSON object instead of a table.
    """
    from ..infer.machine import machine, versions

    report = {"versions": versions(), "machine": machine()}
    if json:
        from json import dumps

        print(dumps(report, indent=2))
        return
    for section, entries in report.items():
        print(f"{section}:")
        for name, value in entries.items():
            shown = ", ".join(value) or "cpu only" if isinstance(value, list) else value
            print(f"  {name:<18}{shown}")
