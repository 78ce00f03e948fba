"""Agreement of a draft with the target, by domain."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from specpilot.compare.table import Row
from specpilot.data_gen.acceptance import make_acceptance_data
from specpilot.data_gen.kinds import AcceptanceRow, read_dataset
from specpilot.data_gen.options import AcceptanceDataOptions


@dataclass(frozen=True)
class Agreement:
    """Over all positions of the target's rollouts in one domain, at temperature 1 and top-k 50.

    Attributes:
        mean: mean of a = min(1, p(y)/q(y)) for y drawn from the draft.
        hard: share of positions with a < 0.3.
    """

    domain: str
    prompts: int
    mean: float
    hard: float

    def row(self) -> Row:
        """Its row in a table."""
        return {
            "domain": self.domain,
            "prompts": str(self.prompts),
            "mean a": f"{self.mean:.3f}",
            "share of positions with a < 0.3": f"{self.hard:.3f}",
        }


def measure_agreement(
    target: Path, draft: Path, held_out: Path, domains: dict[str, str], folder: Path, seed: int
) -> list[Agreement]:
    """Roll the target out on the prompts of the JSON Lines file ``held_out``; ``domains`` maps their ids to domains."""
    settings = AcceptanceDataOptions(
        target=str(target), draft=str(draft), prompts=str(held_out), max_new_tokens=96, seed=seed
    )
    make_acceptance_data(settings, folder)
    by_domain: dict[str, list[list[float]]] = {}
    for row in read_dataset(folder, AcceptanceRow):
        by_domain.setdefault(domains[row.prompt_id], []).append(row.p)
    result = []
    for domain, rows in sorted(by_domain.items()):
        a = torch.tensor([p for row in rows for p in row])
        result.append(Agreement(domain, len(rows), float(a.mean()), float((a < 0.3).float().mean())))
    return result
