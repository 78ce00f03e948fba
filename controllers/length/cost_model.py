"""The cost model: seconds of drafting and verifying on a machine.

The cost model of SpecDec++ (Huang et al. 2024, eq. 2.1) with two costs more. Verifying n tokens in one forward takes
t_v(n) = t_verify + t_verify_token·n, and a round that drafts takes t_draft_start longer than its draft steps and its
verification: it has a draft to verify, the target reads several tokens, which takes other kernels than one, and the
draft's weights have displaced the target's in the processor's caches. ``specpilot bench cost`` measures it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...common.errors import InputError, is_finite, naming
from ...common.json_file import build, naming_file, read_object

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

    def seconds(self, drafted: Any, target_forwards: Any, drafts: Any = None) -> Any:
        """Time of decoding with given numbers of drafted tokens and target forwards (eq. 2.1); numbers or arrays.

        For n drafted tokens n + 1 are verified, so the sums ``per_token`` and ``verification(1)`` suffice.

        Args:
            drafts: rounds that drafted; None: all of them where anything was drafted.
        """
        started = target_forwards * (drafted > 0) if drafts is None else drafts
        return self.per_token * drafted + self.verification(1) * target_forwards + self.t_draft_start * started

    def throughput(self, generated: Any, drafted: Any, target_forwards: Any, drafts: Any = None) -> Any:
        """Tokens per second from counters; numbers or arrays.

        It equals eq. 2.3, which uses rates: if no output is truncated, drafted tokens are
        generated + discarded - target forwards.
        """
        return generated / self.seconds(drafted, target_forwards, drafts)

    def to_dict(self) -> dict[str, float]:
        return asdict(self)

    @classmethod
    def load(cls, file: str | Path | float) -> CostModel:
        """Read the ``cost`` of a file that ``specpilot bench cost --output`` wrote.

        A number instead of a file, such as ``0.2`` or ``"0.2"``, is t_draft / t_verify; times are then in units of a
        verification, which changes no decision.

        Raises:
            InputError: the file does not exist or holds no costs, or the number is none that a cost can be.
        """
        ratio = as_number(file)
        if ratio is not None:
            if not (ratio >= 0 and is_finite(ratio)):
                raise InputError(f"cost={file}: must be a finite number ≥ 0, or a file of costs")
            return cls(ratio, 1.0, 0.0)
        return read_costs(file)[0]


def read_costs(file: str | Path | float) -> tuple[CostModel, str | None]:
    """The costs in a file of ``specpilot bench cost``, and the machine that they were measured on, if it names one.

    Raises:
        InputError: the file does not exist or holds no costs.
    """
    with naming("cost", file):
        if not Path(str(file)).expanduser().exists():
            raise InputError(
                f"{file}: no such file; give one that 'specpilot bench cost --output FILE' wrote, or the cost of a "
                "draft step in units of a verification, such as 0.2"
            )
        document = read_object(str(file), MEASURE)
        with naming_file(str(file), MEASURE):
            if "cost" not in document:
                raise InputError("holds no costs of a pair")
            return build(CostModel, document["cost"], "cost"), _machine(document)


def _machine(document: Mapping[str, Any]) -> str | None:
    """The device that the costs of ``document`` were measured on: a GPU, or the processor; None if it names none."""
    machine, settings = document.get("machine"), document.get("settings")
    if not isinstance(machine, dict):
        return None
    on_processor = isinstance(settings, dict) and settings.get("device") == "cpu"
    devices = [] if on_processor else machine.get("devices")
    name = devices[0] if isinstance(devices, list) and devices else machine.get("processor")
    return name if isinstance(name, str) and name else None


def as_number(value: str | Path | float) -> float | None:
    """``value`` as a number; None if it is not a number, as the name of a file."""
    try:
        return float(str(value))
    except ValueError:
        return None


ASSUMED = CostModel(0.2, 0.95, 0.05)  # where nothing was measured, in units of a verification of one token


@dataclass(frozen=True)
class BatchCosts:
    """Cost models by the number of requests that share a round.

    Attributes:
        rows: numbers of requests, ascending.
        costs: for each, the share of one request: seconds of the round divided by the number of requests.

    Raises:
        InputError: there are none, or ``rows`` is not ascending.
    """

    rows: tuple[int, ...]
    costs: tuple[CostModel, ...]

    def __post_init__(self) -> None:
        if not self.rows or len(self.rows) != len(self.costs) or list(self.rows) != sorted({*self.rows}):
            raise InputError(f"batch: costs of {self.rows} requests; {MEASURE}")

    @lru_cache(maxsize=1024)  # noqa: B019 - of a few objects that live as long as the process
    def at(self, rows: int) -> CostModel:
        """The cost model of one of ``rows`` requests: interpolated between those measured, the last one beyond them.

        If drafts do not pay with the next larger number that was measured, where a token is as dear as a round, they do
        not pay here either: else requests would begin to draft whenever one of a full batch ends.
        """
        place = bisect_left(self.rows, rows)
        if place == len(self.rows):
            return self.costs[-1]
        if place == 0 or self.rows[place] == rows:
            return self.costs[place]
        low, high = self.rows[place - 1], self.rows[place]
        weight = (rows - low) / (high - low)
        before, after = self.costs[place - 1], self.costs[place]

        def share(first: float, last: float) -> float:
            """Of the whole round, which grows with the rows; then the share."""
            return ((1 - weight) * low * first + weight * high * last) / rows

        t_verify = share(before.t_verify, after.t_verify)
        if after.never_pays:
            return CostModel(t_verify, t_verify, 0.0)
        t_draft, start = share(before.t_draft, after.t_draft), share(before.t_draft_start, after.t_draft_start)
        return CostModel(t_draft, t_verify, share(before.t_verify_token, after.t_verify_token), start)

    def to_dict(self) -> dict[str, dict[str, float]]:
        return {str(rows): cost.to_dict() for rows, cost in zip(self.rows, self.costs, strict=True)}

    @classmethod
    def load(cls, file: str | Path) -> BatchCosts | None:
        """Those in a file of ``specpilot-vllm bench --cost FILE``; None if it holds none.

        Raises:
            InputError: the file is missing or damaged.
        """
        found = read_object(str(file), MEASURE).get("batch")
        if found is None:
            return None
        with naming_file(str(file), MEASURE):
            table = build(dict[str, CostModel], found, "batch")
            if not all(name.isdecimal() and len(name) < 10 for name in table):
                raise InputError("batch: a number of requests is expected as key")
            rows = sorted(map(int, table))
            return cls(tuple(rows), tuple(table[str(count)] for count in rows))


def level_cost(cost: CostModel, nodes: int) -> float:
    """Seconds of one forward of the draft that reads so many ``nodes``."""
    return cost.t_draft * cost.verification(nodes) / cost.verification(1)


def read_cost(cost: CostModel) -> float:
    """Seconds that one node more adds to a forward of the draft."""
    return cost.t_draft * cost.t_verify_token / cost.verification(1)


def tree_cost(cost: CostModel, parents: Sequence[int]) -> float:
    """Seconds of a round that drafts the tree ``parents`` (-1 for children of the root) level by level."""
    depth: list[int] = []
    for parent in parents:
        depth.append(depth[parent] + 1 if parent >= 0 else 0)
    levels = Counter(0 if parent < 0 else depth[parent] + 1 for parent in set(parents))
    start = cost.t_draft_start if parents else 0.0
    return start + sum(level_cost(cost, nodes) for nodes in levels.values()) + cost.verification(len(parents) + 1)
