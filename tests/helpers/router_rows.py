"""Router datasets from which there is something to learn."""

from pathlib import Path

import numpy as np
from specpilot.common.machine import machine
from specpilot.controllers.arms import Arm
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.dataset import ShardWriter
from specpilot.data_gen.kinds import RouterRow, Rows
from specpilot.data_gen.router_dataset import Times

ARMS = (
    Arm("draft", "one", "a" * 64, parameters=700_000),
    Arm("draft", "two", "b" * 64, parameters=700_000),
    Arm("autoregressive", "autoregressive", parameters=12_000_000),
)
TIMES = Times([0.001, 0.001, 0.004], CostModel(0.001, 0.0039, 0.0001))


def make_router_rows(count: int, seed: int = 0) -> list[RouterRow]:
    """Return rows of two domains, which the embedding's first entry distinguishes; each domain has a best draft."""
    generator = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        kind = number % 2
        x = generator.normal(size=6)
        x[0] = 1.0 if kind else -1.0
        good, bad = generator.uniform(0.7, 0.9), generator.uniform(0.0, 0.2)
        rouge = [bad, good, 0.5] if kind else [good, bad, 0.5]
        shares = [[bad if arm != kind else good] * 12 for arm in range(2)]
        rows.append(RouterRow(f"p{number}", "ab"[kind], "", [1], x.tolist(), [1], [1], [[1]] * 3, rouge, [*shares, []]))
    return rows


def write_router_dataset(folder: Path, rows: list[RouterRow]) -> Path:
    identity = {
        "kind": "router", "target": "some/target", "arms": [arm.to_dict() for arm in ARMS],
        "fingerprint": {"target": "t" * 64, "tokenizer": "k" * 64}, "hidden_size": 6,
        "sampling": SamplingParams(0.8, 20, 0.95).to_dict(), "seed": 0,
    }  # fmt: skip
    with ShardWriter(folder, identity) as writer:
        writer.write(Rows(rows))
        TIMES.save(folder, machine())
        writer.complete()
    return folder
