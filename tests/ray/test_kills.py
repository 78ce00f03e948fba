"""A cluster of two nodes, each in a network namespace where that works, of which parts are killed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console
from specpilot.data_gen.options import AcceptanceDataOptions

from experiments.ray_kills import make_under_kills, rows_per_second

pytest.importorskip("ray", reason="ray is not installed (extra ray): run make test-ray")


SETTINGS = AcceptanceDataOptions(limit=48, max_new_tokens=24, shard_size=2, device="cpu")


@pytest.mark.timeout(900)
def test_workers_nodes_and_drivers_may_be_killed() -> None:
    """With SIGKILL: the dataset is finished with the same bytes, and no finished shard is made again."""
    result = make_under_kills(SETTINGS, 1, Console(stderr=True))
    assert result["bytes_identical"]
    assert result["kills"] == result["kills_survived"] == 3
    assert result["shards_written_twice"] == 0
    assert (result["rows"], result["shards"]) == (48, 24)


def test_rates() -> None:
    assert rows_per_second(replace(SETTINGS, limit=8), 2, Console(stderr=True)) > 0
