"""What a controller's ``config.json`` says, and the checks it must pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ..acceptance.calibration import parse_calibration
from ..errors import InputError
from ..sampling import SamplingParams
from .fingerprint import PairFingerprint
from .old_keys import rename_old_keys

TYPE = "acceptance-head"
SCHEMA_VERSION = 2
MAX_DEPTH = 64  # deeper than any head of use: a damaged config.json must not build a million blocks
CONFIG = "config.json"


@dataclass(frozen=True)
class ControllerConfig:
    """What an acceptance head is and where it came from.

    Attributes:
        hidden_size: the draft's hidden size d.
        depth: residual blocks D.
        target: name of the target model.
        draft: name of the draft model.
        fingerprint: hashes of target, draft and tokenizer.
        sampling: sampling settings of the training data.
        w_acc: loss weight of acceptance.
        w_rej: loss weight of rejection.
        mixing: share of target tokens in the training sequences.
        threshold: stop drafting when the chance of a rejection so far exceeds it.
        threshold_source: how the threshold was chosen, in words.
        dataset_fingerprint: SHA-256 of the training data.
        metrics: validation metrics of these weights.
        calibration: how to turn the head's logits into calibrated probabilities (see :mod:`.calibration`); None if not
            calibrated.
        type: kind of controller.
        schema_version: version of this format.
    """

    hidden_size: int
    depth: int
    target: str
    draft: str
    fingerprint: PairFingerprint
    sampling: SamplingParams
    w_acc: float
    w_rej: float
    mixing: float
    threshold: float
    threshold_source: str
    dataset_fingerprint: str
    metrics: dict[str, float] = field(default_factory=dict)
    calibration: dict[str, Any] | None = None
    type: str = TYPE
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        if self.hidden_size < 1:
            raise InputError(f"hidden_size={self.hidden_size}: must be at least 1")
        if not 0 <= self.depth <= MAX_DEPTH:
            raise InputError(f"depth={self.depth}: must be between 0 and {MAX_DEPTH}")
        if not 0 <= self.threshold <= 1:
            raise InputError(f"threshold={self.threshold}: must be in [0, 1]")
        if not 0 <= self.mixing <= 1:
            raise InputError(f"mixing={self.mixing}: must be in [0, 1]")
        for name, weight in (("w_acc", self.w_acc), ("w_rej", self.w_rej)):
            if not (weight > 0 and math.isfinite(weight)):
                raise InputError(f"{name}={weight}: must be a positive number")
        if self.calibration is not None:
            parse_calibration(self.calibration)

    def as_dict(self) -> dict[str, Any]:
        return {"type": self.type, "schema_version": self.schema_version, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ControllerConfig:
        """Read what ``as_dict`` wrote.

        Raises:
            InputError: a controller of another type or of a newer format, an unknown or missing key, a value of the
                wrong type or out of range.
        """
        if data.get("type") != TYPE:
            raise InputError(f"type={data.get('type')!r}: not a controller this version knows; expected {TYPE!r}")
        version = data.get("schema_version")
        if not isinstance(version, int) or version > SCHEMA_VERSION:
            raise InputError(f"schema_version={version}: this version reads up to {SCHEMA_VERSION}; upgrade specpilot")
        data = {**rename_old_keys(data), "schema_version": SCHEMA_VERSION}
        values = exactly(data, {entry.name for entry in fields(cls)}, CONFIG)
        for name, kind in _KINDS.items():
            if not isinstance(values[name], kind) or isinstance(values[name], bool):
                raise InputError(f"{name}={values[name]!r}: has the wrong type in {CONFIG}")
        fingerprint = exactly(values["fingerprint"], {entry.name for entry in fields(PairFingerprint)}, "fingerprint")
        sampling = exactly(values["sampling"], {entry.name for entry in fields(SamplingParams)}, "sampling")
        try:
            values |= {"fingerprint": PairFingerprint(**fingerprint), "sampling": SamplingParams(**sampling)}
        except TypeError as error:
            raise InputError(f"sampling={sampling}: a value has the wrong type in {CONFIG}") from error
        return cls(**values)


_KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("hidden_size", "depth"), int),
    **dict.fromkeys(("w_acc", "w_rej", "mixing", "threshold"), (int, float)),
    **dict.fromkeys(("target", "draft", "threshold_source", "dataset_fingerprint"), str),
    **{"metrics": dict, "calibration": (dict, type(None))},
}


def exactly(data: object, names: set[str], where: str) -> dict[str, Any]:
    """``data`` if it is a mapping of exactly these keys; raises InputError, naming the odd one, if it is not."""
    if not isinstance(data, Mapping):
        raise InputError(f"{where}: a JSON object is expected")
    if unknown := sorted(set(data) - names):
        raise InputError(f"{where}: unknown key {unknown[0]!r}; the keys are {', '.join(sorted(names))}")
    if missing := sorted(names - set(data)):
        raise InputError(f"{where}: key {missing[0]!r} is missing; export the controller again")
    return dict(data)
