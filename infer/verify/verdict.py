"""What a verifier says of a draft."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """The draft's tokens at ``path`` are kept, in this order, from the root down; ``token`` follows them."""

    path: list[int]
    token: int

    @property
    def accepted(self) -> int:
        return len(self.path)


def kept(accepted: int, token: int) -> Verdict:
    """The verdict on a chain: its first ``accepted`` tokens are kept."""
    return Verdict(list(range(accepted)), token)
