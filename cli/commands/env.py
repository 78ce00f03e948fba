"""`specpilot env`: information for bug reports, and how a model would be read here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...common.options import DeviceOptions, DType


@dataclass(frozen=True, kw_only=True)
class EnvOptions(DeviceOptions):
    """Output.

    Attributes:
        json: Print one JSON object instead of a table.
        target: A model to load, to see its precision, its device, and which forward runs and why.
        draft: A draft for `target`; the decoder's plan is then that of four drafted tokens.
        dtype: Precision of `target`.
        graphs: CUDA graphs on a GPU: on, off or compiled.
    """

    json: bool = False
    target: str | None = None
    draft: str | None = None
    dtype: DType = "float32"
    graphs: Literal["on", "off", "compiled"] = "on"


def env(options: EnvOptions) -> None:
    """Print versions and the machine; with --target how it reads."""
    from ...common.machine import machine, versions

    report = {"versions": versions(), "machine": machine().to_dict()}
    plan = plan_lines(options)
    if options.json:
        from json import dumps

        print(dumps(report | ({"plan": plan} if plan else {}), indent=2))
        return
    for section, entries in report.items():
        print(f"{section}:")
        for name, value in entries.items():
            shown = ", ".join(value) or "cpu only" if isinstance(value, list) else value
            print(f"  {name:<18}{shown}")
    if plan:
        print("plan:", *plan, sep="\n  ")


def plan_lines(options: EnvOptions) -> list[str]:
    """The lines of the plan of the models named; none without a target.

    Raises:
        InputError: a draft without a target, or a model that cannot be loaded or decoded.
    """
    from ...common.errors import InputError

    if options.target is None:
        if options.draft is not None:
            raise InputError(f"draft={options.draft!r}: needs a target; pass --target as well")
        return []
    from ...infer.decoder import SpeculativeDecoder

    decoder = SpeculativeDecoder.from_pretrained(
        options.target,
        options.draft,
        length="none" if options.draft is None else 4,
        device=options.device,
        dtype=options.dtype,
        graphs=options.graphs,
    )
    return decoder.plan.describe().splitlines()
