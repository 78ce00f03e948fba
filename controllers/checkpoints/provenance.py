"""The models and sampling parameters that a controller was trained with."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass

from ...common.errors import InputError
from ..sampling import SamplingParams
from .fingerprint import PairFingerprint

EXACT, TOKENIZER = "exact", "tokenizer"
PAIR_CHECKS = (EXACT, TOKENIZER)  # requirements on the models of a decoder
# The verification rules that acceptance is predicted for. Data and controllers without a rule have the first.
TOKEN_WISE, INVARIANT = "token-wise", "invariant"


def differ_in_acceptance(trained: str | None, verifier: str) -> bool:
    """Return true if the acceptance rate under ``verifier`` differs from that under the rule of the training data.

    Under ``invariant`` fewer drafted tokens are accepted than under the other rules, whose acceptance is similar.

    Args:
        trained: the rule of the training data; None if unknown.
        verifier: the rule of the decoder.
    """
    return trained is not None and (trained == INVARIANT) != (verifier == INVARIANT)


def prompt_digest(prompt: str) -> str:
    """Return 32 bits of a prompt's SHA-256, in hexadecimal: enough to recognise a prompt, too few to restore it."""
    return hashlib.sha256(prompt.encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Provenance:
    """Names and fingerprints of the models, and sampling parameters of the training data.

    Attributes:
        target: name of the target.
        draft: name of the draft; None for a router, whose drafts are its arms.
        fingerprint: fingerprints of the models and the tokenizer.
        sampling: sampling parameters of the first dataset.
        other_sampling: sampling parameters of further datasets, if they differ.
        prompts: digests of the training prompts, see :func:`prompt_digest`; empty if unknown.
        verifier: the verification rule of the data's acceptance probabilities.
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
        """Compare the models of a decoder with those that the controller was trained for.

        Args:
            fingerprint: fingerprints of the decoder's models.
            pair_check: ``"exact"`` requires the same models and tokenizer. ``"tokenizer"`` requires the same tokenizer;
                other models, such as the same models in another precision or file format, give a warning.

        Raises:
            InputError: the models differ; the message names the differing parts.
        """
        if pair_check not in PAIR_CHECKS:
            raise InputError(f"pair_check={pair_check!r}: choose one of {', '.join(PAIR_CHECKS)}")
        trained, current = self.fingerprint.to_dict(), fingerprint.to_dict()
        differing = [part for part in trained if trained[part] != current[part]]
        if not differing:
            return
        names = f"target {self.target}" + ("" if self.draft is None else f" and draft {self.draft}")
        problem = f"the controller was trained for {names}, but another {' and '.join(differing)} is given"
        if pair_check == EXACT or "tokenizer" in differing:
            raise InputError(f"{problem}; load the models it was trained for, or train a controller for these models")
        warnings.warn(f"{problem}: it may predict acceptance less well", stacklevel=4)
