"""Router datasets in memory, and the rewards of arms for their prompts.

Rewards are the paper's proxy (Huang et al. 2024, eq. 1, 2 and A.5) or the expected throughput. They are computed from
the stored dataset when they are needed, so that α, cost and machine can change without new rollouts. Measured times are
in a separate file, because shards and manifest must be the same bytes for killed and resumed runs. Shapes: N prompts,
A arms.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..common.errors import InputError
from ..common.files import replacing
from ..common.json_file import build, naming_file, read_object
from ..common.machine import Machine
from ..controllers.arms import Arm
from ..controllers.length.cost_model import CostModel
from .dataset import ENOUGH, Manifest, read_manifest
from .kinds import RouterRow, read_dataset

TIMES = "times.json"
LONGEST_CONSIDERED = 10  # longest draft from which the best length is chosen

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Times:
    """Times that were measured when the data was made.

    Attributes:
        arms: seconds per token of each arm.
        verify: the target's cost of verification.
    """

    arms: list[float]
    verify: CostModel

    def save(self, folder: Path, machine: Machine) -> None:
        """Write the times and the machine to a file in ``folder``."""
        document = {"seconds_per_token": self.arms, "cost": self.verify.to_dict(), "machine": machine.to_dict()}
        with replacing(folder / TIMES) as temporary:
            temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> Times:
        """Return the times of the dataset in ``folder``.

        Raises:
            InputError: the file of times is missing or damaged.
        """
        file, remedy = Path(folder) / TIMES, "run 'specpilot data router' again to measure them"
        document = read_object(file, remedy)
        with naming_file(file, remedy):
            arms = build(list[float], document.get("seconds_per_token"), "seconds_per_token")
            return cls(arms, build(CostModel, document.get("cost"), "cost"))


@dataclass(frozen=True)
class RouterDataset:
    """A router dataset in memory.

    Attributes:
        manifest: the manifest; for several datasets together their joint manifest.
        arms: the A arms, in the order of the lists in rows.
        rows: the N prompts.
        times: the times that were measured when the data was made; for several datasets those of the first one.
    """

    manifest: Manifest
    arms: tuple[Arm, ...]
    rows: list[RouterRow]
    times: Times


def read_router_dataset(folder: str | Path) -> RouterDataset:
    """Return a complete router dataset after validation.

    Raises:
        InputError: the folder is not a router dataset, or it is incomplete or damaged.
    """
    manifest = read_manifest(folder, RouterRow.kind, complete=True)
    rows = read_dataset(folder, RouterRow)
    arms = tuple(manifest.arms)
    times = Times.load(folder)
    for row in rows:
        if not len(row.outputs) == len(row.rouge) == len(row.overlap) == len(arms) == len(times.arms):
            raise InputError(f"prompt {row.prompt_id!r}: must have {len(arms)} arms; generate the data again")
    check_router_answers(folder, manifest, rows)
    return RouterDataset(manifest, arms, rows, times)


def check_router_answers(folder: str | Path, manifest: Manifest, rows: Sequence[RouterRow]) -> None:
    """Raise InputError if no greedy answer of the target has more than its end token, though more were allowed."""
    if manifest.allows_answers and len(rows) >= ENOUGH and all(len(row.greedy) <= 1 for row in rows):
        raise InputError(
            f"{folder}: the target's answers to {len(rows)} prompts are all empty; remove the folder and make the data "
            "again, of prompts in the form that the model was trained with, by --chat or --no-chat"
        )


def rewards(
    data: RouterDataset, reward: str, *, alpha: float = 0.5, cost: str = "parameters", length: int | None = None
) -> Array:
    """Return the reward (N, A) of every arm for every prompt.

    Args:
        data: the dataset.
        reward: ``rouge``: s = α·f + (1 - α)·c (eq. 2); ``throughput``: see :func:`speedups`.
        alpha: weight α of eq. 2.
        cost: the cost c of eq. 2, ``parameters`` or ``time``.
        length: draft length for the throughput; None for the best length for each prompt and arm.

    Raises:
        InputError: a reward is NaN or infinite; the message names the prompt and the arm.
    """
    if reward == "throughput":
        values = np.array([speedups(row, data.arms, data.times, length) for row in data.rows])
    else:
        c = parameter_costs([arm.parameters for arm in data.arms]) if cost == "parameters" else time_costs(data.times)
        values = alpha * np.array([row.rouge for row in data.rows]) + (1 - alpha) * c
    for row, arm in np.argwhere(~np.isfinite(values)):
        raise InputError(
            f"prompt {data.rows[row].prompt_id!r}, arm {data.arms[arm].name!r}: the reward is {values[row, arm]}; "
            "generate the data again"
        )
    return values


def parameter_costs(parameters: Sequence[int]) -> Array:
    """Return the costs (A,) by A.5: c_j = 1 - e^{P_j} / e^{P_max}, with P in billions; 0 for the largest arm."""
    billions = np.array(parameters) / 1e9
    return np.asarray(1 - np.exp(billions - billions.max()))


def time_costs(times: Times) -> Array:
    """Return the costs (A,) c_j = 1 - t_j / t_max by measured seconds per token; 0 for the slowest arm."""
    seconds = np.array(times.arms)
    return np.asarray(1 - seconds / seconds.max())


def speedups(row: RouterRow, arms: Sequence[Arm], times: Times, length: int | None) -> list[float]:
    """Return the expected throughput (A,) of each arm for a prompt, relative to the target alone.

    It is 1 for an arm without drafts.

    Args:
        row: the prompt, with the acceptance probabilities of each arm along the target's output.
        arms: the arms.
        times: the times of a draft step of each arm and of a verification.
        length: the draft length; None for the best length of each arm.
    """
    target_rate = 1 / times.verify.verification(1)
    ratios = []
    for arm, seconds, shares in zip(arms, times.arms, row.overlap, strict=True):
        if arm.kind == "autoregressive":
            ratios.append(1.0)
            continue
        cost = replace(times.verify, t_draft=seconds)
        tokens = round_tokens(shares, length or LONGEST_CONSIDERED)
        lengths = range(1, len(tokens)) if length is None else [length]
        ratios.append(max(tokens[k] / cost.round(k) for k in lengths) / target_rate)
    return ratios


def round_tokens(overlap: Sequence[float], longest: int) -> list[float]:
    """Return the expected tokens of a round with K = 0, 1, … ``longest`` drafted tokens.

    They are 1 + Σ_k mean over starts t of a_t … a_{t+k-1}. Means are over starts t whose k tokens are within the text.

    Args:
        overlap: the a_i along the target's output, which has the same distribution as the accepted tokens of rounds.
        longest: the largest number of drafted tokens.
    """
    a = np.array(overlap)
    if not len(a):
        return [math.nan] * (longest + 1)
    tokens, survival = [1.0], np.ones(len(a) + 1)
    for k in range(1, longest + 1):
        if k <= len(a):
            survival = survival[: len(a) - k + 1] * a[k - 1 :]  # (T - k + 1,): Π of k in a row
        tokens.append(tokens[-1] + (float(survival.mean()) if k <= len(a) else 0.0))
    return tokens
