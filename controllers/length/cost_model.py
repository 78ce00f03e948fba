"""What drafting and verifying cost in seconds: all that a length controller needs to know of a machine.

The cost model of SpecDec++ (Huang et al. 2024, eq. 2.1) with a cost for every token that the target reads: verifying n
tokens in one forward takes t_v(n) = t_verify + t_verify_token·n. ``specpilot bench cost`` measures it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..json_file import blaming, build, read_object

MEASURE = "measure again with 'specpilot bench cost --output FILE'"


@dataclass(frozen=True)
class CostModel:
    """Costs of one pair on one machine, in seconds.

    Attributes:
        t_draft: one step of the draft: its forward and the choice of a token.
        t_verify: one verification, whatever it reads.
        t_verify_token: each token that a verification reads.
    """

    t_draft: float
    t_verify: float
    t_verify_token: float

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (value >= 0 and math.isfinite(value)):
                raise InputError(f"{name}={value}: a cost must be a finite number of seconds ≥ 0; {MEASURE}")
        if self.verification(1) == 0:
            raise InputError(f"t_verify={self.t_verify}: the target's forward takes time; {MEASURE}")

    @property
    def per_token(self) -> float:
        """What one more drafted token costs: a draft step, and one more token to verify."""
        return self.t_draft + self.t_verify_token

    def verification(self, tokens: int) -> float:
        """t_v(n): one forward of the target over n new ``tokens``."""
        return self.t_verify + self.t_verify_token * tokens

    def round(self, drafted: int) -> float:
        """A round that drafts so many tokens: the target reads them and the token before them."""
        return drafted * self.t_draft + self.verification(drafted + 1)

    def seconds(self, drafted: Any, target_forwards: Any) -> Any:
        """Decoding with so many drafted tokens and target forwards (eq. 2.1); numbers, or arrays of them.

        It takes the sums ``per_token`` and ``verification(1)`` only: a chain of n drafted tokens makes n + 1 verified.
        """
        return self.per_token * drafted + self.verification(1) * target_forwards

    def throughput(self, generated: Any, drafted: Any, target_forwards: Any) -> Any:
        """Tokens per second from counters, numbers or arrays of them.

        Eq. 2.3 gives the same number from rates: where no output is trimmed, drafted tokens are
        generated + discarded - target forwards.
        """
        return generated / self.seconds(drafted, target_forwards)

    def as_dict(self) -> dict[str, float]:
        return asdict(self)

    @classmethod
    def load(cls, file: str | Path | float) -> CostModel:
        """Read the ``cost`` of a file that ``specpilot bench cost --output`` wrote.

        A number instead of a file, such as ``0.2`` or ``"0.2"``, is t_draft / t_verify: times then are in
        verifications, which changes no decision.

        Raises:
            InputError: there is no such file, or no costs in it.
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
