"""The description of a verification rule, ``RULE`` in a file of :mod:`specpilot.infer.verify`."""

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
    """The threshold of a rule, as in ``"mtad:0.3"``.

    Attributes:
        arguments: returns the keyword arguments of the rule's function for a number.
        is_legal: returns true for an allowed number.
        allowed: the allowed numbers in words, for error messages.
    """

    arguments: Callable[[float], dict[str, float]]
    is_legal: Callable[[float], bool]
    allowed: str


@dataclass(frozen=True)
class Rule:
    """A verification rule.

    Attributes:
        name: the name, as in ``--verifier NAME``.
        verify: verifies a draft. None for a rule that has ``select``.
        select: chooses one token from several proposals; :func:`.tree.verify_tree` applies it node by node. None for a
            rule that has ``verify``.
        trees: whether ``verify`` accepts trees as well as chains.
        lossless: whether the output has the target's distribution. The output quality of a rule that is not lossless
            must be measured.
        threshold: the rule's threshold; None if it has none.
    """

    name: str
    verify: Callable[..., Verdict] | None = None
    select: Selection | None = None
    trees: bool = False
    lossless: bool = True
    threshold: Threshold | None = None

    @property
    def takes_trees(self) -> bool:
        """Return true if the rule verifies trees as well as chains."""
        return self.select is not None or self.trees

    def verifier(self, number: float | None = None) -> Verifier:
        """Return the rule as a function with the threshold ``number``. Default: the default of the rule's function.

        Raises:
            InputError: the number is not allowed.
        """
        arguments: dict[str, float] = {}
        if number is not None:
            assert self.threshold is not None
            if not self.threshold.is_legal(number):
                raise InputError(f"verifier='{self.name}:{number:g}': {self.threshold.allowed}")
            arguments = self.threshold.arguments(number)
        if self.select is not None:
            return partial(verify_tree, select=partial(self.select, **arguments) if arguments else self.select)
        assert self.verify is not None
        return partial(self.verify, **arguments) if arguments else self.verify
