"""The source of a decoder's costs: no costs, costs from the user, or a measurement when the models are loaded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias

from ...common.errors import InputError
from ...common.options import AUTO
from .cost_model import CostModel, parse_number, read_costs


@dataclass(frozen=True)
class NoCosts:
    """No costs: the draft length is a number, a threshold decides, or nothing drafts."""

    cost: ClassVar[None] = None
    adapt: ClassVar[bool] = False

    def describe(self) -> str:
        """Return the source as a phrase."""
        return "none"


@dataclass(frozen=True)
class PresetCosts:
    """Costs that exist before the models are loaded.

    Attributes:
        cost: the cost model.
        origin: the origin of the costs as a phrase: the file and its machine, the number, or a measurement.
        adapt: whether the rounds' wall times correct the costs while decoding. If not, the seed determines the drafts.
    """

    cost: CostModel
    origin: str
    adapt: bool = False

    def describe(self) -> str:
        """Return the source as a phrase."""
        return self.origin + (", corrected by the time of each round" if self.adapt else "")


@dataclass(frozen=True)
class MeasuredCosts:
    """Costs that are measured in at most one second when the models are loaded.

    Attributes:
        adapt: whether the rounds' wall times correct the costs while decoding.
    """

    adapt: bool = True

    def describe(self) -> str:
        """Return the source as a phrase."""
        return "measured when the models are loaded" + (", then corrected by the time of each round" * self.adapt)


CostSource: TypeAlias = NoCosts | PresetCosts | MeasuredCosts


def cost_source(
    cost: CostSource | CostModel | str | Path | float | None, *, adapt: bool | Literal["auto"] = "auto"
) -> CostSource:
    """Return the source that the options ``cost`` and ``adapt`` name; a cost file is read, but nothing is measured.

    Args:
        cost: a source, a cost model, a file of ``specpilot bench cost --output``, the time of a draft step in units of
            a verification, ``"auto"`` to measure, or None.
        adapt: whether the rounds' wall times correct ``cost``. ``"auto"`` keeps the choice of a source, and otherwise
            corrects measured costs only.

    Raises:
        InputError: the file is missing or damaged, the number is out of range, or there is no cost to adapt.
    """
    if cost is None:
        if adapt is True:
            raise InputError("adapt: corrects a cost while decoding, but cost is not set; give a cost, or cost='auto'")
        return NoCosts()
    if isinstance(cost, NoCosts | MeasuredCosts | PresetCosts):
        return replace(cost, adapt=adapt) if isinstance(adapt, bool) and not isinstance(cost, NoCosts) else cost
    if cost == AUTO:
        return MeasuredCosts(adapt is not False)
    corrected = adapt is True
    if isinstance(cost, CostModel):
        return PresetCosts(cost, "a cost model passed in Python", corrected)
    ratio = parse_number(cost)
    if ratio is not None:
        return PresetCosts(CostModel.load(cost), f"a cost of {ratio:g} verifications per draft step", corrected)
    read, machine = read_costs(cost)
    origin = f"the costs of {cost}" + ("" if machine is None else f", measured on {machine}")
    return PresetCosts(read, origin, corrected)
