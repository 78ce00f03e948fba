"""The models and sampling parameters that a controller was trained with."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InputError
from ..sampling import SamplingParams
from .fingerprint import PairFingerprint


@dataclass(frozen=True)
class Provenance:
    """Names and fingerprints of the models, and sampling parameters of the training data.

    Attributes:
        draft: None for a router, whose drafts are its arms.
    """

    target: str
    draft: str | None
    fingerprint: PairFingerprint
    sampling: SamplingParams

    def check_pair(self, fingerprint: PairFingerprint) -> None:
        """Raise an InputError that names the differing parts unless ``fingerprint`` is that of the training."""
        ours, theirs = self.fingerprint.as_dict(), fingerprint.as_dict()
        differing = [part for part in ours if ours[part] != theirs[part]]
        if differing:
            names = f"target {self.target}" + ("" if self.draft is None else f" and draft {self.draft}")
            raise InputError(
                f"the controller was trained for {names}, but another {' and '.join(differing)} is given; load "
                "the models it was trained for, or train a controller for these models"
            )
