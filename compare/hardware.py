"""``--hardware h100:8B/1B``: a cost model computed from a datasheet and the sizes of the models, without measuring.

A forward of few tokens reads all weights once, bytes / bandwidth, and multiplies two times for each weight and token,
2·parameters / (operations per second). Launches of kernels, the reading of keys and values and the host are left out:
on an H200 a step of Llama-3.1-8B took 2.0 times the computed time and one of Llama-3.2-1B 4.7 times (docs/gpu.md), so
that drafts are dearer than computed where small models are bound by launches.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ..common.errors import InputError
from ..controllers.length.cost_model import CostModel
from .comparison import MEASURED


class Datasheet(NamedTuple):
    """GB/s of the memory, and dense TFLOP/s in 16 bits."""

    bandwidth: float
    compute: float


HARDWARE = {
    "b200": Datasheet(8000, 2250), "h200": Datasheet(4800, 989), "h100": Datasheet(3350, 989),
    "mi300x": Datasheet(5300, 1307), "a100": Datasheet(2039, 312), "l40s": Datasheet(864, 362),
    "a10g": Datasheet(600, 70), "l4": Datasheet(300, 121), "t4": Datasheet(320, 65),
    "rtx5090": Datasheet(1792, 210), "rtx4090": Datasheet(1008, 165), "rtx3090": Datasheet(936, 71),
    "m1-max": Datasheet(400, 21), "m2-max": Datasheet(400, 27), "m2-ultra": Datasheet(800, 54),
    "m3-max": Datasheet(400, 28), "m3-ultra": Datasheet(819, 57), "m4": Datasheet(120, 8.5),
    "m4-pro": Datasheet(273, 18), "m4-max": Datasheet(546, 37),
}  # fmt: skip
FORM = re.compile(r"([\w-]+):(\d+(?:\.\d+)?)([BM])/(\d+(?:\.\d+)?)([BM])(?::(\d+))?", re.ASCII | re.IGNORECASE)
UNITS = {"B": 1e9, "M": 1e6}


def computed_cost(hardware: str) -> CostModel:
    """The costs of one request on ``hardware``: ``h100:8B/1B``, or ``m4-max:8B/1B:4`` for weights of 4 bits.

    Raises:
        InputError: it has another form, or names a machine that is not known.
    """
    found = FORM.fullmatch(hardware)
    if found is None:
        raise InputError(
            f"hardware={hardware!r}: give a machine and the sizes of target and draft, as in h100:8B/1B, or "
            "h100:8B/1B:4 for weights of 4 bits"
        )
    name, *sizes = found.groups()
    if name.lower() not in HARDWARE:
        raise InputError(
            f"hardware={hardware!r}: {name} is not known; give one of {', '.join(HARDWARE)}, or "
            "measured costs with --cost"
        )
    sheet, bits = HARDWARE[name.lower()], int(sizes[4] or 16)
    target, draft = (float(sizes[i]) * UNITS[sizes[i + 1].upper()] for i in (0, 2))
    if not (target and draft and 1 <= bits <= 32):
        raise InputError(f"hardware={hardware!r}: sizes must be positive and weights have 1 to 32 bits")
    reading = bits / 8 / (sheet.bandwidth * 1e9)  # seconds a weight
    multiplying = 2 / (sheet.compute * 1e12)  # seconds a weight and token
    return CostModel(draft * (reading + multiplying), target * reading, target * multiplying)


def given_costs(hardware: str | None, cost: str | float | None) -> tuple[CostModel | None, str]:
    """The costs of ``--hardware`` or ``--cost`` and whose they are; None if they are to be measured.

    Raises:
        InputError: both are given, or they cannot be read.
    """
    if hardware is not None:
        if cost is not None:
            raise InputError(f"hardware={hardware!r}: costs are given twice; give one of --hardware and --cost")
        return computed_cost(hardware), f"costs computed from the datasheet for {hardware}, without launches"
    if cost is not None:
        return CostModel.load(cost), f"the costs of {cost}"
    return None, MEASURED
