"""The cost model: seconds of drafting and verifying on a machine.

The cost model of SpecDec++ (Huang et al. 2024, eq. 2.1) with two costs more. Verifying n tokens in one forward takes
t_v(n) = t_verify + t_verify_token·n, and a round that drafts takes t_draft_start longer than its draft steps and its
verification: it has a draft to verify, the target reads several tokens, which takes other kernels than one, and the
draft's weights have displaced the target's in the processor's caches. ``specpilot bench cost`` measures it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...common.errors import InputError, is_finite
from ...common.json_file import blaming, build, read_object

LEAST_SHARE = 0.01  # of the time for one token, that a measured ``t_verify_token`` is at least
MEASURE = "measure again with 'specpilot bench cost --output FILE'"


@dataclass(frozen=True)
class CostModel:
    """Costs of one pair on one machine, in seconds.

    Attributes:
        t_draft: time of one draft step: a forward and the draw of a token.
        t_verify: fixed time of one verification.
        t_verify_token: additional time per token of a verification.
        t_draft_start: additional time of a round that drafts, whatever the number of tokens.
    """

    t_draft: float
    t_verify: float
    t_verify_token: float
    t_draft_start: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (value >= 0 and is_finite(value)):
                raise InputError(f"{name}={value}: a cost must be a finite number of seconds ≥ 0; {MEASURE}")
        if self.verification(1) == 0:
            raise InputError(f"t_verify={self.t_verify}: the time of a target forward must be positive; {MEASURE}")

    @property
    def per_token(self) -> float:
        """Cost of one more drafted token: a draft step and one more token to verify."""
        return self.t_draft + self.t_verify_token

    @property
    def never_pays(self) -> bool:
        """Whether a drafted token costs as much as a round without a draft, which gives a token for certain."""
        return self.t_draft >= self.t_verify

    def verification(self, tokens: int) -> float:
        """t_v(n), the time of one target forward over n new ``tokens``."""
        return self.t_verify + self.t_verify_token * tokens

    def round(self, drafted: int, forwards: int | None = None) -> float:
        """Time of a round with ``drafted`` tokens; the target reads them and the token before them.

        Args:
            forwards: of the draft; None: one for each token.
        """
        start = self.t_draft_start if drafted else 0.0
        return start + (drafted if forwards is None else forwards) * self.t_draft + self.verification(drafted + 1)

    def seconds(self, drafted: Any, target_forwards: Any) -> Any:
        """Time of decoding with given numbers of drafted tokens and target forwards (eq. 2.1); numbers or arrays.

        For n drafted tokens n + 1 are verified, so the sums ``per_token`` and ``verification(1)`` suffice. Where
        anything was drafted, all rounds are taken to draft; the counters do not tell which did.
        """
        start = self.t_draft_start * (drafted > 0)
        return self.per_token * drafted + (start + self.verification(1)) * target_forwards

    def throughput(self, generated: Any, drafted: Any, target_forwards: Any) -> Any:
        """Tokens per second from counters; numbers or arrays.

        It equals eq. 2.3, which uses rates: if no output is truncated, drafted tokens are
        generated + discarded - target forwards.
        """
        return generated / self.seconds(drafted, target_forwards)

    def as_dict(self) -> dict[str, float]:
        return asdict(self)

    @classmethod
    def load(cls, file: str | Path | float) -> CostModel:
        """Read the ``cost`` of a file that ``specpilot bench cost --output`` wrote.

        A number instead of a file, such as ``0.2`` or ``"0.2"``, is t_draft / t_verify; times are then in units of a
        verification, which changes no decision.

        Raises:
            InputError: the file does not exist or holds no costs.
        """
        ratio = _number(file)
        if ratio is not None:
            return cls(ratio, 1.0, 0.0)
        document = read_object(str(file), MEASURE)
        with blaming(str(file), MEASURE):
            if "cost" not in document:
                raise InputError("holds no costs of a pair")
            return build(cls, document["cost"], "cost")


def _number(value: str | Path | float) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None
