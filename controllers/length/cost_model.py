"""The cost model: seconds of drafting and verifying on a machine.

The cost model is that of SpecDec++ (Huang et al. 2024, eq. 2.1) with two more costs. The verification of n tokens in
one forward takes t_v(n) = t_verify + t_verify_token·n, or on machines where this time is not linear in n,
t_verify + t_verify_token·w(n) (:mod:`.verification_shape`). A round that drafts takes t_draft_start longer than its
draft steps and its verification, for three reasons: the draft must be verified; the target reads several tokens, which
needs other kernels than one token; and the draft's weights have displaced the target's in the processor's caches.
``specpilot bench cost`` measures the costs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...common.errors import InputError, is_finite, naming
from ...common.json_file import build, naming_file, read_object
from ...common.record import Record
from .verification_shape import Shape, check_shape, equivalent_tokens, least_slope

MEASURE = "measure again with 'specpilot bench cost --output FILE'"


@dataclass(frozen=True)
class CostModel(Record):
    """Costs of one pair on one machine, in seconds.

    Attributes:
        t_draft: time of one draft step: a forward and the sampling of a token.
        t_verify: fixed time of one verification.
        t_verify_token: additional time per token of a verification; with a shape the mean over drafts of few tokens.
        t_draft_start: additional time of a round that drafts, independent of the number of tokens.
        verify_shape: the shape of the verification's time over the number of tokens; empty if the time is linear.

    Raises:
        InputError: a cost is negative or not finite, a verification takes no time, or the shape decreases.
    """

    t_draft: float
    t_verify: float
    t_verify_token: float
    t_draft_start: float = 0.0
    verify_shape: Shape = ()

    def __post_init__(self) -> None:
        check_shape(self.verify_shape)
        for name in ("t_draft", "t_verify", "t_verify_token", "t_draft_start"):
            value = getattr(self, name)
            if not (value >= 0 and is_finite(value)):
                raise InputError(f"{name}={value}: a cost must be a finite number of seconds ≥ 0; {MEASURE}")
        if self.verification(1) == 0:
            raise InputError(f"t_verify={self.t_verify}: the time of a target forward must be positive; {MEASURE}")

    @property
    def line(self) -> CostModel:
        """The same costs without a shape, for rounds that several requests share: the shape is that of one request."""
        return replace(self, verify_shape=())

    @property
    def per_token(self) -> float:
        """The mean seconds of one more drafted token: a draft step and one more token to verify."""
        return self.t_draft + self.t_verify_token

    @property
    def never_pays(self) -> bool:
        """Return true if a drafted token takes as long as a round without a draft, which always yields a token."""
        return self.t_draft + (self.least_added(0) - self.t_verify_token) >= self.t_verify

    def verification(self, tokens: float) -> float:
        """Return t_v(n), the seconds of one target forward over n new ``tokens``."""
        return self.t_verify + self.t_verify_token * equivalent_tokens(self.verify_shape, tokens)

    def added(self, drafted: float, tokens: float = 1) -> float:
        """Return the seconds by which ``tokens`` more drafted tokens extend the verification of ``drafted`` tokens."""
        shape = self.verify_shape
        if not shape:
            return self.t_verify_token * tokens
        more = equivalent_tokens(shape, drafted + tokens + 1) - equivalent_tokens(shape, drafted + 1)
        return self.t_verify_token * more

    def least_added(self, drafted: float) -> float:
        """Return the smallest mean time of a token after ``drafted`` drafted tokens in a verification, in seconds.

        The mean time of n further tokens is the time that they add to the verification, divided by n. The result is the
        minimum over all n.
        """
        return self.t_verify_token * least_slope(self.verify_shape, drafted + 1)

    def round(self, drafted: int, forwards: int | None = None) -> float:
        """Return the seconds of a round with ``drafted`` tokens; the target reads them and the token before them.

        Args:
            drafted: number of drafted tokens.
            forwards: number of forwards of the draft model; None for one per token.
        """
        start = self.t_draft_start if drafted else 0.0
        return start + (drafted if forwards is None else forwards) * self.t_draft + self.verification(drafted + 1)

    def deviation(self, rounds: Iterable[Any]) -> Any:
        """Return the equivalent tokens of the verifications of some rounds minus their tokens; 0 for a line.

        Args:
            rounds: number of rounds with 0, 1, … drafted tokens; numbers or arrays.
        """
        shape = self.verify_shape
        return sum(number * (equivalent_tokens(shape, k + 1) - (k + 1)) for k, number in enumerate(rounds))

    def seconds(self, drafted: Any, target_forwards: Any, drafts: Any = None, deviation: Any = 0.0) -> Any:
        """Return the seconds of decoding (eq. 2.1), the sum of :meth:`round` over all rounds.

        Arguments and result are numbers or arrays. A round with n drafted tokens verifies n + 1 tokens. If the
        time of a verification is a line, ``per_token`` and ``verification(1)`` suffice. With a shape, the ``deviation``
        from the line is needed, too.

        Args:
            drafted: number of drafted tokens.
            target_forwards: number of target forwards.
            drafts: number of rounds that drafted; None for all rounds, or for none if nothing was drafted.
            deviation: result of :meth:`deviation` for the rounds.
        """
        started = target_forwards * (drafted > 0) if drafts is None else drafts
        line = self.per_token * drafted + self.verification(1) * target_forwards + self.t_draft_start * started
        return line + self.t_verify_token * deviation

    def throughput(
        self, generated: Any, drafted: Any, target_forwards: Any, drafts: Any = None, deviation: Any = 0.0
    ) -> Any:
        """Return the tokens per second; arguments and result are numbers or arrays.

        The result equals eq. 2.3, which uses rates: if no output is truncated, the number of drafted tokens is
        generated + discarded - target forwards.

        Args:
            generated: number of generated tokens.
            drafted, target_forwards, drafts, deviation: as for :meth:`seconds`.
        """
        return generated / self.seconds(drafted, target_forwards, drafts, deviation)

    def to_dict(self) -> dict[str, Any]:
        """Return the costs as JSON values; without ``verify_shape`` if the time of a verification is a line."""
        values = super().to_dict()
        if not self.verify_shape:
            del values["verify_shape"]
        return values

    @classmethod
    def load(cls, file: str | Path | float) -> CostModel:
        """Return the cost model in a file that ``specpilot bench cost --output`` wrote, or of a number.

        Args:
            file: the file, or a number, such as ``0.2`` or ``"0.2"``: t_draft / t_verify. With a number, times are in
                units of a verification, which changes no decision.

        Raises:
            InputError: the file does not exist, is damaged or has no costs, or the number is negative or not finite.
        """
        ratio = parse_number(file)
        if ratio is not None:
            if not (ratio >= 0 and is_finite(ratio)):
                raise InputError(f"cost={file}: must be a finite number ≥ 0, or a file of costs")
            return cls(ratio, 1.0, 0.0)
        return read_costs(file)[0]


def read_costs(file: str | Path | float) -> tuple[CostModel, str | None]:
    """Return the costs in a file of ``specpilot bench cost``, and the GPU or processor that they were measured on.

    The name of the GPU or processor is None if the file does not have it.

    Raises:
        InputError: the file does not exist, is damaged, or has no costs.
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
    """Return the device on which the costs of ``document`` were measured, a GPU or the processor; None if unknown."""
    machine, settings = document.get("machine"), document.get("settings")
    if not isinstance(machine, dict):
        return None
    on_processor = isinstance(settings, dict) and settings.get("device") == "cpu"
    devices = [] if on_processor else machine.get("devices")
    name = devices[0] if isinstance(devices, list) and devices else machine.get("processor")
    return name if isinstance(name, str) and name else None


