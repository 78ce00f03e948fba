"""The arms of a router: draft models, early exits, n-grams and no draft (Huang et al. 2024, §2.2, §3.2).

A router's output i belongs to its i-th arm, so the given arms must match the trained ones in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ..common.errors import InputError, is_whole

DRAFT, EXIT, NGRAM, AUTOREGRESSIVE = "draft", "exit", "ngram", "autoregressive"


@dataclass(frozen=True)
class Arm:
    """One method of decoding.

    Attributes:
        kind: ``draft``, ``exit`` (the target's first layers draft), ``ngram`` (copies) or ``autoregressive``.
        name: the draft's name, ``exit:2``, ``ngram`` or ``autoregressive``.
        fingerprint: fingerprint of the draft model; empty for the other kinds.
        layer: number of the target's layers that an exit runs; 0 for the other kinds.
        parameters: number of parameters of the drafting model: 0 for n-grams, the target's for ``autoregressive``.
    """

    kind: str
    name: str
    fingerprint: str = ""
    layer: int = 0
    parameters: int = 0

    @property
    def identity(self) -> tuple[str, str, int]:
        """The properties that identify the arm, without its name."""
        return self.kind, self.fingerprint, self.layer

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def parse_arm(spec: str) -> tuple[str, int]:
    """Kind and layer of an arm given as ``autoregressive``, ``ngram``, ``exit:2``, or a draft model's name.

    Raises:
        InputError: an exit without a layer.
    """
    if spec in (AUTOREGRESSIVE, NGRAM):
        return spec, 0
    name, colon, layer = spec.partition(":")
    if name == EXIT and colon:
        if not is_whole(layer) or int(layer) < 1:
            raise InputError(f"arm {spec!r}: give the layer after which the target drafts, as in 'exit:2'")
        return EXIT, int(layer)
    return DRAFT, 0


def check_enough(names: Sequence[str], option: str = "arms") -> None:
    """Raise InputError for fewer than two arms, or an arm that is named twice; ``option`` names them."""
    if len(names) < 2:
        raise InputError(
            f"{option}={', '.join(names) or 'none'}: a router needs at least two arms; add a draft model, "
            "'exit:LAYER', 'ngram' or 'autoregressive'"
        )
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"arm {name!r}: named twice; name each arm once")


def named_apart(arms: Sequence[Arm]) -> tuple[Arm, ...]:
    """``arms``, of whose absolute paths only the last parts are kept: one, or as many as tell it from the others."""
    paths = [Path(arm.name).parts if Path(arm.name).is_absolute() else (arm.name,) for arm in arms]
    ends = [[path[-count:] for count in range(1, len(path) + 1)] for path in paths]
    names = [next((end for end in own if sum(end in other for other in ends) == 1), own[-1]) for own in ends]
    return tuple(replace(arm, name=str(Path(*name))) for arm, name in zip(arms, names, strict=True))


def check_arms(trained: Sequence[Arm], given: Sequence[Arm]) -> None:
    """Check that the arms of a decoder, its option ``draft``, are those a router was trained for.

    Raises:
        InputError: an arm is missing, unknown, or another model, or the order differs.
    """
    for place, (arm, other) in enumerate(zip_longest(trained, given), 1):
        if arm is None or other is None or arm.identity != other.identity:
            ours, theirs = ("missing" if one is None else repr(one.name) for one in (arm, other))
            where = "has none" if arm is None else f"was trained with {ours}"
            weights = " of other weights or configuration" if ours == theirs else ""
            raise InputError(
                f"draft: arm number {place} is {theirs}{weights}, where the router {where}; give its arms, "
                f"{', '.join(arm.name for arm in trained)}, or train a router for these"
            )
