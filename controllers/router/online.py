"""A router that keeps learning while it is used: LinUCB (Li et al. 2010), initialised with the offline policy.

The context z is the policy's output π(·|x), (A,): queries with similar output share what is learned, so a few dozen
generations suffice. The reward is tokens per second divided by the running mean, which removes the machine's speed.
Each arm has a ridge regression r ≈ θ_a·z with a prior centred at ``1 + trust·(π_a - mean π)``, so that the best arm is
initially the policy's.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ...common.errors import InputError, is_finite
from ...common.files import replacing
from ...common.json_file import blaming, build, parse_object
from ..checkpoints.fingerprint import weights_digest
from ..sampling import SamplingParams
from .base import Router, certain
from .policy import PolicyRouter

KIND = "online-router"
SAVE_AGAIN = "save the router again"


@dataclass(frozen=True)
class OnlineState:
    """State of a saved router besides its regressions.

    Attributes:
        policy: digest of the policy's weights.
        explore, seen, mean: see :class:`OnlineRouter`.
        counts: number of generations by arm.
    """

    kind: str
    schema_version: int
    policy: str
    explore: float
    seen: int
    mean: float
    counts: list[int]


class OnlineRouter(Router):
    """LinUCB over the arms of a trained policy.

    Args:
        policy: the offline policy.
        explore: width of the confidence bound; 0 always takes the arm of the highest estimate.
        trust: prior advantage of an arm of probability 1 in the policy, as a share of the mean rate.
        weight: weight of the prior, in generations.

    Attributes:
        counts: number of generations by arm.
    """

    def __init__(self, policy: PolicyRouter, *, explore: float = 0.1, trust: float = 0.2, weight: float = 2.0) -> None:
        for name, value, least in (("explore", explore, 0.0), ("trust", trust, 0.0), ("weight", weight, 1e-9)):
            if not (value >= least and is_finite(value)):
                raise InputError(f"{name}={value}: must be a finite number, {'positive' if least else '0 or more'}")
        self.policy, self.explore, self.arms = policy, explore, policy.arms
        arms = self.arms
        self.counts = [0] * arms
        self.seen, self.mean = 0, 0.0
        # z sums to 1, so θ_a·z = 1 + trust·(z_a - 1/A) with these rows.
        prior = 1 + trust * (np.eye(arms) - 1 / arms)
        self.precision = np.stack([weight * np.eye(arms)] * arms)  # (A, A, A)
        self.moment = weight * prior  # (A, A)

    def check_sampling(self, sampling: SamplingParams) -> None:
        self.policy.check_sampling(sampling)

    def bounds(self, embedding: Tensor) -> list[float]:
        """Upper confidence bound of each arm's reward."""
        z = np.array(self.policy.probabilities(embedding))
        found = []
        for precision, moment in zip(self.precision, self.moment, strict=True):
            spread = np.linalg.solve(precision, z)
            found.append(float(spread @ moment + self.explore * math.sqrt(spread @ z)))
        return found

    def weigh(self, embedding: Tensor) -> list[float]:
        bounds = self.bounds(embedding)
        return certain(bounds.index(max(bounds)), self.arms)

    def learn(self, embedding: Tensor, arm: int, rate: float) -> None:
        self.seen += 1
        self.mean += (rate - self.mean) / self.seen
        z = np.array(self.policy.probabilities(embedding))
        self.counts[arm] += 1
        self.precision[arm] += np.outer(z, z)
        self.moment[arm] += rate / self.mean * z

    def save(self, file: str | Path) -> Path:
        """Write the learned state to one safetensors file, atomically.

        Raises:
            InputError: the file cannot be written.
        """
        file = Path(file)
        digest = weights_digest(self.policy.policy)
        state = OnlineState(KIND, 1, digest, self.explore, self.seen, self.mean, self.counts)
        tensors = {"precision": torch.from_numpy(self.precision), "moment": torch.from_numpy(self.moment)}
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(file) as temporary:
                temporary.write_bytes(save(tensors, {"state": json.dumps(asdict(state))}))
        except OSError as error:
            raise InputError(f"{file}: cannot be written ({error.strerror}); choose another place") from error
        return file

    @classmethod
    def load(cls, file: str | Path, policy: PolicyRouter) -> OnlineRouter:
        """Load a router written by :meth:`save`, for the same policy.

        Raises:
            InputError: the file is missing, damaged or of another kind, or belongs to another policy.
        """
        try:
            with safe_open(file, framework="pt") as opened:
                found = {name: opened.get_tensor(name).numpy() for name in opened.keys()}  # noqa: SIM118 - no mapping
                text = (opened.metadata() or {}).get("state", "{}")
        except (OSError, SafetensorError) as error:
            raise InputError(f"{file}: not a readable router state ({error}); {SAVE_AGAIN}") from error
        with blaming(file, SAVE_AGAIN):
            state = build(OnlineState, parse_object(text))
            if (state.kind, state.schema_version) != (KIND, 1):
                raise InputError(f"kind={state.kind!r}, schema_version={state.schema_version}: not supported")
            arms = policy.arms
            shapes = {name: list(value.shape) for name, value in found.items()}
            expected = {"precision": [arms, arms, arms], "moment": [arms, arms]}
            if len(state.counts) != arms or shapes != expected:
                raise InputError(f"counts={state.counts}: must have {arms} arms")
            if not all(np.isfinite(value).all() for value in found.values()):
                raise InputError("holds numbers that are not finite")
        if state.policy != weights_digest(policy.policy):
            raise InputError(f"{file}: belongs to another policy; give the policy it was saved with")
        router = cls(policy, explore=state.explore)
        router.seen, router.mean, router.counts = state.seen, state.mean, list(state.counts)
        router.precision, router.moment = found["precision"].copy(), found["moment"].copy()
        return router
