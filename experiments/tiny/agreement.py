"""Agreement of a draft with the target, by domain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from specpilot.compare.table import Row
from specpilot.data_gen.acceptance import make_acceptance_data
from specpilot.data_gen.kinds import AcceptanceRow, read_dataset
from specpilot.data_gen.options import AcceptanceDataOptions
from torch import Tensor

HARD = 0.3


def agreement_row(rows: Sequence[Tensor]) -> Row:
    """A row of a table: the mean of the acceptance probabilities in ``rows``, and the share of them below 0.3.

    Args:
        rows: (T,) those of each prompt.
    """
    a = torch.cat([*rows])
    return {
        "prompts": str(len(rows)),
        "mean a": f"{float(a.mean()):.3f}",
        f"share of positions with a < {HARD}": f"{float((a < HARD).float().mean()):.3f}",
    }


def measure_agreement(
    target: Path, draft: Path, held_out: Path, domains: dict[str, str], folder: Path, seed: int
) -> list[Row]:
    """Over all positions of the target's rollouts from the prompts of the JSON Lines file ``held_out``, by domain.

    Temperature 1, top-k 50; a = min(1, p(y)/q(y)) for y drawn from the draft. ``domains`` maps prompts' ids to domains.
    """
    settings = AcceptanceDataOptions(
        target=str(target), draft=str(draft), prompts=str(held_out), max_new_tokens=96, seed=seed
    )
    make_acceptance_data(settings, folder)
    by_domain: dict[str, list[Tensor]] = {}
    for row in read_dataset(folder, AcceptanceRow):
        by_domain.setdefault(domains[row.prompt_id], []).append(torch.tensor(row.p))
    return [{"domain": domain, **agreement_row(rows)} for domain, rows in sorted(by_domain.items())]
