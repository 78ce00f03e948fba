"""The result of verifying a draft."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Verdict:
    """The draft's tokens at ``path`` are kept, in this order, from the root down; ``token`` follows them.

    Attributes:
        ratios: p(y_i)/q(y_i) of every drafted token, where the rule asks for it of each alone: token-wise.
    """

    path: list[int]
    token: int
    ratios: list[float] = field(default_factory=list)

    @property
    def accepted(self) -> int:
        return len(self.path)


def kept(accepted: int, token: int, ratios: list[float] | None = None) -> Verdict:
    """The verdict on a chain: its first ``accepted`` tokens are kept."""
    return Verdict(list(range(accepted)), token, ratios or [])
