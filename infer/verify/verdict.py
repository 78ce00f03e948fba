"""What a verifier says of a draft."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """``accepted`` tokens of the draft are kept, from the front; ``token`` follows them."""

    accepted: int
    token: int
