"""A small model, datasets and the comparison of two runs, for tests of training."""

import csv
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from specpilot.controllers.checkpoints.fingerprint import model_fingerprint
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.acceptance import AcceptanceDatasetBuilder
from specpilot.data_gen.dataset import ShardWriter
from specpilot.data_gen.kinds import AcceptanceRow, Rows
from transformers import PreTrainedModel

from .folders import contents
from .tiny import make

VOCABULARY, HIDDEN = 64, 32


def make_model(seed: int) -> PreTrainedModel:
    return make(seed=seed, vocab=VOCABULARY, hidden=HIDDEN, layers=1)


def make_rows(count: int, seed: int = 0) -> list[AcceptanceRow]:
    """Return rollouts whose acceptance depends on the drafted token, so that a head can learn it."""
    generator = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        length = int(generator.integers(3, 12))
        x, y = (generator.integers(0, VOCABULARY, length).tolist() for _ in range(2))
        p = [0.95 if token % 2 else 0.15 for token in y]
        prompt = generator.integers(0, VOCABULARY, int(generator.integers(2, 9))).tolist()
        rows.append(AcceptanceRow(f"prompt-{number}", f"text {number}", prompt, x, y, p))
    return rows


def write_dataset(folder: Path, rows: list[AcceptanceRow], draft: str) -> Path:
    fingerprint = {"target": "t" * 64, "draft": model_fingerprint(make_model(1)), "tokenizer": "k" * 64}
    identity = {
        "kind": "acceptance",
        "target": "some/target",
        "draft": draft,
        "fingerprint": fingerprint,
        "sampling": SamplingParams(0.8, 20, 0.95).to_dict(),
        "seed": 0,
        "settings": {"max_new_tokens": 12},
    }
    with ShardWriter(folder, identity) as writer:
        for start in range(0, len(rows), 16):
            writer.write(Rows(rows[start : start + 16]))
        writer.complete()
    return folder


def accepted(p: torch.Tensor, q: torch.Tensor, y: torch.Tensor, verifier: str) -> torch.Tensor:
    """Return the probabilities (N,) that the rule accepts the drafted tokens ``y`` (N, 1), for p and q (N, V)."""
    p_y, q_y = p.gather(1, y), q.gather(1, y)
    if verifier == "token-wise":
        return (p_y / q_y).clamp(max=1)[:, 0]
    return torch.where(p_y > 0, 1 / torch.maximum(q, p * q_y / p_y).sum(1, keepdim=True), 0.0)[:, 0]


def assert_labels(builder: AcceptanceDatasetBuilder, rows: Iterable[AcceptanceRow]) -> None:
    """Compare Y and P with plain forwards over single rows, without padding and cache."""
    for row in rows:
        text, start = torch.tensor([row.prompt_ids + row.x]), len(row.prompt_ids) - 1
        p, q = (
            builder.sampling(model.model(input_ids=text).logits[0, start:-1])
            for model in (builder.target, builder.draft)
        )
        y = torch.tensor(row.y)[:, None]
        assert bool((q.gather(1, y) > 0).all())
        assert bool((p.gather(1, torch.tensor(row.x)[:, None]) > 0).all())
        expected = accepted(p, q, y, builder.settings.verifier)
        torch.testing.assert_close(torch.tensor(row.p), expected, rtol=1e-3, atol=1e-5)


def metrics_rows(run: Path) -> list[dict[str, str]]:
    with open(run / "metrics.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def last_weights(run: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    return state


def differ(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    """Return true if two states have other tensors, shapes or values."""
    return first.keys() != second.keys() or not all(torch.equal(first[name], second[name]) for name in first)


def assert_same_run(run: Path, other: Path) -> None:
    names = ("metrics.csv", "result.json", "checkpoints/last.ckpt", "checkpoints/best.ckpt")
    run_files, other_files = map(contents, (run, other))
    assert {name: run_files[name] for name in names} == {name: other_files[name] for name in names}
