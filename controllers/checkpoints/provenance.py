"""What a controller was trained for, against what it is used on."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InputError
from ..sampling import SamplingParams
from .fingerprint import PairFingerprint


@dataclass(frozen=True)
class Provenance:
    """Names and fingerprints of the models a controller was trained for, and the sampling of its data.

    Attributes:
        draft: None for a router, whose drafts are its arms.
    """

    target: str
    draft: str | None
    fingerprint: PairFingerprint
    sampling: SamplingParams

    def check_pair(self, fingerprint: PairFingerprint) -> None:
        """Raises InputError, naming what differs, unless these are the models the controller was trained for."""
        ours, theirs = self.fingerprint.as_dict(), fingerprint.as_dict()
        differing = [part for part in ours if ours[part] != theirs[part]]
        if differing:
            names = f"target {self.target}" + ("" if self.draft is None else f" and draft {self.draft}")
            raise InputError(
                f"the controller was trained for {names}, but another {' and '.join(differing)} is given; load "
                "what it was trained for, or train a controller for these models"
            )
