"""What a round with a draft tree costs. Pure arithmetic.

A level of a tree is one forward of the draft over the nodes that get children. A draft's forward over m tokens is taken
to grow with m in the proportion in which the target's does: t_d(m) = t_d·t_v(m)/t_v(1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .cost_model import CostModel


def level_cost(cost: CostModel, nodes: int) -> float:
    """Seconds of one forward of the draft that reads so many ``nodes``."""
    return cost.t_draft * cost.verification(nodes) / cost.verification(1)


def read_cost(cost: CostModel) -> float:
    """Seconds that one node more adds to a forward of the draft."""
    return cost.t_draft * cost.t_verify_token / cost.verification(1)


def tree_cost(cost: CostModel, parents: Sequence[int]) -> float:
    """Seconds of a round that drafts the tree ``parents`` (-1 for children of the root) level by level."""
    depth: list[int] = []
    for parent in parents:
        depth.append(depth[parent] + 1 if parent >= 0 else 0)
    levels = Counter(0 if parent < 0 else depth[parent] + 1 for parent in set(parents))
    start = cost.t_draft_start if parents else 0.0
    return start + sum(level_cost(cost, nodes) for nodes in levels.values()) + cost.verification(len(parents) + 1)
