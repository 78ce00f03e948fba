"""What drafting and verifying cost a request that shares its rounds with others.

In a batch of R requests a forward is shared, but reads R times as many tokens: a draft pays the less, the fuller the
batch. ``specpilot bench cost --batch`` measures rounds of several R; the cost model of one request is its share.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ...common.errors import InputError
from ...common.json_file import blaming, build, read_object
from .cost_model import MEASURE, CostModel


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

    def as_dict(self) -> dict[str, dict[str, float]]:
        return {str(rows): cost.as_dict() for rows, cost in zip(self.rows, self.costs, strict=True)}

    @classmethod
    def load(cls, file: str | Path) -> BatchCosts | None:
        """Those in a file of ``specpilot bench cost --batch --output FILE``; None if it holds none.

        Raises:
            InputError: the file is missing or damaged.
        """
        found = read_object(str(file), MEASURE).get("batch")
        if found is None:
            return None
        with blaming(str(file), MEASURE):
            table = build(dict[str, CostModel], found, "batch")
            if not all(name.isdecimal() and len(name) < 10 for name in table):
                raise InputError("batch: a number of requests is expected as key")
            rows = sorted(map(int, table))
            return cls(tuple(rows), tuple(table[str(count)] for count in rows))
