"""The router's checkpoint: a folder of ``config.json``, ``model.safetensors`` and ``README.md``, as a head's.

``config.json`` names the target and every arm by fingerprint; a router is refused for any other, and in another order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from ..arms import Arm, check_arms, check_enough
from ..errors import InputError
from ..router.policy import RouterPolicy
from ..sampling import SamplingParams
from .acceptance_head import read_config, read_weights, write_checkpoint
from .controller_config import CONFIG, exactly
from .old_keys import rename_old_keys
from .router_card import model_card

TYPE = "router"
SCHEMA_VERSION = 2
WIDEST = 65536  # a damaged config.json must not build a layer that fills the memory


@dataclass(frozen=True)
class RouterConfig:
    """What a router is and where it came from.

    Attributes:
        hidden_size: d of the embedding, the target's hidden size.
        width: hidden size of the MLP.
        arms: what its outputs stand for, in order.
        target: name of the target model.
        target_fingerprint, tokenizer_fingerprint: hashes of target and tokenizer.
        sampling: sampling settings of the training data.
        reward: ``rouge`` (eq. 2) or ``throughput``.
        alpha: weight of alignment against cost in eq. 2.
        cost: what the cost is made of: ``parameters`` (A.5) or ``time``.
        dataset_fingerprint: SHA-256 of the training data.
        metrics: validation metrics of these weights.
        type: kind of controller.
        schema_version: version of this format.
    """

    hidden_size: int
    width: int
    arms: tuple[Arm, ...]
    target: str
    target_fingerprint: str
    tokenizer_fingerprint: str
    sampling: SamplingParams
    reward: str
    alpha: float
    cost: str
    dataset_fingerprint: str
    metrics: dict[str, float] = field(default_factory=dict)
    type: str = TYPE
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        for name in ("hidden_size", "width"):
            if not 1 <= getattr(self, name) <= WIDEST:
                raise InputError(f"{name}={getattr(self, name)}: must be between 1 and {WIDEST}")
        if not (0 <= self.alpha <= 1 and math.isfinite(self.alpha)):
            raise InputError(f"alpha={self.alpha}: must be in [0, 1]")
        check_enough([arm.name for arm in self.arms])

    def as_dict(self) -> dict[str, Any]:
        data = {"type": self.type, "schema_version": self.schema_version, **asdict(self)}
        return {**data, "arms": [arm.as_dict() for arm in self.arms]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RouterConfig:
        """Read what ``as_dict`` wrote.

        Raises:
            InputError: a controller of another type or of a newer format, an unknown or missing key, a value of the
                wrong type or out of range.
        """
        if data.get("type") != TYPE:
            raise InputError(f"type={data.get('type')!r}: no router; expected {TYPE!r}")
        version = data.get("schema_version")
        if not isinstance(version, int) or version > SCHEMA_VERSION:
            raise InputError(f"schema_version={version}: this version reads up to {SCHEMA_VERSION}; upgrade specpilot")
        data = {**rename_old_keys(data), "schema_version": SCHEMA_VERSION}
        values = exactly(data, {entry.name for entry in fields(cls)}, CONFIG)
        for name, kind in _KINDS.items():
            if not isinstance(values[name], kind) or isinstance(values[name], bool):
                raise InputError(f"{name}={values[name]!r}: has the wrong type in {CONFIG}")
        keys = {entry.name for entry in fields(Arm)}
        arms = tuple(Arm(**exactly(arm, keys, f"arms[{i}]")) for i, arm in enumerate(values["arms"]))
        try:
            sampling = SamplingParams(
                **exactly(values["sampling"], {entry.name for entry in fields(SamplingParams)}, "sampling")
            )
        except TypeError as error:
            raise InputError(f"sampling={values['sampling']}: a value has the wrong type in {CONFIG}") from error
        return cls(**{**values, "arms": arms, "sampling": sampling})

    def check(self, target_fingerprint: str, tokenizer_fingerprint: str, arms: Sequence[Arm]) -> None:
        """Refuse a target, tokenizer or arms other than the router was trained for.

        Raises:
            InputError: naming what differs.
        """
        for what, ours, given in (
            ("target", self.target_fingerprint, target_fingerprint),
            ("tokenizer", self.tokenizer_fingerprint, tokenizer_fingerprint),
        ):
            if ours != given:
                raise InputError(
                    f"the router was trained for target {self.target}, but another {what} is given; load that one, or "
                    "train a router for this one"
                )
        check_arms(self.arms, arms)


_KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("hidden_size", "width"), int),
    **dict.fromkeys(("target", "target_fingerprint", "tokenizer_fingerprint", "reward", "cost"), str),
    **{"alpha": (int, float), "dataset_fingerprint": str, "arms": list, "metrics": dict},
}


@dataclass(frozen=True)
class TrainedRouter:
    """A loaded router: its configuration and its policy, in evaluation mode, float32, on the CPU."""

    config: RouterConfig
    policy: RouterPolicy


def save_router(folder: str | Path, policy: RouterPolicy, config: RouterConfig, *, overwrite: bool = False) -> Path:
    """Write a checkpoint folder; it appears whole or not at all.

    Raises:
        InputError: ``folder`` is taken, the policy's sizes are not the configuration's, a weight is not finite, or the
            disk cannot be written.
    """
    ours, said = (policy.hidden_size, policy.width, policy.arms), (config.hidden_size, config.width, len(config.arms))
    if ours != said:
        raise InputError(f"the policy has sizes {ours}, its config says {said}")
    return write_checkpoint(Path(folder), policy, config.as_dict(), model_card(config), overwrite=overwrite)


def load_router(path_or_hub_id: str | Path, *, revision: str | None = None, token: str | None = None) -> TrainedRouter:
    """Load a router from a local folder, or from the Hugging Face hub by its id.

    Raises:
        InputError: it cannot be found, or its files are missing, truncated, changed or not understood.
    """
    folder, data = read_config(path_or_hub_id, revision=revision, token=token)
    try:
        config = RouterConfig.from_dict(data)
    except InputError as error:
        raise InputError(f"{folder}: {error}") from error
    with torch.device("meta"):  # no memory and no random numbers for weights that are replaced at once
        policy = RouterPolicy(config.hidden_size, len(config.arms), config.width)
    policy.load_state_dict(read_weights(folder, policy), assign=True)
    return TrainedRouter(config, policy.eval().requires_grad_(False))
