"""What the pictures of a report show of replayed decoders: speeds by draft length, and on other hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..controllers.length.cost_model import CostModel
from .recorded import Counts, Setting, speed_of

RATIOS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8)  # a drafted token's time to that of a target forward
AS_MEASURED = 0.0  # the parameter of a decoder at the costs that were measured

Replayed = Mapping[Setting, Sequence[Counts]]


def at_ratio(ratio: float) -> CostModel:
    """Costs of hardware on which a drafted token takes ``ratio`` target forwards."""
    return CostModel(ratio, 1.0, 0.0)


def ratio_of(cost: CostModel) -> float:
    """The time of a drafted token to that of a round without drafts."""
    return cost.per_token / cost.round(0)


def by_length(replayed: Replayed, family: str, cost: CostModel) -> list[dict[str, float]]:
    """The speed-up, and its interval, of each draft length of a family of fixed lengths."""
    lengths = sorted(x for name, x in replayed if name == family)
    return [{"length": x, **speed_of(replayed[family, x], cost).as_dict()} for x in lengths]


def by_hardware(replayed: Replayed, names: Sequence[str], cost: CostModel) -> dict[str, Any]:
    """The speed-ups of decoders by the cost ratio.

    A decoder that goes by costs was replayed at each of them; of a family the best member is taken at each ratio.

    Args:
        names: decoders and families.
        cost: the measured one.
    """
    speeds = {}
    for name in names:
        own = {x: counts for (other, x), counts in replayed.items() if other == name}
        repriced = own.keys() >= {AS_MEASURED, *RATIOS}
        speeds[name] = [
            max(speed_of(counts, at_ratio(r)).value for x, counts in own.items() if not repriced or x == r)
            for r in RATIOS
        ]
    return {"ratios": list(RATIOS), "here": ratio_of(cost), "speeds": speeds}
