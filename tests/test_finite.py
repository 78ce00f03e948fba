"""Whole numbers beyond the largest float are refused like infinity, wherever a finite number is expected."""

from __future__ import annotations

import math

import pytest
from specpilot.common.errors import InputError, is_finite
from specpilot.common.options import Range
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.sampling import SamplingParams

HUGE = 10**400


def test_finite_numbers() -> None:
    assert is_finite(1)
    assert is_finite(-0.5)
    for value in (math.inf, -math.inf, math.nan, HUGE, -HUGE):
        assert not is_finite(value)


def test_options_and_settings_refuse_them() -> None:
    with pytest.raises(InputError, match=r"lr=1000.*must be a finite number"):
        Range(0.0).check("lr", HUGE)
    with pytest.raises(InputError, match=r"temperature=1000.*finite"):
        SamplingParams(temperature=HUGE)
    with pytest.raises(InputError, match=r"t_draft=1000.*finite"):
        CostModel(HUGE, 1.0, 0.0)
