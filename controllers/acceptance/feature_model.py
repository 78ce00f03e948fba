"""A logistic model of acceptance on what the draft itself says of a token: log q(y), log(1 - max q), the entropy of q.

No hidden states and four numbers: the baseline that an acceptance head has to beat, and a controller of its own. It
judges the token in hand, with no lag. A token's place in the draft is no feature: given that all before it were kept,
it follows text of the target's own law, whatever its place. Stored as one JSON file.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..checkpoints.fingerprint import PairFingerprint
from ..checkpoints.old_keys import rename_old_keys
from ..checkpoints.provenance import Provenance
from ..errors import InputError
from ..sampling import SamplingParams
from .calibration import sigmoid

TYPE = "acceptance-features"
SCHEMA_VERSION = 2
SMALLEST = 1e-4  # 1 - max q is no smaller than this: below it rounding says more than the draft does


def features(confidence: float, top: float, entropy: float) -> tuple[float, float, float]:
    """From q(y), max q and H(q) in nats to what the model is linear in.

    The doubt 1 - max q counts by its logarithm: whether it is 0.1 or 0.01 matters, and max q itself hardly tells.
    """
    return math.log(max(confidence, 1e-30)), math.log(max(1.0 - top, SMALLEST)), entropy


@dataclass(frozen=True)
class FeatureModel:
    """``sigmoid(bias + confidence·log q(y) + doubt·log(1 - max q) + entropy·H(q))`` and where it came from.

    Attributes:
        bias, confidence, doubt, entropy: the coefficients.
        mean: mean acceptance in the data it was fitted to.
        provenance: the pair and sampling of that data.
        dataset_fingerprint: SHA-256 of the data.
        metrics: how well it judges held-out data.
    """

    bias: float
    confidence: float
    doubt: float
    entropy: float
    mean: float
    provenance: Provenance
    dataset_fingerprint: str
    metrics: dict[str, float]

    def __post_init__(self) -> None:
        for name in ("bias", "confidence", "doubt", "entropy"):
            if not math.isfinite(getattr(self, name)):
                raise InputError(f"{name}={getattr(self, name)}: must be a finite number")
        if not 0 <= self.mean <= 1:
            raise InputError(f"mean={self.mean}: must be in [0, 1]")

    def probability(self, confidence: float, top: float, entropy: float) -> float:
        """The acceptance probability from q(y), max q and H(q)."""
        x, y, z = features(confidence, top, entropy)
        return sigmoid(self.bias + self.confidence * x + self.doubt * y + self.entropy * z)

    def save(self, file: str | Path) -> None:
        document = {"type": TYPE, "schema_version": SCHEMA_VERSION, **asdict(self)}
        Path(file).write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, file: str | Path) -> FeatureModel:
        """Read what :meth:`save` wrote.

        Raises:
            InputError: it cannot be read, is something else or of a newer format, or a value is missing or wrong.
        """
        try:
            data: dict[str, Any] = rename_old_keys(json.loads(Path(file).read_text(encoding="utf-8")))
            if data["type"] != TYPE or data["schema_version"] not in (1, SCHEMA_VERSION):
                raise InputError(f"{file}: type {data['type']!r} of format {data['schema_version']} is not known here")
            provenance = data["provenance"]
            pair = PairFingerprint(**provenance["fingerprint"])
            values = {entry.name: data[entry.name] for entry in fields(cls)}
            values["provenance"] = Provenance(
                provenance["target"], provenance["draft"], pair, SamplingParams(**provenance["sampling"])
            )
            return cls(**values)
        except OSError as error:
            raise InputError(f"{file}: cannot be read ({error.strerror})") from error
        except InputError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{file}: no feature controller; make one with 'specpilot train features --output FILE'"
            ) from error
