"""The models and sampling parameters that a controller was trained with."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass

from ...common.errors import InputError
from ..sampling import SamplingParams
from .fingerprint import PairFingerprint

EXACT, TOKENIZER = "exact", "tokenizer"
PAIR_CHECKS = (EXACT, TOKENIZER)  # how alike the models must be
# The verification rules that acceptance is predicted for; data and controllers that name none are of the first.
TOKEN_WISE, INVARIANT = "token-wise", "invariant"


def differ_in_acceptance(trained: str | None, verifier: str) -> bool:
    """Whether drafted tokens are accepted at another rate by ``verifier`` than by the rule of the training data.

    Under ``invariant`` fewer drafted tokens are accepted than under all other rules, which are close to each other.

    Args:
        trained: None if it is not known.
    """
    return trained is not None and (trained == INVARIANT) != (verifier == INVARIANT)


def prompt_digest(prompt: str) -> str:
    """32 bits of a prompt's SHA-256, in hexadecimal: enough to find it among others, and too little to restore it."""
    return hashlib.sha256(prompt.encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Provenance:
    """Names and fingerprints of the models, and sampling parameters of the training data.

    Attributes:
        draft: None for a router, whose drafts are its arms.
        sampling: of the first dataset.
        other_sampling: of the other datasets, where they differ.
        prompts: digests of the prompts that were trained on, see :func:`prompt_digest`; none if they are not known.
        verifier: the verification rule that the data's acceptance probabilities are of.
    """

    target: str
    draft: str | None
    fingerprint: PairFingerprint
    sampling: SamplingParams
    other_sampling: tuple[SamplingParams, ...] = ()
    prompts: tuple[str, ...] = ()
    verifier: str = TOKEN_WISE

    @property
    def samplings(self) -> tuple[SamplingParams, ...]:
        return self.sampling, *self.other_sampling

    def check_pair(self, fingerprint: PairFingerprint, pair_check: str = EXACT) -> None:
        """Compare the models a controller is used on with those it was trained for.

        Args:
            pair_check: ``"exact"`` requires the same models and tokenizer, ``"tokenizer"`` the same tokenizer; other
                models, such as the same ones in another precision or file format, are then a warning.

        Raises:
            InputError: names the parts that differ.
        """
        if pair_check not in PAIR_CHECKS:
            raise InputError(f"pair_check={pair_check!r}: choose one of {', '.join(PAIR_CHECKS)}")
        ours, theirs = self.fingerprint.to_dict(), fingerprint.to_dict()
        differing = [part for part in ours if ours[part] != theirs[part]]
        if not differing:
            return
        names = f"target {self.target}" + ("" if self.draft is None else f" and draft {self.draft}")
        problem = f"the controller was trained for {names}, but another {' and '.join(differing)} is given"
        if pair_check == EXACT or "tokenizer" in differing:
            raise InputError(f"{problem}; load the models it was trained for, or train a controller for these models")
        warnings.warn(f"{problem}: it may predict acceptance less well", stacklevel=4)
