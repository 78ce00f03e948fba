"""What a controller was trained for, against what it is used on."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from ..errors import InputError
from ..sampling import SamplingParams
from .fingerprint import PairFingerprint


@dataclass(frozen=True)
class Provenance:
    """Names and fingerprints of the pair a controller was trained for, and the sampling of its data."""

    target: str
    draft: str
    fingerprint: PairFingerprint
    sampling: SamplingParams

    def check_pair(self, fingerprint: PairFingerprint) -> None:
        """Raises InputError, naming what differs, unless this is the model pair the controller was trained for."""
        ours, theirs = self.fingerprint.as_dict(), fingerprint.as_dict()
        differing = [part for part in ours if ours[part] != theirs[part]]
        if differing:
            raise InputError(
                f"the controller was trained for target {self.target} and draft {self.draft}, but "
                f"another {' and '.join(differing)} is given; load that pair, or train a controller for this one"
            )

    def check_sampling(self, sampling: SamplingParams) -> None:
        """Warns if ``sampling`` is not the one of the training data: the text stays correct, the stops may be worse."""
        if sampling != self.sampling:
            warnings.warn(
                f"the controller was trained under {self.sampling}, decoding uses {sampling}: the output stays exact, "
                "but drafts may stop too early or too late",
                stacklevel=2,
            )
