"""The arms of a router: draft models, early exits, n-grams and no draft (Huang et al. 2024, §2.2, §3.2).

A router's output i belongs to its i-th arm, so that a decoder's arms must have the order of the trained arms.
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
        parameters: number of parameters of the drafting model; 0 for n-grams, the target's for ``autoregressive``.
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
    """Return kind and layer of an arm named ``autoregressive``, ``ngram``, ``exit:2``, or by a draft model's name.

    Raises:
        InputError: an exit has no layer.
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
    """Check the ``names`` of a router's arms.

    Args:
        names: the names.
        option: the option with the names, for messages.

    Raises:
        InputError: there are fewer than two arms, or an arm is named twice.
    """
    if len(names) < 2:
        raise InputError(
            f"{option}={', '.join(names) or 'none'}: a router needs at least two arms; add a draft model, "
            "'exit:LAYER', 'ngram' or 'autoregressive'"
        )
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"arm {name!r}: named twice; name each arm once")


def shorten_names(arms: Sequence[Arm]) -> tuple[Arm, ...]:
    """Shorten absolute paths in the names of ``arms`` to their last parts: to one, or to as many as are unique."""
    paths = [Path(arm.name).parts if Path(arm.name).is_absolute() else (arm.name,) for arm in arms]
    path_ends = [[path[-count:] for count in range(1, len(path) + 1)] for path in paths]
    names = [
        next((end for end in endings if sum(end in other for other in path_ends) == 1), endings[-1])
        for endings in path_ends
    ]
    return tuple(replace(arm, name=str(Path(*name))) for arm, name in zip(arms, names, strict=True))


def check_arms(trained: Sequence[Arm], arms: Sequence[Arm]) -> None:
    """Check that the arms of a decoder are those that a router was trained for.

    Args:
        trained: the router's arms.
        arms: the decoder's arms, from its option ``draft``.

    Raises:
        InputError: an arm is missing, unknown, or another model, or the order differs.
    """
    for number, (arm, other) in enumerate(zip_longest(trained, arms), 1):
        if arm is None or other is None or arm.identity != other.identity:
            trained_name, decoder_name = ("missing" if entry is None else repr(entry.name) for entry in (arm, other))
            expectation = "has none" if arm is None else f"was trained with {trained_name}"
            weights = " of other weights or configuration" if trained_name == decoder_name else ""
            raise InputError(
                f"draft: arm number {number} is {decoder_name}{weights}, but the router {expectation}; give the "
                f"router's arms, {', '.join(arm.name for arm in trained)}, or train a router for the arms in draft"
            )
