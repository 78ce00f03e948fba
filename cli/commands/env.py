"""`specpilot env`: versions and machine for bug reports, and the plan of a decoder on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...common.options import DeviceOptions, DType


@dataclass(frozen=True, kw_only=True)
class EnvOptions(DeviceOptions):
    """Output.

    Options of ``specpilot env``.

    Attributes:
        json: Print one JSON object instead of a table.
        target: Model to load. The output then has its precision, its device, its forward, and the reason for that
            forward.
        draft: Draft model for `target`. The plan then has drafts of four tokens.
        dtype: Precision of `target`.
        graphs: CUDA graphs on a GPU: on, off or compiled.
    """

    json: bool = False
    target: str | None = None
    draft: str | None = None
    dtype: DType = "float32"
    graphs: Literal["on", "off", "compiled"] = "on"


def env(options: EnvOptions) -> None:
    """Print versions and the machine, and a plan with --target."""
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
            value_text = ", ".join(value) or "cpu only" if isinstance(value, list) else value
            print(f"  {name:<18}{value_text}")
    if plan:
        print("plan:", *plan, sep="\n  ")


def plan_lines(options: EnvOptions) -> list[str]:
    """Return the lines of the plan of the models that the options name; empty without a target.

    Raises:
        InputError: the options name a draft without a target, or a model cannot be loaded or decoded.
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
