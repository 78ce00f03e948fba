"""What a file of :mod:`specpilot.infer.verify` defines: a verification rule under its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ...common.errors import InputError
from ..core import Draft, TokenDistribution, Verdict
from ..random_source import RandomSource
from .tree import Selection, verify_tree

Verifier = Callable[[TokenDistribution, Draft, RandomSource], Verdict]


@dataclass(frozen=True)
class Threshold:
    """The number of a rule, as in ``"mtad:0.3"``.

    Attributes:
        arguments: the keyword arguments of the rule's function for a number.
        is_legal: whether a number is allowed.
        allowed: the allowed numbers in words.
    """

    arguments: Callable[[float], dict[str, float]]
    is_legal: Callable[[float], bool]
    allowed: str


@dataclass(frozen=True)
class Rule:
    """A verification rule.

    Attributes:
        name: as in ``--verifier NAME``.
        verify: verifies a draft. None for a rule that has ``select``.
        select: chooses one token from several proposals; :func:`.tree.verify_tree` applies it node by node. None for a
            rule of chains.
        trees: whether ``verify`` takes trees as well as chains.
        lossless: whether the output has the target's distribution. That of other rules must be measured.
        threshold: its number, if it has one.
    """

    name: str
    verify: Callable[..., Verdict] | None = None
    select: Selection | None = None
    trees: bool = False
    lossless: bool = True
    threshold: Threshold | None = None

    @property
    def takes_trees(self) -> bool:
        """Whether it verifies trees as well as chains."""
        return self.select is not None or self.trees

    def verifier(self, number: float | None = None) -> Verifier:
        """The rule as a function, with its threshold ``number``. Default: the one of its function.

        Raises:
            InputError: the number is not allowed.
        """
        if self.select is not None:
            return partial(verify_tree, select=self.select)
        assert self.verify is not None
        if number is None:
            return self.verify
        assert self.threshold is not None
        if not self.threshold.is_legal(number):
            raise InputError(f"verifier='{self.name}:{number:g}': {self.threshold.allowed}")
        return partial(self.verify, **self.threshold.arguments(number))
