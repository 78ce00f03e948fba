"""The arms of a router: draft models, early exits, n-grams and no draft (Huang et al. 2024, §2.2, §3.2).

A router's output i belongs to its i-th arm, so the given arms must match the trained ones in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
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

    def as_dict(self) -> dict[str, Any]:
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


def check_enough(names: Sequence[str]) -> None:
    """Raise InputError for fewer than two arms, or an arm that is named twice."""
    if len(names) < 2:
        raise InputError(
            f"arms: {', '.join(names) or 'none'}: a router needs at least two; add a draft model, "
            "'exit:LAYER', 'ngram' or 'autoregressive'"
        )
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"arm {name!r}: named twice; name each arm once")


def check_arms(trained: Sequence[Arm], given: Sequence[Arm]) -> None:
    """Check that the given arms are those a router was trained for.

    Raises:
        InputError: an arm is missing, unknown, or another model, or the order differs.
    """
    order = ", ".join(arm.name for arm in trained)
    ours, theirs = [arm.identity for arm in trained], [arm.identity for arm in given]
    by_name = {arm.name: arm for arm in given}
    for arm in trained:
        if arm.identity in theirs:
            continue
        if arm.kind == DRAFT and arm.name in by_name:
            raise InputError(
                f"arm {arm.name!r}: is not the model the router was trained with, its weights or configuration differ; "
                "give that one, or train a router for this one"
            )
        raise InputError(
            f"arm {arm.name!r}: is missing; the router was trained for {order}: give them all, or train a router "
            "for these"
        )
    for arm in given:
        if arm.identity not in ours:
            raise InputError(
                f"arm {arm.name!r}: the router does not know it, it was trained for {order}; leave it out, or train "
                "a router with it"
            )
    for place, (arm, other) in enumerate(zip(trained, given, strict=True), 1):
        if arm.identity != other.identity:
            raise InputError(
                f"arm {other.name!r}: is number {place}, where the router has {arm.name!r}; give the arms in its "
                f"order: {order}"
            )