def parse_number(value: str | Path | float) -> float | None:
    """Return ``value`` as a number; None if it is not a number, such as the name of a file."""
    try:
        return float(str(value))
    except ValueError:
        return None


ASSUMED = CostModel(0.2, 0.95, 0.05)  # used without a measurement, in units of the verification of one token


@dataclass(frozen=True)
class BatchCosts:
    """Cost models by the number of requests that share a round.

    Attributes:
        rows: B numbers of requests, ascending.
        costs: B cost models, of the share of one request: the seconds of a round divided by its number of requests.

    Raises:
        InputError: there are no costs, or ``rows`` is not ascending.
    """

    rows: tuple[int, ...]
    costs: tuple[CostModel, ...]

    def __post_init__(self) -> None:
        if not self.rows or len(self.rows) != len(self.costs) or list(self.rows) != sorted({*self.rows}):
            raise InputError(f"batch: the batch sizes {self.rows} must ascend, with one cost for each; {MEASURE}")

    @lru_cache(maxsize=1024)  # noqa: B019 - for a few objects that live as long as the process
    def at(self, rows: int) -> CostModel:
        """Return the cost model of the share of one request in a round of ``rows`` requests.

        Costs are interpolated between the measured numbers of requests, and the time of a verification is then linear
        in the number of tokens. Below the smallest and above the largest measured number, the costs of that number are
        used. If drafts never pay with the next larger measured number, they do not pay with ``rows`` requests either.
        Otherwise requests would begin to draft whenever one request of a full batch ends.
        """
        index = bisect_left(self.rows, rows)
        if index == len(self.rows):
            return self.costs[-1]
        if index == 0 or self.rows[index] == rows:
            return self.costs[index]
        low, high = self.rows[index - 1], self.rows[index]
        weight = (rows - low) / (high - low)
        before, after = self.costs[index - 1], self.costs[index]

        def share(first: float, last: float) -> float:
            """Interpolate the cost of the whole round, and return the share of one request."""
            return ((1 - weight) * low * first + weight * high * last) / rows

        t_verify = share(before.t_verify, after.t_verify)
        if after.never_pays:
            return CostModel(t_verify, t_verify, 0.0)
        t_draft, start = share(before.t_draft, after.t_draft), share(before.t_draft_start, after.t_draft_start)
        return CostModel(t_draft, t_verify, share(before.t_verify_token, after.t_verify_token), start)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the costs as JSON values, by the number of requests as text."""
        return {str(rows): cost.to_dict() for rows, cost in zip(self.rows, self.costs, strict=True)}

    @classmethod
    def load(cls, file: str | Path) -> BatchCosts | None:
        """Return the costs by batch size in a file of ``specpilot-vllm bench --cost FILE``; None if it has none.

        Raises:
            InputError: the file is missing or damaged.
        """
        batch = read_object(str(file), MEASURE).get("batch")
        if batch is None:
            return None
        with naming_file(str(file), MEASURE):
            table = build(dict[str, CostModel], batch, "batch")
            if not all(name.isdecimal() and len(name) < 10 for name in table):
                raise InputError("batch: a number of requests is expected as key")
            rows = sorted(map(int, table))
            return cls(tuple(rows), tuple(table[str(count)] for count in rows))


def level_cost(cost: CostModel, nodes: int) -> float:
    """Return the seconds of one forward of the draft model that reads ``nodes`` nodes of a tree.

    More nodes lengthen this forward by the same factor as a verification.
    """
    return cost.t_draft * cost.verification(nodes) / cost.verification(1)


def read_cost(cost: CostModel, nodes: int = 1) -> float:
    """Return the seconds that one more node adds to a forward of the draft model over ``nodes`` nodes of a tree."""
    return cost.t_draft * cost.added(nodes - 1) / cost.verification(1)


def tree_cost(cost: CostModel, parents: Sequence[int]) -> float:
    """Return the seconds of a round that drafts a tree level by level.

    Args:
        parents: the parent of each node; -1 for children of the root.
    """
    depth: list[int] = []
    for parent in parents:
        depth.append(depth[parent] + 1 if parent >= 0 else 0)
    levels = Counter(0 if parent < 0 else depth[parent] + 1 for parent in set(parents))
    start = cost.t_draft_start if parents else 0.0
    return start + sum(level_cost(cost, nodes) for nodes in levels.values()) + cost.verification(len(parents) + 1)
